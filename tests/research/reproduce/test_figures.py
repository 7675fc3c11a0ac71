import io

import numpy as np
import pytest
from matplotlib.image import imread

from ich_mil.evaluate.curves import calibration_table
from research.reproduce import figures


def pixels(png):
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert b"http" not in png  # matplotlib's default metadata has an address
    return imread(io.BytesIO(png), format="png")


def same(first, second):
    return first.shape == second.shape and bool((first == second).all())


@pytest.fixture
def labels():
    return np.array([0, 1, 0, 1, 1, -1])


@pytest.fixture
def score():
    return np.array([0.1, 0.4, 0.6, 0.8, 0.9, 0.5])


def reliability(labels, scores):
    patients = [str(b) for b in range(len(labels))]
    tables = {
        name: calibration_table(labels, score, patients, seed=0, resamples=50)
        for name, score in scores.items()
    }
    return pixels(figures.reliability(tables))


def test_intervals_of_the_reliability_are_drawn():
    table = calibration_table(np.arange(20) % 2, np.full(20, 0.4), [f"{b}" for b in range(20)], seed=0)
    drawn = pixels(figures.reliability({"GP": table}))
    assert not same(drawn, pixels(figures.reliability({"GP": table.assign(low=table.share)})))
    assert not same(drawn, pixels(figures.reliability({"GP": table.assign(high=table.share)})))


@pytest.mark.parametrize("name", ["$", r"$\frac{$", "_hidden", "a\x00\udc80\nb"])
def test_names_are_drawn_as_they_are(labels, score, name):
    assert not same(reliability(labels, {name: score}), reliability(labels, {"": score}))
