"""Windows by hand, presets, and resizing."""

import pytest
import torch

from ich_mil.windows import PRESETS, apply_windows, parse_windows, resize


def test_hand_computed_values_of_the_papers_preset():
    hu = torch.tensor([[[-1000, 0, 20, 30], [40, 80, 180, 3000]]], dtype=torch.int16)
    brain, blood, soft = apply_windows(hu, PRESETS["papers"])[0]
    # brain 40/80 spans 0..80, blood 80/200 spans -20..180, soft tissue 30/30 spans 15..45
    torch.testing.assert_close(brain, torch.tensor([[0, 0, 0.25, 0.375], [0.5, 1, 1, 1]]), rtol=1e-6, atol=0)
    torch.testing.assert_close(
        blood, torch.tensor([[0, 0.1, 0.2, 0.25], [0.3, 0.5, 1, 1]]), rtol=1e-6, atol=1e-7
    )
    torch.testing.assert_close(
        soft, torch.tensor([[0, 0, 1 / 6, 0.5], [5 / 6, 1, 1, 1]]), rtol=1e-6, atol=1e-7
    )


def test_winners_soft_tissue_spans_minus_150_to_230():
    hu = torch.tensor([[[-150.0, 40.0, 230.0]]])
    assert apply_windows(hu, PRESETS["winners"])[0, 2].tolist() == [[0.0, 0.5, 1.0]]


def test_free_choice_and_refusals():
    assert parse_windows([[50, 100]]) == ((50.0, 100.0),)
    for wrong in ("brian", [[40, 0]], [[40]], []):
        with pytest.raises(ValueError, match="windows must be"):
            parse_windows(wrong)


def test_resize_keeps_the_mean_and_pads_to_a_square_with_air():
    pictures = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    small = resize(pictures, 16)
    torch.testing.assert_close(small.mean((2, 3)), pictures.mean((2, 3)), rtol=2e-2, atol=0)
    wide = resize(torch.ones(1, 1, 10, 20), 20)
    assert wide[0, 0, :5].sum() == 0
    assert wide[0, 0, 5:15].eq(1).all()
    assert wide[0, 0, 15:].sum() == 0
    assert resize(pictures, 64) is pictures
