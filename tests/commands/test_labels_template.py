"""The table of labels to fill in: a row for each study, and what is filled in is read."""

import pandas as pd
from pydicom import dcmread

from ich_mil.sets.store import open_prepared
from tests import phantoms
from tests.runs_for_tests import refused, run


def test_the_template_lists_the_studies_and_is_read_once_it_is_filled_in(tmp_path, capsys):
    root = phantoms.cq500(tmp_path / "site", studies=3)
    (root / "reads.csv").unlink()
    for number, folder in enumerate(sorted(root.iterdir()), start=1):
        for path in folder.rglob("*.dcm"):
            phantoms.rewrite(path, AccessionNumber=f"00{number}")
        folder.rename(root / f"{number:03d}")
    assert run("labels-template", root) == 0
    table = pd.read_csv(root / "labels.csv", dtype=str, keep_default_na=False)
    assert table.columns.tolist() == ["folder", "accession", "study", "label"]
    assert table.folder.tolist() == table.accession.tolist() == ["001", "002", "003"]
    assert set(table.label) == {""}
    assert "labels.csv: exists already" in refused(capsys, "labels-template", root)

    filled = table.assign(folder=[1, 2, 3], accession=[1, 2, 3], label=["yes", "no", ""])
    (root / "labels.csv").unlink()
    filled.to_excel(root / "Labels.xlsx", index=False)
    assert run("prepare", root, "--layout", "folder", "--out", tmp_path / "set", "--jobs", 1) == 0
    prepared = open_prepared(tmp_path / "set")
    assert prepared.scans.label.to_dict() == {table.study[0]: 1, table.study[1]: 0}
    assert [prepared.folders[scan] for scan in table.study] == ["001", "002", "003"]


def test_the_template_keeps_umlauts_in_excel_and_is_read_back(tmp_path):
    root = phantoms.cq500(tmp_path / "site", studies=2)
    (root / "reads.csv").unlink()
    for name, folder in zip(("Köpf", "Größe"), sorted(root.iterdir()), strict=True):
        folder.rename(root / name)
    assert run("labels-template", root) == 0
    text = (root / "labels.csv").read_bytes()
    assert text.startswith(b"\xef\xbb\xbffolder,")  # the byte order mark that Excel takes for UTF-8
    rows = text.decode("utf-8-sig").splitlines()
    (root / "labels.csv").write_text("\n".join([rows[0], rows[1] + "1", rows[2] + "0"]), "utf-8-sig")
    assert run("prepare", root, "--layout", "folder", "--out", tmp_path / "set", "--jobs", 1) == 0
    prepared = open_prepared(tmp_path / "set")
    labels = {prepared.folders[scan]: label for scan, label in prepared.scans.label.items()}
    assert labels == {"Größe": 1, "Köpf": 0}


def test_a_study_without_a_usable_slice_is_named(tmp_path, capsys):
    root = phantoms.cq500(tmp_path / "site", studies=2)
    (root / "reads.csv").unlink()
    lost = sorted(root.iterdir())[0]
    for path in lost.rglob("*.dcm"):
        phantoms.rewrite(path, ImagePositionPatient=None)
        uid = dcmread(path).StudyInstanceUID
    assert run("labels-template", root) == 0
    assert len(pd.read_csv(root / "labels.csv")) == 1
    told = capsys.readouterr().out
    assert f"without a usable slice, so not in the table: 1 ({uid}: none of its" in told


def test_a_folder_without_ct_gets_no_template(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("no picture")
    assert f"{tmp_path}: holds no CT slice" in refused(capsys, "labels-template", tmp_path)
    assert not (tmp_path / "labels.csv").exists()
