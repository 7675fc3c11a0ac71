"""Feature files: written and read to the bit, public tables grouped by scan, NaN refused."""

from dataclasses import fields, replace

import pytest
import torch

from ich_mil.data.features import (
    UNKNOWN,
    FeatureSet,
    made_from,
    read_feature_csv,
    read_features,
    write_features,
)
from ich_mil.data.splits import patient_key
from ich_mil.errors import DataError


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
    write_features(nowhere, str(tmp_path / "f.safetensors"))
    assert same(read_features(str(tmp_path / "f.safetensors")), nowhere)
    assert nowhere.select(["b"]).positions_mm is None


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
    for value in (torch.nan, torch.inf):
        bad = replace(features, x=features.x.index_fill(0, torch.tensor([3]), value))
        told = "1 slices have features that are NaN or infinite, or beyond .*, the first is 'y'"
        with pytest.raises(DataError, match=told):
            write_features(bad, tmp_path / "f.safetensors")
    bad = replace(features, offsets=torch.tensor([0, 5, 5]))
    with pytest.raises(DataError, match="scan 'b' has no slice"):
        write_features(bad, tmp_path / "f.safetensors")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(DataError, match=r"folder\.safetensors: cannot be read as a feature file"):
        read_features(tmp_path / "folder.safetensors")
    (tmp_path / "g.safetensors").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"g\.safetensors: cannot be read as a feature file"):
        read_features(tmp_path / "g.safetensors")


HEADER = "feature_1,feature_0,bag_label,instance_name,bag_name,instance_label\n"


def test_a_public_table_is_grouped_by_scan(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("\ufeff" + HEADER + "1,10,1,i,B,0\n2,20,0,j,A,0\n3,30,1,k,B,1\n")
    table = read_feature_csv(path)
    assert table.scans == ["B", "A"]
    assert table.slice_names == ["i", "k", "j"]
    assert table.x.tolist() == [[10, 1], [30, 3], [20, 2]]  # columns by their number, not their order
    assert table.labels.tolist() == [1, 0]
    assert table.slice_labels.tolist() == [0, 1, 0]
    assert table.cnn_scan.isnan().all()


def test_slices_keep_their_order_in_a_long_table_of_mixed_scans(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(HEADER + "".join(f"{n},0,1,{n},{'AB'[n % 2]},0\n" for n in range(400)))
    table = read_feature_csv(path)
    assert table.slice_names == [str(n) for n in (*range(0, 400, 2), *range(1, 400, 2))]
    assert table.x[:, 1].tolist() == [float(name) for name in table.slice_names]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("1,10,2,i,B,0\n", "line 2: bag_label must be 0 or 1"),
        ("1,10,inf,i,B,0\n", "line 2: bag_label must be 0 or 1, got 'inf'"),
        ("1,10,1,i,B,0\n1,10,1,j,B,-1e400\n", "line 3: instance_label must be 0 or 1, got '-1e400'"),
        ("1,10,1,i,B,0\n1,10,0,j,B,0\n", "scan 'B' is labelled both 0 and 1"),
        (
            "1,10,0,i,B,0\n1,10,0,j,B,1\n",
            "scan 'B' is labelled 0, but its slice 'j' is labelled 1; correct one of them",
        ),
        ("1,,1,i,B,0\n", "NaN or infinite, or beyond 3.4e+38, the first is 'i'"),
        ("1,1,1,i,B,0\n1,-1e39,1,j,B,0\n", "NaN or infinite, or beyond 3.4e+38, the first is 'j'"),
        ("1,10,1,i,B,0\nx,10,1,j,B,0\n", "line 3: feature_1 must be a number, got 'x'"),
        ("1,10,1,i,,0\n", "line 2: bag_name or bag_label is empty"),
        ("", "holds no scan"),
        ("1,10,1,i,B,0\n1,10,1,j,B,0\n2,10,1,i,B,0\n", "line 4: slice 'i' of scan 'B' is there twice"),
        ("1,10,1,i,B,0,7\n", "line 2: 7 fields, but the header names 6"),
        ("1,10,1,i,B,0\n1,10,1,j,B,0,7\n", "line 3: 7 fields, but the header names 6"),
        ("1,10,1,i,B,0\n\nx,10,1,j,B,0\n", "line 4: feature_1 must be a number, got 'x'"),
        ("1,10,1,i,B,0\n\n1,10,,j,B,0\n", "line 4: bag_name or bag_label is empty"),
    ],
)
def test_public_tables_that_cannot_be_used(tmp_path, rows, message):
    path = tmp_path / "t.csv"
    path.write_text(HEADER + rows)
    with pytest.raises(DataError, match=r"t\.csv") as caught:
        read_feature_csv(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"t\.csv: no such table; put it there, or correct path or layout$"):
        read_feature_csv(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("last", "told"),
    [
        *(
            (f"i,B,{p}", rf"line 4: bag_cnn_probability must be .*\], got {p}")
            for p in ["35", "1.01", "-0.01"]
        ),
        ("j,C,0.9", "scan 'C' has more than one bag_cnn_probability"),
        ("i,B,", "scan 'B' has no bag_cnn_probability, but others have; fill it in, or leave"),
    ],
)
def test_what_is_no_probability_of_a_scan_is_refused(tmp_path, last, told):
    path = tmp_path / "t.csv"
    rows = f"1,1,i,A,0\n1,1,i,C,1\n1,1,{last}\n"
    path.write_text("feature_0,bag_label,instance_name,bag_name,bag_cnn_probability\n" + rows)
    with pytest.raises(DataError, match=rf"t\.csv: {told}"):
        read_feature_csv(path)


