"""Tables of labels in the forms in which people write them, and their faults."""

from dataclasses import replace

import openpyxl
import pandas as pd
import pytest

from ich_mil.errors import DataError
from ich_mil.ledger import Code, LedgerEntry
from ich_mil.sets.scan_labels import LabelColumns, find_labels, read_scan_labels
from ich_mil.sets.scan_names import Name, ScanNames, folder_names

SCANS = ("1.2.3", "1.2.4", "1.2.5")
NAMES = [*folder_names(zip(SCANS, ("001", "002", "003"), strict=True))]
WANTED = {"1.2.3": 1, "1.2.4": 0}


def labels_of(path, names=NAMES, more=tuple):
    rows, _ = read_scan_labels(path).match(ScanNames(names), more)
    return dict(zip(rows.index, rows.label, strict=True))


@pytest.mark.parametrize(
    "text",
    [
        "scan,label\n001,1\n002,0\n",
        "\ufeffSCAN;Label\n001;1\n002;0\n",
        " Scan ID \t LABEL \n 001 \t 1 \n 002 \t 0 \n",
        "folder,label\n1,yes\n2,No\n003,\n",
        "Study Instance UID,label\n1.2.3,TRUE\n1.2.4,false\n",
        "scan,label\n1.0,1.0\n2.0,0.0\n",
        "scan;label\n1;1,0\n2;0,0\n",
        "scan,label\n1.2.3,positive\n002,Negative\n",
        "folder,study_uid,label\n1,1.2.3,pos\n,1.2.4,neg\n",
        "scan,label\n001,Ja\n002,nein\n",
        "scan,label\n001,+\n002,-\n003,\n",
        "scan;label\n001;WAHR\n002;FALSCH\n",
        "Liste, Station 3\n\n;as of 1.3.\nscan;label\n001;j\n002;negativ\n",
    ],
)
def test_a_table_as_people_write_it(tmp_path, text):
    (tmp_path / "labels.csv").write_text(text, encoding="utf-8")
    assert labels_of(tmp_path / "labels.csv") == WANTED


TABLE = [
    ["CT heads 2024", "", "", ""],
    ["as of 12.03.", "", "ICH", ""],
    ["", "", "", ""],
    ["Nr.", "Acc. No.", "ICH", "label"],
    ["1", "001", "ja", "x"],
    ["2", "002", "nein", "y"],
]


@pytest.mark.parametrize("form", ["csv", "xlsx"])
def test_columns_that_the_user_names_below_titles(tmp_path, form):
    path = tmp_path / f"list.{form}"
    table = pd.DataFrame(TABLE)
    if form == "xlsx":
        table.to_excel(path, index=False, header=False)
    else:
        table.to_csv(path, index=False, header=False, sep=";")
    columns = LabelColumns(id_column="acc no", label_column="ICH")
    labels = read_scan_labels(path, columns)
    labels.check()
    rows, reading = labels.match(ScanNames(NAMES))
    assert dict(zip(rows.index, rows.label, strict=True)) == WANTED
    assert list(labels.rows.index) == [5, 6]
    assert [text for text in ("Acc. No.", "ICH: ja = 1 (1), nein = 0 (1)") if text not in reading] == []
    for wrong, near in (({"id_column": "Acc. Nr"}, "'Acc. No.'"), ({"label_column": "IHC"}, "'ICH'")):
        with pytest.raises(DataError, match=rf"list\.{form}: .*did you mean {near}"):
            read_scan_labels(path, replace(columns, **wrong))


def test_faults_of_named_columns_are_found_without_scans(tmp_path):
    path = tmp_path / "list.csv"
    columns = LabelColumns(id_column="Acc. No.", label_column="ICH")
    for rows, fault in (
        ("7;evtl.\n8;ja", r"'evtl\.' \(line 3\)"),
        ("7;-\n8;ja\n9;+", r"'-' \(line 3\), '\+' \(line 5\)"),
        (";ja\n8;nein", "line 3"),
        ("7;\n8;", "no row has a label"),
    ):
        path.write_text(f"Liste\nAcc. No.;ICH\n{rows}\n")
        with pytest.raises(DataError, match=rf"list\.csv: .*{fault}"):
            read_scan_labels(path, columns).check()
    path.write_text("Acc. No.;ICH;I.C.H.;ich\n7;ja;;")
    read_scan_labels(path, columns).check()  # the column of exactly this name
    with pytest.raises(DataError, match=r"column label occurs twice \(ICH, I\.C\.H\., ich\)"):
        read_scan_labels(path, replace(columns, label_column="i c h"))


def test_unicode_text_of_excel(tmp_path):
    (tmp_path / "labels.csv").write_text("scan\tlabel\n001\tpos.\n002\tneg.\n", encoding="utf-16")
    assert labels_of(tmp_path / "labels.csv") == WANTED


def test_an_excel_file_with_numbers_and_booleans(tmp_path):
    table = pd.DataFrame({"Folder": [1, 2, 3], "Label": [True, False, None]})
    table.to_excel(tmp_path / "labels.xlsx", index=False)
    assert labels_of(tmp_path / "labels.xlsx") == WANTED
    with pd.ExcelWriter(tmp_path / "labels.xlsx") as book:
        for name in ("Januar", "Februar"):
            table.to_excel(book, sheet_name=name, index=False)
        pd.DataFrame().to_excel(book, sheet_name="empty")
    with pytest.raises(DataError, match=r"labels\.xlsx: has 2 filled sheets: Januar, Februar"):
        read_scan_labels(tmp_path / "labels.xlsx")
    book = openpyxl.Workbook()
    for row in (("folder", "label"), ("001", "#N/A"), ("002", 0)):
        book.active.append(row)
    book.active["B2"].data_type = "e"
    book.save(tmp_path / "labels.xlsx")
    with pytest.raises(DataError, match=r"'#N/A' \(line 2\)"):
        read_scan_labels(tmp_path / "labels.xlsx").check()
    (tmp_path / "labels.xlsx").write_bytes(b"scan,label")
    with pytest.raises(DataError, match=r"labels\.xlsx: is no Excel table"):
        read_scan_labels(tmp_path / "labels.xlsx")


