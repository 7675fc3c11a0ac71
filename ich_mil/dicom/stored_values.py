"""The values that occur in a slice: how often each does, and a table of what each becomes.

In: the stored values of one slice. Out: counts of pixels, and the picture looked up in a table. Stored values
have at most 16 bits, so rules can be decided on those that may occur, lowest to highest, not on the pixels.

Legend: `H, W` pixels, `V` values that may occur.
"""

import numpy as np

# Pixels that are looked up in the table at once.
PIXELS_AT_ONCE = 1 << 15


class StoredValues:
    """The pixels of one slice and the list of the values that may occur in it.

    Counting is a pass over the picture, made only when a rule asks: most rules are decided by the values.

    Args:
        stored: (H, W) integers of 8 or 16 bits.

    Attributes:
        stored: the same.
        values: (V,) lowest to highest stored value; both occur.
    """

    def __init__(self, stored: np.ndarray) -> None:
        self.stored = stored
        lowest, highest = int(stored.min()), int(stored.max())
        self.values = np.arange(lowest, highest + 1, dtype=np.int32)
        self._n_below = {0: 0, self.values.size: stored.size}
        self._left_out = (0, 0)  # a place in values, and how many of its pixels are not counted

    def leave_out(self, value: int, n: int) -> None:
        """Count n pixels fewer of `value` from now on; for one value only."""
        self._left_out = (value - int(self.values[0]), n)

    def places_of(self, first: int, last: int) -> slice:
        """Where in `values` first to last stand, both included; empty where none may occur."""
        lowest = int(self.values[0])
        return slice(max(first - lowest, 0), min(max(last + 1 - lowest, 0), self.values.size))

    def count(self, start: int, stop: int) -> int:
        """Pixels whose value is one of values[start:stop]."""
        if start >= stop:
            return 0
        for place in (start, stop):
            if place not in self._n_below:
                below = self.stored < self.stored.dtype.type(self.values[place])
                self._n_below[place] = int(np.count_nonzero(below))
        place, n = self._left_out
        return self._n_below[stop] - self._n_below[start] - (n if start <= place < stop else 0)

    def count_where(self, chosen: np.ndarray) -> int:
        """Pixels whose value is chosen; `chosen` is (V,) bool."""
        at = np.flatnonzero(chosen)
        if at.size == 0:
            return 0
        start, stop = int(at[0]), int(at[-1]) + 1
        if at.size == stop - start:  # one run, as almost always: a comparison is ten times faster
            return self.count(start, stop)
        place, n = self._left_out
        return int(np.count_nonzero(self._take(chosen))) - (n if chosen[place] else 0)

    def look_up(self, table: np.ndarray) -> np.ndarray:
        """The entry of `table`, (V,) int16, for each pixel: int16 (H, W).

        Most tables are clip(value, lowest, highest) + shift: slope 1, and no repair but of padding that is
        less than air. These are clipped and added, at a fifth of the time of the look-up.
        """
        rise = int(np.argmax(table != table[0]))  # the first place off the lower limit
        shift = int(table[rise]) - int(self.values[rise])
        low, high = int(table[0]) - shift, int(table[-1]) - shift
        if np.array_equal(table, self.values.clip(low, high) + shift):
            limits = np.iinfo(self.stored.dtype)
            hu = self.stored.clip(max(low, limits.min), min(high, limits.max))
            hu = hu.astype(np.int16, order="C", copy=False)  # modulo 2^16, as the sum is
            hu += np.array(shift).astype(np.int16)
            return hu
        return self._take(table)

    def _take(self, table: np.ndarray) -> np.ndarray:
        """table[value - lowest] of each pixel, a few rows at a time: their places stay in the cache."""
        taken = np.empty(self.stored.shape, dtype=table.dtype)
        rows = max(1, PIXELS_AT_ONCE // self.stored.shape[1])
        for first in range(0, len(taken), rows):
            places = self.stored[first : first + rows].astype(np.intp)
            places -= int(self.values[0])
            np.take(table, places, out=taken[first : first + rows], mode="clip")  # `clip` looks up unchecked
        return taken