@pytest.mark.parametrize(("first", "second", "known"), [("0.5", "", True), ("", "", False)])
def test_a_probability_of_a_scan_may_stand_once_or_nowhere(tmp_path, first, second, known):
    path = tmp_path / "t.csv"
    header = "feature_0,bag_label,instance_name,bag_name,bag_cnn_probability\n"
    path.write_text(f"{header}1,1,i,A,{first}\n1,1,j,A,{second}\n")
    assert read_feature_csv(path).cnn_scan.isfinite().tolist() == [known]


@pytest.mark.realdata
def test_the_public_tables(shared_data):
    rsna = read_feature_csv(shared_data / "features" / "rsna150_d8_run2.csv")
    cq500 = read_feature_csv(shared_data / "features" / "cq500_d8_run2.csv")
    assert (rsna.n_scans, len(rsna.x), cq500.n_scans) == (150, 5254, 490)  # DATA.md
    assert int(cq500.labels.sum()) == 205


PATIENTS = "feature_0,bag_label,instance_name,bag_name,patient\n"


def test_scans_of_one_patient(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(PATIENTS + "1,1,i,A,Smith\n2,1,j,A,Smith \n3,0,i,B,Jones\n4,0,i,C,Smith\n")
    table = read_feature_csv(path)
    assert table.scans == ["A", "B", "C"]
    assert table.patients == [patient_key(name) for name in ("Smith", "Jones", "Smith")]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("1,1,i,A,p\n2,1,j,A,q\n", "scan 'A' has more than one patient"),
        ("1,1,i,A,p\n2,1,i,B, \n", "line 3: patient is empty; where it is not known write the bag_name"),
    ],
)
def test_patients_that_cannot_be_used(tmp_path, rows, message):
    path = tmp_path / "t.csv"
    path.write_text(PATIENTS + rows)
    with pytest.raises(DataError) as caught:
        read_feature_csv(path)
    assert str(caught.value) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PATIENTS.replace(",", ";"), "its columns are separated by ';', not by ','; save it with commas"),
        (PATIENTS.replace("patient", "bag_label"), "column bag_label is there twice; leave one"),
        (PATIENTS.replace("\n", ",patient\n"), "column patient is there twice; leave one"),
        (
            "scan,label,a,b,c\n",
            "column feature_0, bag_name, bag_label, instance_name is missing; found scan, label, a, b, c",
        ),
    ],
)
def test_headers_that_cannot_be_used(tmp_path, text, message):
    path = tmp_path / "t.csv"
    path.write_text(text + "1,0,i,A,0\n")
    with pytest.raises(DataError) as caught:
        read_feature_csv(path)
    assert message in str(caught.value)


