"""Pixel counts by stored value and table lookup for one slice.

In: the stored values of one slice. Out: counts of pixels, and the slice mapped through a lookup table. Stored
values have at most 16 bits, so rules can be evaluated per value, lowest to highest, instead of per pixel.

Legend: `H, W` pixels, `V` values from the lowest to the highest stored value.
"""

import numpy as np

# Number of pixels per lookup block, which stays in the cache.
PIXELS_AT_ONCE = 1 << 15


class StoredValues:
    """Stored values of one slice and their range.

    Counting takes a pass over the slice and is done on demand, because most rules need only the value range.

    Attributes:
        stored: (H, W) integers of 8 or 16 bits.
        values: (V,) all integers from the lowest to the highest stored value; both ends occur.
    """

    def __init__(self, stored: np.ndarray) -> None:
        self.stored = stored
        lowest, highest = int(stored.min()), int(stored.max())
        self.values = np.arange(lowest, highest + 1, dtype=np.int32)
        self._n_below = {0: 0, self.values.size: stored.size}
        self._left_out = (0, 0)  # index into values, number of its pixels not to count

    def leave_out(self, value: int, n: int) -> None:
        """Subtract n pixels of `value` from later counts; for one value only."""
        self._left_out = (value - int(self.values[0]), n)

    def range_of(self, first: int, last: int) -> slice:
        """Slice of `values` from `first` to `last`, both included; empty outside the range."""
        lowest = int(self.values[0])
        return slice(max(first - lowest, 0), min(max(last + 1 - lowest, 0), self.values.size))

    def count(self, start: int, stop: int) -> int:
        """Number of pixels with a value in values[start:stop]."""
        if start >= stop:
            return 0
        for index in {start, stop} - self._n_below.keys():
            below = self.stored < self.stored.dtype.type(self.values[index])
            self._n_below[index] = int(np.count_nonzero(below))
        index, n = self._left_out
        return self._n_below[stop] - self._n_below[start] - (n if start <= index < stop else 0)

    def count_where(self, chosen: np.ndarray) -> int:
        """Number of pixels with a value selected by `chosen`, (V,) bool."""
        at = np.flatnonzero(chosen)
        if at.size == 0:
            return 0
        start, stop = int(at[0]), int(at[-1]) + 1
        if at.size == stop - start:  # one run, the usual case: comparing is ten times faster
            return self.count(start, stop)
        index, n = self._left_out
        return int(np.count_nonzero(self._take(chosen))) - (n if chosen[index] else 0)

    def look_up(self, table: np.ndarray) -> np.ndarray:
        """Map each pixel through `table`, (V,) int16, to int16 (H, W).

        Most tables equal clip(value, lowest, highest) + shift: slope 1, and at most a repair of padding below
        air. Clipping and adding takes a fifth of the time of the lookup.
        """
        rise = int(np.argmax(table != table[0]))  # first index above the lower limit
        shift = int(table[rise]) - int(self.values[rise])
        low, high = int(table[0]) - shift, int(table[-1]) - shift
        if not np.array_equal(table, self.values.clip(low, high) + shift):
            return self._take(table)
        limits = np.iinfo(self.stored.dtype)
        hu = self.stored.clip(max(low, limits.min), min(high, limits.max))
        hu = hu.astype(np.int16, order="C", copy=False)  # wraps modulo 2^16, like the sum
        hu += np.array(shift).astype(np.int16)
        return hu

    def _take(self, table: np.ndarray) -> np.ndarray:
        """Look up table[value - lowest] for each pixel, a few rows at a time."""
        taken = np.empty(self.stored.shape, dtype=table.dtype)
        rows = max(1, PIXELS_AT_ONCE // self.stored.shape[1])
        for first in range(0, len(taken), rows):
            index = self.stored[first : first + rows].astype(np.intp)
            index -= int(self.values[0])
            np.take(table, index, out=taken[first : first + rows], mode="clip")  # `clip` skips bounds checks
        return taken
