"""The same scans by several networks: order, slices that not all have, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ich_mil.errors import DataError
from ich_mil.sets.features import bare_features
from ich_mil.sets.views import Views


def view(names, x=0.0, labels=None):
    """Scans with these slices; features are `x`, `x` + 1, ..."""
    rows = [name for of_scan in names.values() for name in of_scan]
    return bare_features(
        np.arange(len(rows))[:, None] + x,
        np.array([len(of_scan) for of_scan in names.values()]),
        list(names),
        np.zeros(len(names)) if labels is None else np.array(labels),
        rows,
    )


def test_common_slices():
    """Scans come in the order of the first."""
    one, two = view({"s": "abc", "t": "d"}), view({"t": "yd", "s": "acx"}, 10)
    views = Views.of([one, two])
    assert views.common == ([[0, 2], [0]], [[0, 1], [1]])
    assert views.features.slice_names == ["a", "c", "d"]
    assert views.features.offsets.tolist() == [0, 2, 3]
    assert views.features.x.flatten().tolist() == [0, 2, 3]
    assert views.members[1].x.flatten().tolist() == [12, 13, 14, 10, 11]  # they judge by their own
    assert views.select(["t"]).common == ([[0]], [[1]])


def test_outputs_of_the_cnns_are_averaged():
    one, two = view({"s": "ab"}), view({"s": "ab"})
    one = replace(one, cnn_scan=torch.tensor([0.2]), cnn_slice=torch.tensor([0.1, 0.5]))
    two = replace(two, cnn_scan=torch.tensor([0.8]), cnn_slice=torch.tensor([0.3, 0.9]))
    found = Views.of([one, two]).features
    torch.testing.assert_close(found.cnn_scan, torch.tensor([0.5]))
    torch.testing.assert_close(found.cnn_slice, torch.tensor([0.2, 0.7]))
    assert Views.of([one]).features is one


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (view({"s": "ab", "u": "c"}), "second: its scans are not those of first: t, u"),
        (view({"s": "ba", "t": "c"}), "second: its slice names are not those of first, or in another order"),
        (view({"s": "ab", "t": "c"}, labels=[0, 1]), "second: its labels are not those of first"),
        (view({"s": "ab", "t": "x"}), "first: scans without a slice that all members have: t"),
    ],
)
def test_views_that_do_not_fit(other, words):
    with pytest.raises(DataError, match=words):
        Views.of([view({"s": "ab", "t": "c"}), other], ["first", "second"])
