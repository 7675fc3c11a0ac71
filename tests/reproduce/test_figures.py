import io
import os
import re
import subprocess
import sys
from importlib.resources import files

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from ich_mil.evaluate.event_rates import calibration_table
from ich_mil.report.canvas import GREY
from ich_mil.reproduce import figures


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


def test_unlabelled_scans_take_no_part(labels, score):
    moved = np.where(labels < 0, 0.01, score)
    assert same(reliability(labels, {"GP": score}), reliability(labels, {"GP": moved}))


def test_intervals_of_the_reliability_are_drawn():
    table = calibration_table(np.arange(20) % 2, np.full(20, 0.4), [f"{b}" for b in range(20)], seed=0)
    drawn = pixels(figures.reliability({"GP": table}))
    assert not same(drawn, pixels(figures.reliability({"GP": table.assign(low=table.share)})))
    assert not same(drawn, pixels(figures.reliability({"GP": table.assign(high=table.share)})))


def test_a_share_without_an_interval_is_drawn_all_the_same(labels, score):
    table = calibration_table(labels, score, ["a"] * 6, seed=0)
    assert table.low.isna().all()
    moved = table.assign(share=1 - table.share)
    assert not same(pixels(figures.reliability({"GP": table})), pixels(figures.reliability({"GP": moved})))


@pytest.mark.parametrize(
    "name", ["$", r"$\frac{$", "_hidden", "a" * 300, "<script>", "出血", "a\x00\udc80\nb"]
)
def test_names_are_drawn_as_they_are(labels, score, name):
    assert not same(reliability(labels, {name: score}), reliability(labels, {"": score}))


def test_more_models_than_colours(labels, score):
    many = {f"model {i}": score for i in range(8)}
    for changed in ({"model 8": score}, {"model 7": score[::-1]}):
        assert not same(reliability(labels, many), reliability(labels, many | changed))


def test_every_head_of_a_protocol_is_drawn(monkeypatch):
    def heads(n, last):
        return pd.DataFrame(
            {
                "model": [f"head {i}" for i in range(n)],
                "n_inducing": 50,
                "mean": [0.9] * (n - 1) + [last],
                "std": 0.01,
                "seconds": np.arange(n) + 1.0,
            }
        )

    draw = figures.auc_and_time
    eight = pixels(draw(heads(8, 0.9)))
    assert not same(eight, pixels(draw(heads(8, 0.8))))
    lines = [(f"line {i}", pd.DataFrame({"x": [0.0, 1.0], "y": [0.0, float(i)]})) for i in range(8)]
    few, many = (pixels(figures.curves(part, x="x", y="y", labels=("x", "y"))) for part in (lines[:7], lines))
    assert not same(few, many)
    monkeypatch.setattr(figures, "MARKS", ("o",))  # two of one colour have other marks
    assert not same(eight, pixels(draw(heads(8, 0.9))))


def test_grey_text_is_read_on_both_grounds_of_the_page():
    def light(colour):  # WCAG 2.2, relative luminance
        parts = np.array(to_rgb(colour))
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    style = files("ich_mil.report").joinpath("templates", "style.css").read_text()
    grounds = set(re.findall(r"--ground: (#\w+);", style))
    assert len(grounds) == 2
    for ground in grounds:
        dark, bright = sorted([light(GREY), light(ground)])
        assert (bright + 0.05) / (dark + 0.05) > 4.2


@pytest.mark.slow
def test_the_settings_of_a_user_have_no_part_in_figures(tmp_path):
    """TeX is slow or absent."""
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nfont.size: 40\nlines.linewidth: 9\n")
    code = (
        "import pandas as pd, sys\nfrom ich_mil.reproduce.figures import reliability\n"
        "import os, matplotlib\n"
        "assert matplotlib.rcParams['text.usetex'] == bool(os.environ.get('MATPLOTLIBRC'))\n"
        "one = [.1, .9]\ntable = pd.DataFrame({'probability': one, 'share': one, 'low': one, 'high': one})\n"
        "sys.stdout.buffer.write(reliability({'a_$b': table}))"
    )
    drawn = []
    for settings in ({}, {"MATPLOTLIBRC": str(tmp_path)}):
        env = {**os.environ, **settings}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        drawn.append(done.stdout)
    assert drawn[0].startswith(b"\x89PNG")
    assert drawn[0] == drawn[1]
