"""Windows by hand, presets, and resizing."""

import numpy as np
import pytest
import torch

from ich_mil.network.windows import apply_windows, resize, scaled
from ich_mil.study.window_presets import PRESETS, parse_windows


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


def test_spans_of_the_winners_preset():
    for channel, span in enumerate(([0, 40, 80], [-20, 80, 180], [-150, 40, 230])):
        hu = torch.tensor([[span]], dtype=torch.int16)
        assert apply_windows(hu, PRESETS["winners"])[0, channel].tolist() == [[0.0, 0.5, 1.0]]


def by_the_formula(hu, windows):
    """LINEAR_EXACT in float32, without torch and without a table."""
    channels = [
        np.clip((hu.astype(np.float32) - np.float32(level)) / np.float32(width) + np.float32(0.5), 0, 1)
        for level, width in windows
    ]
    return torch.from_numpy(np.stack(channels, axis=1))


GPU = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")],
)
ODD = ((37.3, 83.7), (-600.0, 1500.0), (30000.5, 1.0))


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("windows", [*PRESETS.values(), ODD], ids=[*PRESETS, "odd"])
def test_every_int16_value_equals_the_formula(windows, device):
    every = np.arange(-32768, 32768).astype(np.int16).reshape(4, 128, 128)
    pictures = apply_windows(torch.from_numpy(every).to(device), windows)
    assert pictures.dtype == torch.float32
    assert torch.equal(pictures.cpu(), by_the_formula(every, windows))


def test_windows_of_a_strided_stack():
    stack = torch.arange(-500, 1236, dtype=torch.int16).view(4, 14, 31)
    part = stack[::2, 1:13, ::3]  # no two pixels side by side in memory
    whole = apply_windows(stack, PRESETS["papers"])
    assert torch.equal(apply_windows(part, PRESETS["papers"]), whole[::2, :, 1:13, ::3])
    assert apply_windows(stack[:0], PRESETS["papers"]).shape == (0, 3, 14, 31)


def test_result_and_input_are_not_shared():
    hu = torch.tensor([[[40, 80]]], dtype=torch.int16)
    first = apply_windows(hu, PRESETS["papers"])
    first.fill_(7)
    assert apply_windows(hu, PRESETS["papers"])[0, 0].tolist() == [[0.5, 1.0]]
    assert hu.tolist() == [[[40, 80]]]


def test_an_array_or_a_single_slice_is_refused():
    with pytest.raises(TypeError, match=r"\(torch\.from_numpy\), got ndarray of int16"):
        apply_windows(np.zeros((1, 2, 2), np.int16), PRESETS["papers"])
    with pytest.raises(ValueError, match=r"a stack of slices \(n, H, W\), got shape \(4, 2\)"):
        apply_windows(torch.zeros(4, 2, dtype=torch.int16), PRESETS["papers"])


def test_free_choice_and_refusals():
    assert repr(parse_windows([[50, 100]])) == "((50.0, 100.0),)"  # the same text whoever wrote them
    for wrong in ("brian", [[40, 0]], [[40]], [[40, 80, 1]], []):
        with pytest.raises(ValueError, match="windows must be"):
            parse_windows(wrong)


def test_resize_keeps_the_mean_and_pads_with_air():
    pictures = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    small = resize(pictures, 16)
    torch.testing.assert_close(small.mean((2, 3)), pictures.mean((2, 3)), rtol=2e-2, atol=0)
    wide = resize(torch.ones(1, 1, 10, 20), 20)
    assert wide[0, 0, :5].sum() == 0
    assert wide[0, 0, 5:15].eq(1).all()
    assert wide[0, 0, 15:].sum() == 0
    assert resize(pictures, 64) is pictures


def test_odd_padding_is_right_and_below():
    tall, wide = torch.ones(1, 1, 5, 4), torch.ones(1, 1, 4, 5)
    assert resize(tall, 5)[0, 0].sum(0).tolist() == [5, 5, 5, 5, 0]
    assert resize(wide, 5)[0, 0].sum(1).tolist() == [5, 5, 5, 5, 0]


def test_enlarging_is_bilinear_between_pixel_centres():
    found = scaled(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]]), 3, 4)
    torch.testing.assert_close(found[0, 0], torch.tensor([[0.0, 0.25, 0.75, 1.0]] * 3), rtol=1e-6, atol=0)


def test_every_pixel_counts_where_a_picture_shrinks():
    # of four pixels bilinear interpolation alone would take the two in the middle
    stripes = torch.tensor([1.0, 0.0, 0.0, 1.0]).repeat(64, 16)[None, None]
    inner = resize(stripes, 16)[..., 1:-1]
    torch.testing.assert_close(inner, torch.full_like(inner, 0.5), rtol=0, atol=0.1)
