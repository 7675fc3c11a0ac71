"""Labels from the files of RSNA 2019 and CQ500 as they are: BOM, repeats, rows or scans without a partner."""

import pytest

from ich_mil.errors import DataError
from ich_mil.ledger import Code
from ich_mil.sets.labels import UNKNOWN, read_label_csv
from ich_mil.sets.layouts.collection import Source
from ich_mil.sets.layouts.cq500 import Cq500Collection
from ich_mil.sets.layouts.folder import FolderCollection
from ich_mil.sets.layouts.rsna import RsnaCollection
from tests.study.small_files import write

SUBTYPES = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural", "any")


def rsna_rows(sop, label):
    """The six rows of one image; `any` has the label, the subtypes are 0 but one."""
    return [f"{sop}_{kind},{int(label and kind in ('subdural', 'any'))}" for kind in SUBTYPES]


def source(sop, path="x.dcm"):
    return Source(path, sop)


def test_rsna(tmp_path):
    rows = [row for i in range(4) for row in rsna_rows(f"ID_{i:09x}", i == 2)]
    repeated = [*rows, *rsna_rows("ID_000000001", label=False)]  # as ID_a64d5deed in the real file
    (tmp_path / "stage_2_train.csv").write_text("\ufeffID,Label\r\n" + "\r\n".join(repeated) + "\r\n")
    collection = RsnaCollection(tmp_path)
    assert [collection.slice_label(f"ID_{i:09x}") for i in range(5)] == [0, 0, 1, 0, UNKNOWN]
    scan = [source("ID_000000001"), source("ID_000000002")]
    assert collection.scan_label("a", scan) == 1
    assert collection.scan_label("b", scan[:1]) == 0
    collection.check([("a", scan)])
    told = {entry.code: entry.detail for entry in collection.entries}
    assert told[Code.LABEL_REPEATED] == "ID_000000001 is listed 2 times with equal labels, counted once"
    assert told[Code.LABEL_UNUSED] == "2 labelled images are not among the readable files"
    with pytest.raises(DataError, match=r"stage_2_train\.csv: no label for 1 images: ID_000000009"):
        collection.check([("a", [*scan, source("ID_000000009")])])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("ID_000000001_any,1", "images labelled both 0 and 1: ID_000000001"),
        ("ID_000000001_subdural,1", "images labelled both 0 and 1: ID_000000001"),
        ("ID_000000007_any,2", "line 8: Label must be 0 or 1, got '2'"),
        ("nonsense,1", r"line 8: ID must be ID_<image>_<kind>, got 'nonsense'"),
        ("ID_000000007_chronic,1", r"line 8: ID must be ID_<image>_<kind>, got 'ID_000000007_chronic'"),
        ("ID_000000007_subdural,1", "no row 'any' for 1 images: ID_000000007"),
        ("ID_000000007_any", "line 8: 1 fields, but the header has 2"),
    ],
)
def test_rsna_rows_that_cannot_be_used(tmp_path, row, message):
    rows = [*rsna_rows("ID_000000001", label=False), row]
    (tmp_path / "stage_2_train.csv").write_text("ID,Label\n" + "\n".join(rows) + "\n")
    with pytest.raises(DataError, match=message):
        RsnaCollection(tmp_path)


def test_rsna_any_without_its_subtype(tmp_path):
    agree = [row for i in range(3) for row in rsna_rows(f"ID_{i:09x}", i == 2)]
    clash = [*rsna_rows("ID_000000007", label=False)]
    clash[0], clash[4] = "ID_000000007_epidural,1", "ID_000000007_subdural,1"
    (tmp_path / "stage_2_train.csv").write_text("ID,Label\n" + "\n".join([*agree, *clash]) + "\n")
    collection = RsnaCollection(tmp_path)
    assert [collection.slice_label(f"ID_{i:09x}") for i in (0, 2, 7)] == [0, 1, 0]
    (entry,) = collection.entries
    detail = "ID_000000007 has any 0 but epidural, subdural 1, taken as 0"
    assert (entry.code, entry.file, entry.detail) == (Code.LABEL_CLASH, "stage_2_train.csv", detail)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ID,Label\na_any,1,\nb_any,0,\n", r"t\.csv: line 2: 3 fields, .* 2"),
        ("ID, ID,Label\na,a,1\n", r"t\.csv: column ID occurs twice"),
        ("ID\na\n", r"t\.csv: column Label is missing; found ID"),
        ("", r"t\.csv: cannot be read as CSV"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, text, message):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_label_csv(path, ["ID", "Label"])


