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
from ich_mil.report import figures
from ich_mil.report.canvas import GREY
from ich_mil.reproduce import figures as protocol_figures


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


def roc(labels, scores):
    return pixels(figures.roc_curves(labels, scores))


def reliability(labels, scores):
    patients = [str(b) for b in range(len(labels))]
    tables = {
        name: calibration_table(labels, score, patients, seed=0, resamples=50)
        for name, score in scores.items()
    }
    return pixels(figures.reliability(tables))


def test_unlabelled_scans_take_no_part(labels, score):
    moved = np.where(labels < 0, 0.01, score)
    for draw in (roc, reliability):
        assert same(draw(labels, {"GP": score}), draw(labels, {"GP": moved}))


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
    assert not same(
        pixels(figures.roc_curves(labels, {name: score})), pixels(figures.roc_curves(labels, {"": score}))
    )
    curves = pd.DataFrame({name: [1.0, 2.0, 3.0]})
    other = pd.DataFrame({name: [1.0, 5.0, 3.0]})
    assert not same(pixels(figures.training_curves(curves)), pixels(figures.training_curves(other)))


def test_more_models_than_colours(labels, score):
    many = {f"model {i}": score for i in range(8)}
    for draw in (roc, reliability):
        assert not same(draw(labels, many), draw(labels, many | {"model 8": score}))
        assert not same(draw(labels, many), draw(labels, many | {"model 7": score[::-1]}))


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

    draw = protocol_figures.auc_and_time
    eight = pixels(draw(heads(8, 0.9)))
    assert not same(eight, pixels(draw(heads(8, 0.8))))
    lines = [(f"line {i}", pd.DataFrame({"x": [0.0, 1.0], "y": [0.0, float(i)]})) for i in range(8)]
    few, many = (
        pixels(protocol_figures.curves(part, x="x", y="y", labels=("x", "y"))) for part in (lines[:7], lines)
    )
    assert not same(few, many)
    monkeypatch.setattr(protocol_figures, "MARKS", ("o",))  # two of one colour have other marks
    assert not same(eight, pixels(draw(heads(8, 0.9))))


def test_training_curves_bridge_missing_values_and_split_losses():
    curves = pd.DataFrame({"train_loss": [0.9, np.nan, 0.5], "val_auc": [np.nan, 0.6, np.nan]})
    both = pixels(figures.training_curves(curves))
    assert both.shape[1] > pixels(figures.training_curves(curves[["train_loss"]])).shape[1]
    straight = pd.DataFrame({"train_loss": [0.9, 0.5]}, index=[0, 2])
    assert same(
        pixels(figures.training_curves(curves[["train_loss"]])), pixels(figures.training_curves(straight))
    )


@pytest.mark.parametrize("epochs", [1, 2, 9])
def test_ticks_of_epochs_are_whole(epochs, monkeypatch):
    monkeypatch.setattr(figures, "to_png", lambda figure: figure)
    (ax,) = figures.training_curves(pd.DataFrame({"loss": np.linspace(1, 0.5, epochs)})).axes
    low, high = ax.get_xlim()
    ticks = [tick for tick in ax.get_xticks() if low <= tick <= high]
    assert ticks
    assert all(tick == round(tick) for tick in ticks)


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
    """A backend that is not installed here ends the import of matplotlib; TeX is slow or absent."""
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nfont.size: 40\nlines.linewidth: 9\n")
    code = (
        "import numpy as np, sys\nfrom ich_mil.report.figures import roc_curves\n"
        "import os, matplotlib\n"
        "assert matplotlib.rcParams['text.usetex'] == bool(os.environ.get('MPLBACKEND'))\n"
        "sys.stdout.buffer.write(roc_curves(np.array([0, 1, 0, 1]), {'a_$b': np.array([.1, .9, .4, .3])}))"
    )
    drawn = []
    for settings in ({}, {"MPLBACKEND": "nonsense", "MATPLOTLIBRC": str(tmp_path)}):
        env = {**os.environ, "MPLBACKEND": "", **settings}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        drawn.append(done.stdout)
    assert drawn[0].startswith(b"\x89PNG")
    assert drawn[0] == drawn[1]