def test_columns_without_a_name_are_left_alone(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(PATIENTS.replace("\n", ",,\n") + "1,0,i,A,p,,\n")
    assert read_feature_csv(path).scans == ["A"]


def test_a_gap_in_the_feature_columns_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("feature_0,feature_2,bag_label,instance_name,bag_name\n1,2,0,i,A\n")
    with pytest.raises(DataError, match=r"t\.csv: column feature_1 is missing"):
        read_feature_csv(path)


def test_bags_named_like_missing_values_and_slices_without_a_label(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(HEADER + "1,10,1,i,NA,0\n2,20,0,j,null,\n")
    table = read_feature_csv(path)
    assert table.scans == ["NA", "null"]
    assert table.slice_labels.tolist() == [0, UNKNOWN]


def test_a_file_knows_what_it_was_made_from(features, tmp_path):
    path = tmp_path / "f.safetensors"
    write_features(features, path, source="one")
    assert made_from(path, "one")
    assert not made_from(path, "two")
    assert not made_from(tmp_path / "none", "one")


def test_blanks_around_names_do_not_make_another_scan(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes((HEADER + '1,10,1, i,A ,0\n2,20,1,j,"A\r",1\n').encode())
    table = read_feature_csv(path)
    assert (table.scans, table.patients, table.slice_names) == (["A"], ["A"], ["i", "j"])


def table_of(path, rows, columns="bag_name,bag_label,instance_name,feature_0,feature_1"):
    path.write_text("\n".join([columns, *rows]) + "\n")
    return path


def test_a_scan_under_two_names_is_of_one_patient(tmp_path, capsys):
    def rows(scan, *slices, label=1, end=""):
        return [f"{scan},{label},{scan}-{n},{x},{y}{end}" for n, (x, y) in enumerate(slices)]

    one, other = [(1.5, 2.0), (3.0, 4.0)], [(1.5, 2.0), (5.0, 6.0)]
    lines = [*rows("a", *one), *rows("b", *other, label=0), *rows("c", *one[::-1])]
    found = read_feature_csv(table_of(tmp_path / "f.csv", lines))
    assert found.scans == ["a", "b", "c"]
    assert found.patients == ["a = c", "b", "a = c"]
    told = "scans with the slices of another, taken to be of its patient: 1, c (those of a)"
    assert f"{tmp_path / 'f.csv'}: {told}" in capsys.readouterr().out
    # a black slice, or a row of zeros, is no scan that one would know again
    read_feature_csv(table_of(tmp_path / "f.csv", [*rows("a", (0, 0)), *rows("b", (0, 0), (0, 0), label=0)]))
    assert capsys.readouterr().out == ""
    named = [
        *rows("a", *one, end=",anna"),
        *rows("b", *other, label=0, end=",berta"),
        *rows("c", *one, end=",berta"),
        *rows("d", (7, 8), (9, 9), end=",cleo"),
    ]
    columns = "bag_name,bag_label,instance_name,feature_0,feature_1,patient"
    found = read_feature_csv(table_of(tmp_path / "f.csv", named, columns))
    joined = f"{patient_key('anna')} = {patient_key('berta')}"
    assert found.patients == [joined, joined, joined, patient_key("cleo")]


@pytest.mark.realdata
def test_cq500_has_one_scan_under_two_names(shared_data):
    found = read_feature_csv(shared_data / "features" / "cq500_d8_run2.csv")
    twins = [scan for scan, patient in zip(found.scans, found.patients, strict=True) if scan != patient]
    assert twins == ["CQ500-CT-240", "CQ500-CT-75"]
    assert found.patients[found.scans.index("CQ500-CT-75")] == "CQ500-CT-240 = CQ500-CT-75"


def test_slices_of_chosen_scans_become_scans_with_their_own_labels(features):
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
    assert same(known.as_slices([]), known)
    assert known.as_slices(["a", "b"]).labels.tolist() == [0, 0, 1, 0, 1]
    assert known.select(["b", "a"]).as_slices(["a"]).scans == ["b", "a/v", "a/w"]
    with pytest.raises(DataError, match="slice 'z' has no label"):
        features.as_slices(["b"])
