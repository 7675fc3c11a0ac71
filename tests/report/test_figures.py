import base64
import io

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread

from ich_mil.report import figures


def pixels(png):
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return imread(io.BytesIO(png), format="png")


def same(first, second):
    return first.shape == second.shape and bool((first == second).all())


@pytest.fixture
def labels():
    return np.array([0, 1, 0, 1, 1, -1])


@pytest.fixture
def score():
    return np.array([0.1, 0.4, 0.6, 0.8, 0.9, 0.5])


def test_data_uri_holds_the_bytes():
    assert (
        base64.b64decode(figures.data_uri(b"\x00\xff").removeprefix("data:image/png;base64,")) == b"\x00\xff"
    )


def test_strip_shows_each_of_its_inputs():
    p = np.linspace(0.1, 0.9, 9)
    versions = [
        figures.slice_strip(p),
        figures.slice_strip(p[::-1]),
        figures.slice_strip(p, p - 0.1, p + 0.1),
        figures.slice_strip(p, shown=[2]),
        figures.slice_strip(p, labels=np.array([0, 0, 0, 0, 0, 0, 1, 1, -1])),
    ]
    arrays = [pixels(png) for png in versions]
    assert len({array.tobytes() for array in arrays}) == 5
    assert same(arrays[0], pixels(figures.slice_strip(p, labels=np.zeros(9))))
    assert same(arrays[0], pixels(figures.slice_strip(p.copy())))


@pytest.mark.parametrize("n", [1, 400])
def test_strip_of_one_and_of_many_slices(n):
    assert pixels(figures.slice_strip(np.full(n, 0.3), np.zeros(n), np.ones(n))).shape[2] == 4


def test_roc_and_reliability_change_with_the_scores(labels, score):
    for draw in (figures.roc_curves, figures.reliability):
        assert not same(pixels(draw(labels, {"GP": score})), pixels(draw(labels, {"GP": score[::-1].copy()})))
        assert not same(pixels(draw(labels, {"GP": score})), pixels(draw(labels, {"CNN": score})))


def test_unlabelled_scans_take_no_part(labels, score):
    moved = np.where(labels < 0, 0.01, score)
    for draw in (figures.roc_curves, figures.reliability):
        assert same(pixels(draw(labels, {"GP": score})), pixels(draw(labels, {"GP": moved})))


@pytest.mark.parametrize(
    "name", ["$", r"$\frac{$", "_hidden", "a" * 300, "<script>", "出血", "a\x00\udc80\nb"]
)
def test_names_are_drawn_as_they_are(labels, score, name):
    assert not same(
        pixels(figures.roc_curves(labels, {name: score})), pixels(figures.roc_curves(labels, {"": score}))
    )
    curves = pd.DataFrame({name: [1.0, 2.0, 3.0]})
    other = pd.DataFrame({name: [1.0, 5.0, 3.0]})
    assert not same(pixels(figures.training_curves(curves)), pixels(figures.training_curves(other)))


def test_more_models_than_colours(labels, score):
    many = {f"model {i}": score for i in range(9)}
    first = dict(list(many.items())[: figures.MAX_CURVES])
    for draw in (figures.roc_curves, figures.reliability):
        assert same(pixels(draw(labels, many)), pixels(draw(labels, first)))


def test_training_curves_bridge_missing_values_and_split_losses():
    curves = pd.DataFrame({"train_loss": [0.9, np.nan, 0.5], "val_auc": [np.nan, 0.6, np.nan]})
    both = pixels(figures.training_curves(curves))
    assert both.shape[1] > pixels(figures.training_curves(curves[["train_loss"]])).shape[1]
    straight = pd.DataFrame({"train_loss": [0.9, 0.5]}, index=[0, 2])
    assert same(
        pixels(figures.training_curves(curves[["train_loss"]])), pixels(figures.training_curves(straight))
    )


def test_picture_is_the_image_in_grey():
    image = np.array([[0.0, 0.2], [0.6, 1.0]])
    array = pixels(figures.slice_picture(image))[..., :3]
    np.testing.assert_allclose(array, np.repeat(image[..., None], 3, axis=2), atol=1 / 255)  # 8 bits


def test_overlay_is_clear_where_it_is_zero_negative_or_nan_and_strongest_at_the_top():
    image = np.full((2, 2), 0.5)
    overlay = np.array([[0.0, -3.0], [np.nan, 2.0]])
    array = pixels(figures.slice_picture(image, overlay, colours=figures.STD_COLOURS, top=2.0))[..., :3]
    np.testing.assert_allclose(array[[0, 0, 1], [0, 1, 0]], 0.5, atol=1 / 255)
    expected = 0.15 * 0.5 + 0.85 * np.array(figures.STD_COLOURS(1.0)[:3])
    np.testing.assert_allclose(array[1, 1], expected, atol=1 / 255)
    weaker = pixels(figures.slice_picture(image, overlay, top=8.0))
    assert not same(weaker, pixels(figures.slice_picture(image, overlay, top=2.0)))


def test_a_map_of_zeros_leaves_the_image():
    image = np.linspace(0, 1, 16).reshape(4, 4)
    assert same(
        pixels(figures.slice_picture(image, np.zeros((2, 2)), top=0.0)), pixels(figures.slice_picture(image))
    )


def test_a_coarse_map_is_spread_over_the_image():
    coarse = np.array([[0.0, 1.0], [0.0, 0.0]])
    array = pixels(figures.slice_picture(np.zeros((64, 64)), coarse))[..., :3].sum(axis=2)
    assert (
        np.unravel_index(array.argmax(), array.shape)[0]
        < 32
        <= np.unravel_index(array.argmax(), array.shape)[1]
    )
    assert array[-8:, :8].max() == 0


@pytest.mark.parametrize("shape", [(512, 512), (600, 300), (257, 40)])
def test_large_pictures_shrink_by_block_means(shape):
    array = pixels(figures.slice_picture(np.full(shape, 0.4)))
    assert max(array.shape[:2]) <= figures.PICTURE_PIXELS
    np.testing.assert_allclose(array[..., :3], 0.4, atol=1 / 255)
    checked = (
        np.indices((512, 512)).sum(axis=0) % 2
    )  # black and white in turn: every 2 x 2 block averages to ½
    np.testing.assert_allclose(pixels(figures.slice_picture(checked))[..., :3], 0.5, atol=1 / 255)


def test_pictures_name_no_address():
    for png in (figures.slice_picture(np.zeros((3, 3))), figures.slice_strip(np.array([0.5]))):
        assert b"http" not in png
