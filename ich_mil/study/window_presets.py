"""Display windows as settings: presets, parsing of [level, width] pairs in HU, HU that prepared sets keep.

Presets: `papers`, the authors' public notebooks; `winners`, the RSNA 2019 winning solution.
"""

import math
from collections.abc import Sequence

Windows = tuple[tuple[float, float], ...]
"""(level, width) of each channel, in HU."""

LOWEST, HIGHEST = -800, 3295
"""HU that a prepared set keeps; others are clipped. -800 is the lower end of the pages' bone window, 3295
follows from 12 bits; scanners give at most 3095."""

PRESETS: dict[str, Windows] = {
    "papers": ((40.0, 80.0), (80.0, 200.0), (30.0, 30.0)),
    "winners": ((40.0, 80.0), (80.0, 200.0), (40.0, 380.0)),
}


def parse_windows(value: str | Sequence[Sequence[float]]) -> Windows:
    """Convert a preset's name, or a list of [level, width] pairs in HU, to `Windows`.

    Raises:
        ValueError: unknown preset, not pairs, a number that is not finite, or a width that is not positive.
    """
    if isinstance(value, str):
        if value not in PRESETS:
            raise ValueError(
                f"windows must be one of {', '.join(PRESETS)} or a list of [level, width], got {value!r}"
            )
        return PRESETS[value]
    windows = tuple(tuple(float(v) for v in pair) for pair in value)
    if not windows or not all(
        len(pair) == 2 and all(map(math.isfinite, pair)) and pair[1] > 0 for pair in windows
    ):
        raise ValueError(f"windows must be finite pairs [level, width] with width > 0, got {value!r}")
    return tuple((pair[0], pair[1]) for pair in windows)
