"""Feature files: written and read to the bit, public tables grouped by scan, NaN refused."""

from dataclasses import fields, replace

import pytest
import torch

from ich_mil.errors import DataError
from ich_mil.sets.features import UNKNOWN, FeatureSet, read_feature_table, read_features, write_features
from ich_mil.sets.splits import patient_key


@pytest.fixture
def features():
    torch.manual_seed(0)
    return FeatureSet(
        x=torch.randn(5, 2),
        offsets=torch.tensor([0, 2, 5]),
        scans=["a", "b"],
        patients=["p", "q"],
        labels=torch.tensor([0, 1]),
        slice_names=list("vwxyz"),
        slice_labels=torch.tensor([0, 0, 1, 0, -1]),
        positions=torch.linspace(0, 1, 5),
        cnn_scan=torch.tensor([0.1, 0.9]),
        cnn_slice=torch.rand(5),
        attention=torch.rand(5),
        positions_mm=torch.tensor([-5.0, 0.1, 7.0, 12.0, 17.5], dtype=torch.float64),
    )


def same(a: FeatureSet, b: FeatureSet) -> bool:
    return all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
        for x, y in ((getattr(a, f.name), getattr(b, f.name)) for f in fields(FeatureSet))
    )


def test_a_file_reads_back_to_the_bit(features, tmp_path):
    write_features(features, tmp_path / "new" / "f.safetensors")
    assert same(read_features(tmp_path / "new" / "f.safetensors"), features)
    nowhere = replace(features, positions_mm=None)
    write_features(nowhere, tmp_path / "f.safetensors")
    assert same(read_features(tmp_path / "f.safetensors"), nowhere)


def test_selecting_reorders_scans_with_their_slices(features):
    turned = features.select(["b", "a"])
    assert turned.slice_names == ["x", "y", "z", "v", "w"]
    assert torch.equal(turned.x, features.x[[2, 3, 4, 0, 1]])
    assert turned.offsets.tolist() == [0, 3, 5]
    assert turned.patients == ["q", "p"]
    assert turned.labels.tolist() == [1, 0]
    assert torch.equal(turned.cnn_scan, features.cnn_scan[[1, 0]])
    for name in ("slice_labels", "positions", "cnn_slice", "attention", "positions_mm"):
        assert torch.equal(getattr(turned, name), getattr(features, name)[[2, 3, 4, 0, 1]]), name
    assert same(turned.select(["a", "b"]), features)
    with pytest.raises(DataError, match="'c'"):
        features.select(["c"])


def test_nan_and_foreign_files_are_refused(features, tmp_path):
    bad = replace(features, x=features.x.index_fill(0, torch.tensor([3]), torch.inf))
    with pytest.raises(DataError, match=r"1 slices have features that are NaN or infinite.* 'y'"):
        write_features(bad, tmp_path / "f.safetensors")
    bad = replace(features, offsets=torch.tensor([0, 5, 5]))
    with pytest.raises(DataError, match="scan 'b' has no slice"):
        write_features(bad, tmp_path / "f.safetensors")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "g.safetensors").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"g\.safetensors: cannot be read as a feature file"):
        read_features(tmp_path / "g.safetensors")


HEADER = "feature_1,feature_0,bag_label,instance_name,bag_name,instance_label\n"


def read(path, text):
    path.write_text(text)
    return read_feature_table(path)


def test_a_public_table_is_grouped_by_scan(tmp_path):
    """Columns go by their number, rows keep their order, blanks and columns without a name do not count."""
    header = HEADER.replace("\n", ",,\n")
    table = read(
        tmp_path / "t.csv",
        f"\ufeff{header}1,10,1,i,NA,0,,\n2,20,0, j, A,0,,\n3,30,1,k ,NA,1,,\n4,4,0,l,A,,,\n",
    )
    assert table.scans == table.patients == ["NA", "A"]
    assert table.slice_names == ["i", "k", "j", "l"]
    assert table.x.tolist() == [[10, 1], [30, 3], [20, 2], [4, 4]]
    assert table.labels.tolist() == [1, 0]
    assert table.slice_labels.tolist() == [0, 1, 0, UNKNOWN]
    assert table.cnn_scan.isnan().all()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("1,10,2,i,B,0", "line 2: bag_label must be 0 or 1, got '2'"),
        ("1,10,1,i,B,0\n1,10,0,j,B,0", "scan 'B' has more than one bag_label"),
        ("1,10,0,i,B,0\n1,10,0,j,B,1", "scan 'B' is labelled 0, but its slice 'j' is labelled 1"),
        ("1,,1,i,B,0", "NaN or infinite, .* 'i'"),
        ("1,1,1,i,B,0\n1,-1e39,1,j,B,0", r"beyond 3\.4e\+38, .* 'j'"),
        ("1,10,1,i,B,0\n\nx,10,1,j,B,0", "line 4: feature_1 must be a number, got 'x'"),
        ("1,10,1,i,B,0\n\n1,10,,j,B,0", "line 4: bag_name or bag_label is empty"),
        ("", "holds no scan"),
        ("1,10,1,i,B,0\n1,10,1,j,B,0\n2,10,1,i,B,0", "line 4: slice 'i' of scan 'B' occurs twice"),
        ("1,10,1,i,B,0\n1,10,1,j,B,0,7", "line 3: 7 fields"),
    ],
)
def test_bad_public_tables(tmp_path, rows, message):
    with pytest.raises(DataError, match=rf"^[^\n]*t\.csv: .*{message}[^\n]*$"):
        read(tmp_path / "t.csv", HEADER + rows)