def test_further_names(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("scan,label\n001,1\n")
    others = [Name("1.2.3", "002", "accession"), Name("1.2.4", "003", "accession")]
    assert labels_of(path, more=lambda: others) == {"1.2.3": 1}
    for row in ("scan,label\n1.2.3,1\n", "folder,label\n1,1\n"):
        path.write_text(row)
        assert labels_of(path, more=None) == {"1.2.3": 1}  # not called for ids of scans, nor for folders
    path.write_text("Accession Number,label\n2,1\n003,0\n")
    assert labels_of(path, more=lambda: others) == WANTED  # and not folders 002 and 003
    path.write_text("scan,label\n002,1\n")
    with pytest.raises(DataError, match=r"fit several scans.*002 \(line 2: 2\)"):
        labels_of(path, more=lambda: others)


def test_several_ids_of_a_row(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("folder,accession,study,label\n001,4.7E+14,1.2.3,1\n002,,1.2.4,0\n")
    assert labels_of(path) == WANTED
    for study, fault in (("1.2.4", "are of different scans"), ("9.9", "fit no scan")):
        path.write_text(f"folder,accession,study,label\n001,,{study},1\n")
        with pytest.raises(DataError, match=rf"{fault}.*: 001, {study} \(line 2\)"):
            labels_of(path)


def test_accession_numbers_beside_folders(tmp_path):
    path = tmp_path / "labels.csv"
    own = [Name("1.2.3", "500", "accession"), Name("1.2.4", "600", "accession")]
    for first, second, fault in (
        ("500", "600", ""),
        ("600", "500", "different scans: 001, 600"),
        ("500", "999", "002, 999"),
    ):
        path.write_text(f"folder,accession,label\n001,{first},1\n002,{second},0\n")
        if fault:
            with pytest.raises(DataError, match=fault):
                labels_of(path, more=lambda: own)
        else:
            assert labels_of(path, more=lambda: own) == WANTED
    path.write_text("folder,accession,label\n001,X1,1\n002,X2,0\n")
    assert labels_of(path, more=lambda: own) == WANTED  # numbers of another system


def test_a_part_of_a_path_is_told_and_comes_after_paths(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("folder,label\n3,1\n4,0\n")
    names = ScanNames(folder_names([("A", "10/3"), ("B", "20/4")]))
    assert (
        read_scan_labels(path).match(names)[1].endswith("2 of 2 rows with a label matched (3 is folder 10/3)")
    )
    path.write_text("folder,label\n1,0\n2,1\n")
    assert labels_of(path, folder_names([("A", "1/2"), ("B", "2/1")])) == {"A": 0, "B": 1}


def test_all_faults_in_one_message(tmp_path):
    rows = ["001,yes", "002,maybe", ",no", "1,no", "9,no", "s1,yes", "10,"]
    (tmp_path / "labels.csv").write_text("Folder,Label\n" + "\n".join(rows))
    names = [*NAMES, Name("1.2.3", "s1"), Name("1.2.4", "s1")]
    refused = [LedgerEntry("", "9/x.txt", Code.NOT_DICOM, "x.txt is text")]
    with pytest.raises(DataError) as caught:
        read_scan_labels(tmp_path / "labels.csv").match(ScanNames(names), refused=refused)
    faults = ("'maybe' (line 3)", "line 4", "2 and 5", "9 (line 6) (x.txt is text)", "s1 (line 7: 2)")
    counts = ("column Folder", "from Label", "no = 0 (3)", "yes = 1 (2)", "empty = no label (1)", "3 of 6")
    assert [part for part in ("labels.csv", *faults, *counts) if part not in str(caught.value)] == []


def test_missing_columns_are_told_together(tmp_path):
    (tmp_path / "labels.csv").write_text("001,1\n002,0\n")
    with pytest.raises(
        DataError,
        match=r"labels\.csv: column of .* and column label are missing; found 001, 1; call them so, or use",
    ):
        read_scan_labels(tmp_path / "labels.csv")
    (tmp_path / "labels.csv").write_text("Scan,scan,label\na,b,1\n")
    with pytest.raises(DataError, match=r"labels\.csv: column scan occurs twice"):
        read_scan_labels(tmp_path / "labels.csv")


def test_the_table_in_a_folder(tmp_path):
    with pytest.raises(DataError, match="labels-template"):
        find_labels(tmp_path)
    (tmp_path / "~$labels.xlsx").touch()  # Excel has it open
    (tmp_path / "Labels.XLSX").touch()
    assert find_labels(tmp_path) == tmp_path / "Labels.XLSX"
    (tmp_path / "labels.csv").touch()
    with pytest.raises(DataError, match=r"Labels\.XLSX, labels\.csv; keep one"):
        find_labels(tmp_path)


def test_a_table_without_a_value_that_is_understood_says_so(tmp_path):
    (tmp_path / "labels.csv").write_text("scan,label\na,maybe\n")
    with pytest.raises(DataError, match=r"'maybe' \(line 2\).* labels from label: none is understood"):
        read_scan_labels(tmp_path / "labels.csv").check()