@pytest.mark.parametrize("mark", [";", "\t"])
def test_other_separators_and_columns_in_another_case(tmp_path, mark):
    path = tmp_path / "t.csv"
    path.write_text(f'id{mark}LABEL\n"Müller, Jörg"{mark}1\n')
    assert read_label_csv(path, ["ID", "Label"])[["ID", "Label"]].to_numpy().tolist() == [
        ["Müller, Jörg", "1"]
    ]


def test_a_table_in_another_encoding(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("ID,Label\nMüller,1\n", encoding="cp1252")
    with pytest.raises(DataError, match=r"t\.csv: is not UTF-8"):
        read_label_csv(path, ["ID", "Label"])


def test_blank_lines_and_short_rows(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(" ID ,Label,\n NA ,1,\n\n,,\nb\n")
    table = read_label_csv(path, ["ID", "Label"])
    assert table[["ID", "Label"]].to_numpy().tolist() == [["NA", "1"], ["b", ""]]
    assert list(table.index) == [0, 3]  # the line less 2


READS = "name,Category,R1:ICH,R1:IPH,R2:ICH,R2:IPH,R3:ICH,R3:IPH\n"


def test_cq500(tmp_path):
    rows = ["CQ500-CT-0,B1,1,1,1,0,0,0", "CQ500-CT-1,B1,1,1,0,0,0,0", "CQ500-CT-20,B2,1,1,1,1,1,1"]
    (tmp_path / "reads.csv").write_text("\ufeff" + READS + "\n".join(rows) + "\n\n")
    (tmp_path / "CQ500 notes").mkdir()
    for name in ("CQ500CT0 CQ500CT0", "CQ500CT1 CQ500CT1", "CQ500CT20 CQ500CT20"):
        folder = tmp_path / name / "Unknown Study" / "CT Plain"
        folder.mkdir(parents=True)
        write(folder)
    collection = Cq500Collection(tmp_path)
    scans = sorted(collection.scan_id(path, "1.2.3") for path in collection.files())
    assert scans == ["CQ500-CT-0", "CQ500-CT-1", "CQ500-CT-20"]
    assert [collection.scan_label(scan, []) for scan in scans] == [1, 0, 1]
    assert collection.slice_label("1.2.3.1") == UNKNOWN
    collection.check([(scan, []) for scan in scans[:2]])
    assert [(entry.scan, entry.file, entry.code) for entry in collection.entries] == [
        ("", "CQ500 notes", Code.OTHER_FOLDER),
        ("CQ500-CT-20", "reads.csv", Code.LABEL_UNUSED),
    ]
    with pytest.raises(DataError, match=r"reads\.csv: no row for 1 scans: CQ500-CT-7"):
        collection.check([("CQ500-CT-7", [])])


@pytest.mark.parametrize("of_folder", ["M\u00fcller", "Mu\u0308ller"])  # the latter as macOS writes it
def test_folder_with_an_umlaut(tmp_path, of_folder):
    (tmp_path / "labels.csv").write_text("scan,label\nM\u00fcller,1\n", encoding="utf-8")
    scan = ("1.2.3", [source("1.2.3.1", f"{of_folder}/x.dcm")])
    collection = FolderCollection(tmp_path, labelled=True)
    collection.check([scan])
    assert collection.scan_label(*scan) == 1
