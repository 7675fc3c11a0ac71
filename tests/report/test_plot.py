import numpy as np
import pandas as pd

from ich_mil.report.plot import BOTTOM, LEFT, RIGHT, TOP, UNIT, Axes, make_plot


def plot_of(frame, axes=UNIT, **options):
    return make_plot({"GP": pd.DataFrame(frame)}, axes, title="t", labels=("x", "y"), **options)


def numbers(points):
    return np.array([pair.split(",") for pair in points.split()], dtype=float)


def test_points_and_bands_lie_at_their_coordinates():
    plot = plot_of(
        {"x": [0.0, 1.0], "y": [0.0, 1.0], "low": [0.0, 0.5], "high": [0.5, 1.0]}, reference=[(0, 1)]
    )
    (line,) = plot.lines
    np.testing.assert_allclose(numbers(line.points), [(LEFT, BOTTOM), (RIGHT, TOP)])
    middle = (TOP + BOTTOM) / 2
    np.testing.assert_allclose(
        numbers(line.band), [(LEFT, BOTTOM), (RIGHT, middle), (RIGHT, TOP), (LEFT, middle)]
    )
    np.testing.assert_allclose(numbers(plot.reference), [(LEFT, TOP)])
    assert [text for _, text in plot.x_ticks] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]


def test_unknown_values_and_those_below_the_axes_are_left_out():
    line = plot_of({"x": [0.0, 0.2, 0.4], "y": [0.5, np.nan, -3.0]}).lines[0]
    dot = LEFT, (TOP + BOTTOM) / 2
    np.testing.assert_allclose(numbers(line.points), [dot, dot])
    assert line.band == ""
    bare = plot_of({"x": [0.0, 1.0], "y": [0.5, 0.5], "low": [np.nan] * 2, "high": [np.nan] * 2}).lines[0]
    assert len(numbers(bare.points)) == 2
    assert bare.band == ""


def test_a_band_stays_within_the_axes():
    line = plot_of({"x": [0.0, 1.0], "y": [0.5, 0.5], "low": [-2.0, 0.1], "high": [9.0, 0.9]}).lines[0]
    down = numbers(line.band)[:, 1]
    assert (down.min(), down.max()) == (TOP, BOTTOM)


def test_ticks_of_epochs_are_whole():
    for last in (1, 2, 9):
        plot = plot_of({"x": [0, last], "y": [0.5, 0.6]}, Axes((0, last)), whole_x=True)
        assert plot.x_ticks
        assert all(float(text).is_integer() for _, text in plot.x_ticks)
