"""Reports from tables, folders and DICOM; and one error each for what cannot be read."""

import pandas as pd
import pytest
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian

from ich_mil.errors import ConfigError, DataError
from ich_mil.radiology_text.read import MOST_CHARACTERS, Report, read_reports

SECRET = "Jane Roe has a hematoma"
CDA = b"""<ClinicalDocument xmlns="urn:hl7-org:v3"><component><structuredBody><component><section>
<title>Findings</title><text>No <content>hemorrhage</content>.</text></section></component>
</structuredBody></component></ClinicalDocument>"""


def code(meaning):
    one = Dataset()
    one.CodeValue, one.CodingSchemeDesignator, one.CodeMeaning = "1", "99TEST", meaning
    return [one]


def item(kind, heading, text="", below=()):
    one = Dataset()
    one.RelationshipType, one.ValueType, one.ConceptNameCodeSequence = "CONTAINS", kind, code(heading)
    if text:
        one.TextValue = text
    if below:
        one.ContentSequence = list(below)
    return one


def write_dicom(path, *, sop_class, **values):
    data = Dataset()
    data.SOPClassUID, data.SOPInstanceUID, data.StudyInstanceUID = sop_class, "1.2.3", "1.2"
    for keyword, value in values.items():
        setattr(data, keyword, value)
    data.file_meta, data.preamble = FileMetaDataset(), b"\0" * 128
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID, data.file_meta.MediaStorageSOPInstanceUID = sop_class, "1.2.3"
    path.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(path, enforce_file_format=True)


def refused(source, *words, columns=None):
    """The error of a source, which names it and quotes no report."""
    with pytest.raises(DataError) as caught:
        read_reports(source, columns)
    told = str(caught.value)
    assert str(source) in told
    assert "\n" not in told
    assert "Jane" not in told
    assert all(word in told for word in words), told


