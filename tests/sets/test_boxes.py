"""Boxes of slices: fractions of the picture, and what is refused."""

import numpy as np
import pytest

from ich_mil.errors import DataError
from ich_mil.sets.boxes import read_boxes

HEADER = "slice,kind,x,y,width,height\n"


def test_boxes_are_edges_by_slice(tmp_path):
    rows = "a,subdural,0.5,0.4,0.2,0.4\nb,epidural,1,1,1,1\na,subdural,0.1,0.1,0.2,0.2\n"
    (tmp_path / "boxes.csv").write_text(HEADER + rows)
    boxes = read_boxes(tmp_path)
    assert boxes.keys() == {"a", "b"}
    np.testing.assert_allclose(boxes["a"], [[0.4, 0.2, 0.6, 0.6], [0, 0, 0.2, 0.2]], atol=1e-12)
    np.testing.assert_allclose(boxes["b"], [[0.5, 0.5, 1.5, 1.5]])


def test_a_set_without_boxes_has_none(tmp_path):
    assert read_boxes(tmp_path) == {}


@pytest.mark.parametrize("value", ["", "1.2", "-0.1", "12 px"])
def test_a_value_that_is_no_fraction_is_refused_with_its_line(tmp_path, value):
    (tmp_path / "boxes.csv").write_text(HEADER + f"a,,0.5,0.5,0.1,0.1\nb,,0.5,0.5,0.1,{value}\n")
    with pytest.raises(DataError, match=r"boxes\.csv: line 3: .*fractions"):
        read_boxes(tmp_path)


def test_a_missing_column_is_refused(tmp_path):
    (tmp_path / "boxes.csv").write_text("slice,x,y,w,h\na,0.5,0.5,0.1,0.1\n")
    with pytest.raises(DataError, match="column width, height is missing"):
        read_boxes(tmp_path)
