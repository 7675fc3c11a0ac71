import io
import os
import subprocess
import sys

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


@pytest.mark.parametrize(
    "name", ["$", r"$\frac{$", "_hidden", "a" * 300, "<script>", "出血", "a\x00\udc80\nb"]
)
def test_names_are_drawn_as_they_are(labels, score, name):
    assert not same(reliability(labels, {name: score}), reliability(labels, {"": score}))


@pytest.mark.slow
def test_the_settings_of_a_user_have_no_part_in_figures(tmp_path):
    """A backend that is not installed here ends the import of matplotlib; TeX is slow or absent."""
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nfont.size: 40\nlines.linewidth: 9\n")
    code = (
        "import pandas as pd, sys\nfrom research.reproduce.figures import reliability\n"
        "import os, matplotlib\n"
        "assert matplotlib.rcParams['text.usetex'] == bool(os.environ.get('MPLBACKEND'))\n"
        "one = [.1, .9]\ntable = pd.DataFrame({'probability': one, 'share': one, 'low': one, 'high': one})\n"
        "sys.stdout.buffer.write(reliability({'a_$b': table}))"
    )
    drawn = []
    for settings in ({}, {"MPLBACKEND": "nonsense", "MATPLOTLIBRC": str(tmp_path)}):
        env = {**os.environ, "MPLBACKEND": "", **settings}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        drawn.append(done.stdout)
    assert drawn[0].startswith(b"\x89PNG")
    assert drawn[0] == drawn[1]