CNN = "feature_0,bag_label,instance_name,bag_name,bag_cnn_probability\n"


@pytest.mark.parametrize(("first", "known"), [("0.5", True), ("", False)])
def test_probability_once_or_nowhere(tmp_path, first, known):
    table = read(tmp_path / "t.csv", f"{CNN}1,1,i,A,{first}\n1,1,j,A,\n")
    assert table.cnn_scan.isfinite().tolist() == [known]
    with pytest.raises(DataError, match=r"t\.csv: line 2: bag_cnn_probability .*\], got 1\.01"):
        read(tmp_path / "t.csv", f"{CNN}1,1,i,A,1.01\n")


@pytest.mark.realdata
def test_the_public_tables(rsna_features, cq500_features):
    assert (rsna_features.n_scans, len(rsna_features.x), cq500_features.n_scans) == (
        150,
        5254,
        490,
    )  # DATA.md
    assert int(cq500_features.labels.sum()) == 205
    pairs = zip(cq500_features.scans, cq500_features.patients, strict=True)
    twins = {scan: patient for scan, patient in pairs if scan != patient}
    assert twins == dict.fromkeys(["CQ500-CT-240", "CQ500-CT-75"], "CQ500-CT-240 = CQ500-CT-75")


PATIENTS = "feature_0,bag_label,instance_name,bag_name,patient\n"


def test_scans_of_one_patient(tmp_path):
    table = read(
        tmp_path / "t.csv", PATIENTS + "1,1,i,A,Smith\n2,1,j,A,Smith \n3,0,i,B,Jones\n4,0,i,C,Smith\n"
    )
    assert table.scans == ["A", "B", "C"]
    assert table.patients == [patient_key(name) for name in ("Smith", "Jones", "Smith")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PATIENTS + "1,1,i,A,p\n2,1,j,A,q\n", "scan 'A' has more than one patient"),
        (PATIENTS + "1,1,i,A,p\n2,1,i,B, \n", "line 3: patient is empty"),
        ("scan,label\n1,0\n", "feature_0, bag_name, bag_label and 1 more is missing, found scan, label"),
        ("feature_0,feature_2,bag_label,instance_name,bag_name\n1,2,0,i,A\n", "feature_1 is missing"),
    ],
)
def test_bad_patients_and_headers(tmp_path, text, message):
    with pytest.raises(DataError, match=rf"t\.csv: {message}"):
        read(tmp_path / "t.csv", text)


def test_scan_under_two_names(tmp_path, capsys):
    def rows(scan, *slices, label=1, patient=""):
        return [f"{x},{y},{label},{n},{scan},{patient or scan}\n" for n, (x, y) in enumerate(slices)]

    path, header = tmp_path / "f.csv", "feature_0,feature_1,bag_label,instance_name,bag_name,patient\n"
    bare, keys = header.replace("patient", "other"), dict(zip("abcd", map(patient_key, "abcd"), strict=True))
    one, other = [(1.5, 2.0), (3.0, 4.0)], [(1.5, 2.0), (5.0, 6.0)]
    lines = [*rows("a", *one), *rows("b", *other, label=0), *rows("c", *one[::-1])]
    found = read(path, bare + "".join(lines))
    assert found.patients == ["a = c", "b", "a = c"]
    said = capsys.readouterr().out
    assert said.startswith(f"{path}: ")
    assert "c (those of a)" in said
    lines = [*rows("a", *one), *rows("b", *other, label=0), *rows("c", *one, patient="b"), *rows("d", (7, 8))]
    joined = f"{keys['a']} = {keys['b']}"
    assert read(path, header + "".join(lines)).patients == [joined, joined, joined, keys["d"]]


def test_as_slices(features):
    known = replace(features, slice_labels=torch.tensor([0, 0, 1, 0, 1]))
    apart = known.as_slices(["b"])
    assert apart.scans == ["a", "b/x", "b/y", "b/z"]
    assert apart.patients == ["p", "q", "q", "q"]
    assert apart.offsets.tolist() == [0, 2, 3, 4, 5]
    assert apart.labels.tolist() == [0, 1, 0, 1]
    assert apart.cnn_scan.tolist() == [features.cnn_scan[0], *features.cnn_slice[2:]]
    assert apart.attention.tolist() == [*features.attention[:2], 1, 1, 1]
    assert torch.equal(apart.x, features.x)
    assert same(apart.select(["b/y"]), replace(apart.select(["b/y"]), x=features.x[3:4]))
    assert known.select(["b", "a"]).as_slices(["a"]).scans == ["b", "a/v", "a/w"]
    with pytest.raises(DataError, match="slice 'z' has no label"):
        features.as_slices(["b"])
