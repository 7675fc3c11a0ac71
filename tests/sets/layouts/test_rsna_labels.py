"""Label table of RSNA 2019 and the submission: values, memory, what is refused."""

import csv
import tracemalloc

import numpy as np
import pytest

from ich_mil.errors import DataError
from ich_mil.sets.layouts.rsna_labels import KINDS, is_rsna_table, read_rsna_labels, write_submission

IMAGES = 752_803
"""Images of RSNA 2019."""
MOST_BYTES = 500e6


def write(path, rows):
    path.write_text("ID,Label\n" + "".join(f"{name},{label}\n" for name, label in rows))
    return path


def test_matrix_has_every_label_in_any_order(tmp_path):
    truth = np.random.default_rng(0).integers(2, size=(40, 6))
    rows = [(f"ID_{i:09x}_{kind}", truth[i, k]) for i in range(40) for k, kind in enumerate(KINDS)]
    order = np.random.default_rng(1).permutation(len(rows))
    labels = read_rsna_labels(write(tmp_path / "t.csv", [rows[k] for k in order] + rows[:12]))
    images = [f"ID_{i:09x}" for i in range(39, -1, -1)]
    np.testing.assert_array_equal(labels.matrix(images), truth[::-1])
    assert labels.label(images[0], "subdural") == truth[39, 4]
    assert labels.label("ID_x", "any") is None
    assert labels.repeats == {"ID_000000000": 2, "ID_000000001": 2}


def test_missing_kind_is_named_with_its_images(tmp_path):
    rows = [(f"ID_{i}_{kind}", 0) for i in range(5) for kind in KINDS if (i, kind) != (3, "subdural")]
    labels = read_rsna_labels(write(tmp_path / "t.csv", rows))
    assert labels.matrix(["ID_0", "ID_4"]).tolist() == [[0] * 6] * 2
    with pytest.raises(DataError, match=r"t\.csv: 1 images lack the row 'subdural': ID_3"):
        labels.matrix(["ID_3"])


def test_memory_of_the_whole_table_stays_bounded(tmp_path):
    """Peak for each image, by the same reader on fewer images, times the images of the challenge."""
    n = 20_000
    path = write(tmp_path / "t.csv", ((f"ID_{i:09x}_{kind}", 0) for i in range(n) for kind in KINDS))
    tracemalloc.start()
    labels = read_rsna_labels(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(labels.rows) == n
    assert peak / n * IMAGES < MOST_BYTES


def test_only_the_header_of_the_challenge_is_known(tmp_path):
    assert is_rsna_table(write(tmp_path / "t.csv", []))
    (tmp_path / "t.csv").write_text("\ufeffid, label\r\n")
    assert is_rsna_table(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("scan,subdural\n")
    assert not is_rsna_table(tmp_path / "t.csv")


def test_submission_has_six_rows_an_image(tmp_path):
    write_submission(tmp_path / "s.csv", ["ID_b", "ID_a"], np.arange(12).reshape(2, 6) / 16)
    with (tmp_path / "s.csv").open(newline="") as file:
        rows = [*csv.reader(file)]
    assert rows[0] == ["ID", "Label"]
    assert [row[0] for row in rows[1:]] == [f"{image}_{kind}" for image in ("ID_b", "ID_a") for kind in KINDS]
    assert [float(row[1]) for row in rows[1:]] == (np.arange(12) / 16).tolist()
