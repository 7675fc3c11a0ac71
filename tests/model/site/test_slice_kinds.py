"""Targets of RSNA 2019: a run, `subtype` on its held-out scans, `predict` to `submission.csv`."""

import csv
import json
import shutil

import numpy as np
import pytest

from ich_mil.errors import ModelError
from ich_mil.model.site.slice_kinds import SliceKinds
from ich_mil.sets.layouts.rsna_labels import KINDS
from tests import phantoms
from tests.runs_for_tests import refused, run

pytestmark = pytest.mark.filterwarnings("ignore:probabilities are")


@pytest.fixture(scope="module")
def kinds(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("kinds") / "kinds"
    assert run(*words(tiny, tiny / "a" / "stage_2_train.csv", out)) == 0
    return out


def words(tiny, table, out):
    return "subtype", tiny / "run", "--model", tiny / "run", "--kinds", table, "--out", out


def read(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_held_out_measures_are_stored(kinds):
    about = json.loads((kinds / "slice_kinds.json").read_text())
    assert about["kinds"] == list(KINDS)
    assert about["patients"] == 8  # half of the 16 studies of the run
    for name in ("weighted_log_loss", "of_the_shares_in_training", "difference"):
        value, low, high = about[name]
        assert low <= value <= high
    own, base = (about[name][0] for name in ("weighted_log_loss", "of_the_shares_in_training"))
    assert own - base == pytest.approx(about["difference"][0])


def test_submission_has_every_image(tiny, kinds, tmp_path):
    root = phantoms.rsna(tmp_path / "set", studies=2, seed=5) / "stage_2_train"
    files = sorted(root.iterdir())
    files[3].write_bytes(files[3].read_bytes()[:600])  # truncated
    shutil.copy(files[0], root / "notes.txt")
    out = tmp_path / "out"
    assert run("predict", root, "--model", tiny / "run", "--kinds", kinds, "--out", out, "--jobs", 1) == 0
    header, *rows = read(out / "submission.csv")
    assert header == ["ID", "Label"]
    given = {name: float(label) for name, label in rows}
    assert given.keys() == {f"{path.stem}_{kind}" for path in files for kind in KINDS}
    assert len(rows) == len(given)
    shares = json.loads((kinds / "slice_kinds.json").read_text())["shares"]
    assert [given[f"{files[3].stem}_{kind}"] for kind in KINDS] == pytest.approx(shares, abs=1e-6)
    assert len({given[f"{path.stem}_any"] for path in files}) > len(files) // 2


def test_probabilities_follow_the_features():
    """A kind that a feature shows is predicted; a rare kind has its share."""
    y = np.zeros((200, 6), int)
    y[:100, [1, 5]] = 1
    y[:3, 0] = 1
    x = {"network 0": np.random.default_rng(0).normal(size=(200, 3)) + 5 * y[:, [1, 0, 0]]}
    model = SliceKinds.fit(x, y)
    p = model.predict(x)
    assert ((p[:, 1] > 0.5) == (y[:, 1] == 1)).mean() > 0.95
    np.testing.assert_allclose(p[:, 0], 4 / 202)


def test_what_is_refused(tiny, kinds, tmp_path, capsys):
    table = tiny / "a" / "stage_2_train.csv"
    lines = table.read_text().splitlines()
    name, _ = lines[1].split(",")
    image, _ = name.rsplit("_", 1)
    for content, message in (
        ([line for line in lines if not line.split(",")[0].endswith("_subdural")], "lack the row 'subdural'"),
        ([*lines, f"{name},{1 - int(lines[1][-1])}"], f"labelled both 0 and 1: {image}"),
        ([lines[0], *(line.replace("ID_", "ID_x") for line in lines[1:])], "has no image of the predictions"),
        ([*lines, "ID_1_chronic,0"], "got 'ID_1_chronic'"),
    ):
        (tmp_path / "t.csv").write_text("\n".join(content) + "\n")
        assert message in refused(capsys, *words(tiny, tmp_path / "t.csv", tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    assert "holds kinds already" in refused(capsys, *words(tiny, table, kinds))
    other = ("subtype", tmp_path, "--model", tiny / "run", "--kinds", table, "--out", tmp_path / "out")
    assert "holds no predictions.json" in refused(capsys, *other)
    with pytest.raises(ModelError, match="belongs to another model"):
        SliceKinds.load(kinds, weights="another")


def test_images_without_a_row_are_left_out(tiny, tmp_path, capsys):
    table = tiny / "a" / "stage_2_train.csv"
    lines = table.read_text().splitlines()
    scans = read(tiny / "run" / "test" / "slices.csv")
    image = scans[1][scans[0].index("name")]
    (tmp_path / "t.csv").write_text("\n".join(line for line in lines if image not in line) + "\n")
    assert run(*words(tiny, tmp_path / "t.csv", tmp_path / "out")) == 0
    assert f"1 slices have no row and are left out: {image}" in capsys.readouterr().out