def test_a_table(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text('\ufeffreport,text,more\nA,"No bleed,\nnone.",x\n\nB,Bleed,\n', encoding="utf-8")
    assert read_reports(path) == ([Report("A", "A", "No bleed,\nnone."), Report("B", "B", "Bleed")], 0)


@pytest.mark.parametrize(
    ("name", "text", "encoding"),
    [
        ("r.tsv", "report\ttext\nA\tNo bleed\n", "utf-8"),
        ("r.csv", "Report;TEXT\nA;No bleed\n", "utf-8-sig"),
        ("r.csv", "Export of 1.3.\n\nreport,text\nA,No bleed\n", "utf-8"),
        ("r.csv", "report\ttext\nA\tNo bleed\n", "utf-16"),
    ],
)
def test_tables_as_hospitals_export_them(tmp_path, name, text, encoding):
    (tmp_path / name).write_text(text, encoding=encoding)
    assert read_reports(tmp_path / name) == ([Report("A", "A", "No bleed")], 0)


def test_other_separators_names_of_columns_and_scans(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("study;Befund;nr\nS;Bleed;1")
    columns = {"report": "nr", "text": "Befund", "scan": "study"}
    assert read_reports(path, columns)[0] == [Report("1", "S", "Bleed")]
    with pytest.raises(ConfigError, match="--column: 'label' must be one of report, text, scan"):
        read_reports(path, {"label": "nr"})


def test_excel_is_the_same_as_csv(tmp_path):
    table = pd.DataFrame({"report": ["007", "8"], "text": ["No bleed", "NA"], "scan": ["S", "S"]})
    table.to_excel(tmp_path / "r.xlsx", index=False)
    table.to_csv(tmp_path / "r.csv", index=False)
    expected = [Report("007", "S", "No bleed"), Report("8", "S", "NA")]
    assert read_reports(tmp_path / "r.xlsx")[0] == read_reports(tmp_path / "r.csv")[0] == expected


def test_a_folder_of_texts(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "2.txt").write_bytes(b"One\r\nTwo")
    (tmp_path / "1.txt").write_text("Größe", encoding="utf-16")
    (tmp_path / ".hidden").write_bytes(b"\xff")
    assert read_reports(tmp_path)[0] == [Report("1", "1", "Größe"), Report("b/2", "b/2", "One\nTwo")]


def test_a_structured_report_keeps_its_headings(tmp_path):
    tree = [
        item("CONTAINER", "History", below=[item("TEXT", "Reason", "Bleed?")]),
        item("CONTAINER", "Findings", below=[item("TEXT", "Brain", "Subdural hematoma.")]),
    ]
    write_dicom(tmp_path / "sr.dcm", sop_class="1.2.840.10008.5.1.4.1.1.88.11", ContentSequence=tree)
    write_dicom(tmp_path / "ct", sop_class="1.2.840.10008.5.1.4.1.1.2")
    (report,), others = read_reports(tmp_path)
    assert (report.name, report.scan, others) == ("1.2.3", "1.2", 1)
    assert " ".join(report.text.split()) == "HISTORY: REASON: Bleed? FINDINGS: BRAIN: Subdural hematoma."


def test_encapsulated_documents(tmp_path):
    kind = "1.2.840.10008.5.1.4.1.1.104.2"
    write_dicom(tmp_path / "cda", sop_class=kind, EncapsulatedDocument=CDA)
    (report,), _ = read_reports(tmp_path)
    assert " ".join(report.text.split()) == "FINDINGS: No hemorrhage ."
    plain = {"MIMETypeOfEncapsulatedDocument": "text/plain", "EncapsulatedDocument": b"No bleed.\0"}
    write_dicom(tmp_path / "cda", sop_class=kind, **plain)
    assert read_reports(tmp_path)[0][0].text == "No bleed."
    write_dicom(tmp_path / "cda", sop_class=kind, EncapsulatedDocument=b"<!DOCTYPE x [<!ENTITY a 'b'>]><x/>")
    refused(tmp_path / "cda", "entities")
    pdf = {"MIMETypeOfEncapsulatedDocument": "application/pdf", "EncapsulatedDocument": b"%PDF"}
    write_dicom(tmp_path / "cda", sop_class="1.2.840.10008.5.1.4.1.1.104.1", **pdf)
    refused(tmp_path / "cda", "application/pdf")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"report,text\nA,No bleed\nB, \nC,\n", ["line 3, 4", "empty"]),
        (f"id,{SECRET}\nA,{SECRET}\n".encode(), ["'report'", "--column report=NAME"]),
        (f"{SECRET},{SECRET}\nA,b\n".encode(), ["'report'", "--column report=NAME"]),
        (f"report,note\nA,{SECRET}\n".encode(), ["'text'", "--column text=NAME"]),
        (f"report,text\nA,{SECRET},x,y\nB,{SECRET},\n".encode(), ["line 2: 4 fields"]),
        (b"report,text\nA,\xff\xff\n", ["UTF-8"]),
        (b"report,text\n", ["no report"]),
        (b"report,text\nA," + b"x " * (5 << 20), ["line 2", "10,485,759 characters"]),
        (f"report,text,scan\nA,{SECRET},1\nA,{SECRET},2\n".encode(), ["twice", "A"]),
        (f"report,text,scan\nA,{SECRET},\n".encode(), ["line 2", "scan is empty"]),
    ],
)
def test_a_table_that_cannot_be_used(tmp_path, content, words):
    path = tmp_path / "r.csv"
    path.write_bytes(content)
    refused(path, *words)


def test_other_sources_that_cannot_be_used(tmp_path):
    refused(tmp_path / "none.csv", "no such table")
    refused(tmp_path / "none", "no such file")
    refused(tmp_path, "no report")
    (tmp_path / "r.xlsx").write_bytes(b"report,text")
    refused(tmp_path / "r.xlsx", "Excel")
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"\x89PNG\x00\xff")
    refused(folder / "a.txt", "UTF-8")
    (folder / "a.txt").write_text("x" * (MOST_CHARACTERS + 1))
    refused(folder / "a.txt", "1,000,001 characters")
