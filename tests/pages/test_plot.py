"""Plots: coordinates of lines and bands in the SVG, ticks, and nothing that the page's policy refuses."""

import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from ich_mil.pages.plot import make_plot

LEFT, RIGHT, TOP, BOTTOM = 66, 586, 14, 424
"""Edges of the axes in the SVG."""
MIDDLE = (TOP + BOTTOM) / 2


def groups(frames, **options):
    """Points of the path of each styled group of the plot, by class, and the texts."""
    frames = frames if isinstance(next(iter(frames.values())), dict) else {"GP": frames}
    plot = make_plot(
        {name: pd.DataFrame(frame) for name, frame in frames.items()}, title="t", labels=("x", "y"), **options
    )
    root = ElementTree.fromstring(f"<svg>{plot.svg}</svg>")
    points = {
        group.attrib["class"]: np.array(
            re.findall(r"([\d.-]+) ([\d.-]+)", group.find("path").attrib["d"]), float
        )
        for group in root.iter("g")
        if "class" in group.attrib
    }
    return points, [text.text for text in root.iter("text")], plot


def test_points_and_bands_lie_at_their_coordinates():
    frame = {"x": [0.0, 1.0], "y": [0.0, 1.0], "low": [-2.0, 0.5], "high": [0.5, 9.0]}
    points, texts, _ = groups(frame, reference=[(0, 1), (1, 0)])
    np.testing.assert_allclose(points["curve line0"], [(LEFT, BOTTOM), (RIGHT, TOP)])
    np.testing.assert_allclose(points["reference"], [(LEFT, TOP), (RIGHT, BOTTOM)])
    corners = {(LEFT, BOTTOM), (LEFT, MIDDLE), (RIGHT, MIDDLE), (RIGHT, TOP)}  # within the axes
    assert {*map(tuple, points["band line0"])} == corners
    ticks = ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert texts == [*ticks, "x", *ticks, "y"]


def test_unknown_and_low_values_are_left_out():
    points, *_ = groups({"x": [0.0, 0.2, 0.4, 1.0], "y": [0.5, np.nan, -3.0, 0.5]})
    np.testing.assert_allclose(points["curve line0"], [(LEFT, MIDDLE), (RIGHT, MIDDLE)])
    points, *_ = groups({"x": [0.0], "y": [0.5], "low": [np.nan], "high": [np.nan]})
    np.testing.assert_allclose(points["curve line0"], [(LEFT, MIDDLE)] * 2)  # a dot
    assert "band line0" not in points


@pytest.mark.parametrize("last", [1, 2, 9])
def test_ticks_of_epochs_are_whole(last):
    _, texts, _ = groups({"x": [0, last], "y": [0.5, 0.6]}, x=(0, last), whole_x=True)
    ticks = texts[: texts.index("x")]
    assert ticks
    assert all(float(tick).is_integer() for tick in ticks)


def test_a_plot_is_deterministic_and_without_styles():
    frames = {name: {"x": [0, 1], "y": [0.2, 0.4], "low": [0, 0.3], "high": [0.3, 0.5]} for name in "abcde"}
    points, _, plot = groups(frames)
    assert {*points} >= {f"{kind} line{number}" for kind in ("curve", "band") for number in range(4)}
    assert not re.search(r"\b(style|id|url|http|metadata)\b", plot.svg)
    assert groups(frames)[2] == plot
