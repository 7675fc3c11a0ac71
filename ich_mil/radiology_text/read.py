"""Reader of radiology reports from a table, a folder of texts, or DICOM objects.

In: a table (CSV, TSV, Excel) with a text column; a folder of text files and DICOM objects; or one such file.
Out: `Report`s with their scan ids. Supported DICOM objects are structured reports (PS3.3 A.35) and
encapsulated CDA documents (PS3.3 A.45.2); their scan id is the StudyInstanceUID. Other DICOM objects are
counted.

Error messages never quote a report, since its text may name the patient.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.errors import InvalidDicomError

from ich_mil.errors import ConfigError, DataError
from ich_mil.sets.labels import EXCEL, encoding_of, name_some, read_table

COLUMNS = ("report", "text", "scan")
"""Columns of a table of reports: ids, texts, scan ids."""
MOST_CHARACTERS = 1_000_000
"""Maximum length of a report; a long report has about 10,000 characters."""
STRUCTURED_REPORTS = "1.2.840.10008.5.1.4.1.1.88."
ENCAPSULATED_CDA = "1.2.840.10008.5.1.4.1.1.104.2"
"""SOP classes (PS3.4 B.5); `STRUCTURED_REPORTS` is the common prefix of all structured reports."""
_PREAMBLE = 128


@dataclass(frozen=True)
class Report:
    """One radiology report.

    Attributes:
        name: report id.
        scan: scan id; several reports may share a scan.
        text: full text.
    """

    name: str
    scan: str
    text: str


def read_reports(source: Path, columns: Mapping[str, str] | None = None) -> tuple[list[Report], int]:
    """Read reports from a file or folder.

    Args:
        source: a table, a folder, or a single text or DICOM file.
        columns: names of the columns `COLUMNS` in a table, where they differ. Without a column of scans, the
            report id is the scan id.

    Returns:
        The reports in the order of the source, and the number of DICOM objects that are not reports.

    Raises:
        DataError: the source cannot be read, a text is empty, too long or not text, a column is missing, a
            report has no id, or a document is an encapsulated PDF.
        ConfigError: a name in `columns` is not in `COLUMNS`.
    """
    for name in columns or {}:
        if name not in COLUMNS:
            raise ConfigError(f"--column: {name!r} must be one of {', '.join(COLUMNS)}")
    others = 0
    if source.is_dir():
        read = [_read_file(path, source) for path in _files(source)]
        others = read.count(None)
        reports = [report for report in read if report is not None]
    elif source.suffix.lower() in (".csv", ".tsv", *EXCEL):
        reports = _read_table(source, {name: name for name in COLUMNS} | dict(columns or {}))
    elif source.is_file():
        report = _read_file(source, source.parent)
        reports, others = ([], 1) if report is None else ([report], 0)
    else:
        raise DataError(f"{source}: no such file or folder; name a table or a folder of reports")
    if not reports:
        raise DataError(f"{source}: holds no report; name a table or folder that does")
    return reports, others


def _files(folder: Path) -> Iterator[Path]:
    """Every file below a folder, sorted, except hidden files and DICOMDIR."""
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden and path.name != "DICOMDIR":
            yield path


def _read_table(path: Path, columns: Mapping[str, str]) -> list[Report]:
    def matches(name: str, header: Iterable[str]) -> list[int]:
        return [index for index, cell in enumerate(header) if cell.casefold() == name.casefold()]

    table = read_table(path, lambda row: matches(columns["report"], row) and matches(columns["text"], row))
    rows = pd.DataFrame(index=table.index + 2)
    for name, wanted in columns.items():
        indices = matches(wanted, table.columns)
        if name == "scan" and not indices:
            continue
        if len(indices) != 1:
            # the message omits the column names: without a header, the first line is a report
            raise DataError(
                f"{path}: has {'several columns' if indices else 'no column'} {wanted!r}; name the right one "
                f"with --column {name}=NAME"
            )
        rows[name] = table.iloc[:, indices[0]].set_axis(rows.index)
        if empty := [str(line) for line in rows.index[rows[name] == ""]]:
            raise DataError(
                f"{path}: {name} is empty in line {name_some(empty, 10)}; fill it in, or remove the row"
            )
    scans = rows.scan if "scan" in rows else rows.report
    if "scan" in rows and len(twice := rows.report[rows.report.duplicated()]):
        raise DataError(f"{path}: reports listed twice: {name_some(list(twice))}; leave one row for each")
    return [
        Report(name, scan, _checked(text, f"{path}: line {line}"))
        for line, name, scan, text in zip(rows.index, rows.report, scans, rows.text, strict=True)
    ]


def _read_file(path: Path, root: Path) -> Report | None:
    """The report in a file; None for a DICOM object that is not a report."""
    content = _bytes(path)
    if content[_PREAMBLE : _PREAMBLE + 4] == b"DICM":
        return _read_dicom(path)
    name = path.relative_to(root).with_suffix("").as_posix()
    return Report(name, name, _checked(_decoded(content, path), str(path)))


def _read_dicom(path: Path) -> Report | None:
    try:
        data = dcmread(path, stop_before_pixels=True)
        kind = str(data.get("SOPClassUID", ""))
        mime = str(data.get("MIMETypeOfEncapsulatedDocument", ""))
        if kind.startswith(STRUCTURED_REPORTS):
            text = "\n".join(_content(data))
        elif kind == ENCAPSULATED_CDA or mime.startswith("text/"):
            text = _document(data, path)
        elif "EncapsulatedDocument" in data:
            raise DataError(f"{path}: encapsulates a document of type {mime!r}, no text; export its text")
        else:
            return None
        scan, name = str(data.StudyInstanceUID), str(data.SOPInstanceUID)
    except (InvalidDicomError, AttributeError, OSError, ValueError, NotImplementedError) as error:
        raise DataError(f"{path}: cannot be read as a DICOM report; export it again") from error
    return Report(name, scan, _checked(text, str(path)))


def _content(item: Dataset) -> Iterator[str]:
    """Texts and codes of a content tree (PS3.3 C.17.3), each after its heading."""
    for child in item.get("ContentSequence", []):
        heading = _meaning(child, "ConceptNameCodeSequence").upper()
        begin = f"{heading}: " if heading else ""
        match child.get("ValueType"):
            case "TEXT":
                yield f"{begin}{child.get('TextValue', '')}\n"
            case "CODE":
                yield f"{begin}{_meaning(child, 'ConceptCodeSequence')}\n"
            case "CONTAINER" if heading:
                yield f"{begin}\n"
        yield from _content(child)


def _meaning(item: Dataset, keyword: str) -> str:
    """Code meanings of a sequence, joined by commas."""
    return ", ".join(str(code.get("CodeMeaning", "")) for code in item.get(keyword, []))


def _document(data: Dataset, path: Path) -> str:
    """Text of an encapsulated document: plain text unchanged, or the sections of a CDA body."""
    content = bytes(data.EncapsulatedDocument).rstrip(b"\0")
    if not content.lstrip().startswith(b"<"):
        return _decoded(content, path)
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        raise DataError(f"{path}: its XML declares entities, which no CDA document does; export its text")
    try:
        root = ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise DataError(f"{path}: its XML cannot be parsed; export the report again") from error
    sections = []
    for element in root.iter():
        tag = element.tag.rpartition("}")[2]
        if tag == "section":
            titles = ("".join(child.itertext()).strip() for child in element if child.tag.endswith("title"))
            texts = (" ".join(child.itertext()).strip() for child in element if child.tag.endswith("text"))
            heading = next(titles, "").rstrip(":").upper()
            sections.append(f"{heading}: {' '.join(texts)}\n" if heading else " ".join(texts))
    return "\n".join(sections) or " ".join(root.itertext())


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror or error}); put it where it can be"
        ) from error


def _decoded(content: bytes, path: Path) -> str:
    try:
        text = content.decode(encoding_of(content))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is no UTF-8 text (byte {error.start}); save it as UTF-8") from error
    if "\0" in text:
        raise DataError(f"{path}: holds zero bytes, which no text has; save it as UTF-8 text")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _checked(text: str, where: str) -> str:
    if not text.strip():
        raise DataError(f"{where}: its text is empty; fill it in, or take the report out")
    if len(text) > MOST_CHARACTERS:
        raise DataError(
            f"{where}: {len(text):,} characters in one report, at most {MOST_CHARACTERS:,} are read; look "
            "whether a quote is missing, or several reports are joined"
        )
    return text
