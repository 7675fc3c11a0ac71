"""Colours and style of matplotlib's figures.

Colours are those of Okabe and Ito (2008), which are distinct for the colour-blind.
"""

import matplotlib

ORANGE, SKY, VERMILION = "#e69f00", "#56b4e9", "#d55e00"
GREY = "#727986"
"""Colour of text and axes: contrast above 4.2 : 1 against both page backgrounds, white and near-black."""

own_style = matplotlib.rc_context(
    {name: value for name, value in matplotlib.rcParamsDefault.items() if "backend" not in name}
)
"""Decorator for drawing functions: matplotlib's defaults instead of user settings such as `text.usetex`."""
