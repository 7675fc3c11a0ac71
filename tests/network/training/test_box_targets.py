"""Targets of the location: boxes on the cropped picture, moved with it, and their loss by hand."""

import numpy as np
import pytest
import torch

from ich_mil.network.bags import ScanDataset
from ich_mil.network.pictures import Variation, vary
from ich_mil.network.training.augment import VariedScans
from ich_mil.network.training.box_targets import PARTS, box_target, location_loss, moved
from ich_mil.study.head_box import HeadBox

BOX = np.array([[0.25, 0.5, 0.5, 0.75]])


def edges_of(target):
    """First and last row, first and last column that are set."""
    rows, columns = torch.nonzero(target.any(1)), torch.nonzero(target.any(0))
    return [int(end) for ends in (rows, columns) for end in (ends[0], ends[-1])]


def test_a_box_lies_where_the_picture_shows_it():
    whole = box_target(BOX, HeadBox(0, 0, 96, 96), (96, 96))
    assert edges_of(whole) == [48, 71, 24, 47]
    assert whole.sum() == 24 * 24
    half = box_target(BOX, HeadBox(48, 0, 96, 48), (96, 96))  # twice as large
    assert edges_of(half) == [0, 47, 48, 95]
    wide = box_target(BOX, HeadBox(24, 0, 72, 96), (96, 96))  # padded to a square by 24 above and below
    assert edges_of(wide) == [48, 71, 24, 47]
    assert box_target(BOX, HeadBox(0, 60, 40, 96), (96, 96)).sum() == 0


def test_a_target_moves_with_its_picture():
    """A flip, a turn and a shift of a picture that shows the target itself."""
    matrix = torch.tensor([[-0.9, -0.2, 0.1], [-0.2, 0.9, -0.05]])
    variation = Variation(matrix, 0.0, 0.0, 0)
    target = box_target(BOX, HeadBox(0, 0, 96, 96), (96, 96))
    (shown,) = vary([target[None, None]], [variation], ((40.0, 80.0),))
    unknown = torch.full_like(target, torch.nan)
    both = moved(torch.stack([unknown, target]), variation)
    torch.testing.assert_close(both[1], shown[0], rtol=0, atol=1e-5)
    assert both[0].isnan().all()
    assert 0 < shown.sum() < PARTS**2


def test_the_loss_is_over_known_slices():
    logits = torch.tensor([[[2.0, -1.0]], [[0.5, 0.5]], [[5.0, 5.0]]])  # (3, 1, 2)
    targets = torch.zeros(3, PARTS, PARTS)
    targets[0, :, : PARTS // 4] = 1  # half of the first cell
    targets[2] = torch.nan
    p = torch.sigmoid(logits[:2])
    y = torch.tensor([[[0.5, 0.0]], [[0.0, 0.0]]])
    wanted = -(y * p.log() + (1 - y) * (1 - p).log()).mean()
    torch.testing.assert_close(location_loss(logits, targets), wanted)
    assert location_loss(logits[2:], targets[2:]) == 0


@pytest.mark.parametrize("augmented", [False, True])
def test_slices_with_boxes_and_negative_ones_are_known(prepared, augmented):
    positive = prepared.scans.index[prepared.scans.label == 1][0]
    negative = prepared.scans.index[prepared.scans.label == 0][0]
    rows = prepared.slices(positive)
    boxed = rows.sop[rows.slice_label == 1].iloc[0]
    scans = ScanDataset(prepared, [positive, negative], crop=True)
    varied = VariedScans(scans, seed=0, augmented=augmented, boxes={boxed: np.array([[0.3, 0.3, 0.7, 0.7]])})
    (first,), (second,) = (varied[0, place].targets for place in range(2))
    unknown = (rows.slice_label == 1) & (rows.sop != boxed)
    assert unknown.any()
    assert first.isnan().any(2).any(1).tolist() == unknown.tolist()
    inside = first[torch.tensor((rows.sop == boxed).tolist())]
    assert 0.05 < float(inside.mean()) < 0.7
    assert not first[torch.tensor((rows.slice_label == 0).tolist())].any()
    assert second.shape[1:] == (PARTS, PARTS)
    assert not second.any()


def test_without_boxes_there_are_no_targets(prepared):
    scans = ScanDataset(prepared, [prepared.scans.index[0]])
    assert VariedScans(scans, seed=0, augmented=True)[0, 0].targets == ()
