"""Which rank of the calibration scores makes a threshold that keeps its promise.

In: the number n of calibration scans of one class, and the promise. Out: a rank k. With the scores of the
class in order, s₍₁₎ ≤ ... ≤ s₍ₙ₎, a future scan of the class is *lost* where its score is below s₍ₖ₎. The
promise bounds the share of lost scans by a = 1 - `share`.

Whatever the model, the share F of all future scans below s₍ₖ₎ is Beta(k, n + 1 - k) over calibration sets, or
smaller where scores tie, since only those strictly below are lost. Each method takes the largest k with

    risk_control   P(F ≤ a) = P(Binomial(n, a) ≥ k) ≥ confidence
    next_scans     P(M ≤ ⌊a m⌋) = P(Hypergeometric(n + m, n, k + ⌊a m⌋) ≥ k) ≥ confidence,
                   M of the next m scans of the class lost
    conformal      E F ≤ k / (n + 1) ≤ a: on average over calibration sets, with no confidence

`conformal` is Mondrian split conformal prediction by class (Vovk et al. 2005; Angelopoulos & Bates 2021).
`risk_control` is its validity given the calibration set (Vovk 2012; Park et al. 2020), which is risk control
by an exact binomial test (Bates et al. 2021; Angelopoulos et al. 2021). `next_scans` is the order statistics'
answer for a finite future (Wilks 1942): the one that can be audited by counting, for a share counted on m
scans scatters around F, so that F ≤ a is no promise that the count keeps to it.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal, get_args

from scipy.stats import binom, hypergeom

Method = Literal["risk_control", "next_scans", "conformal"]
METHODS: tuple[Method, ...] = get_args(Method)

_MOST = 10**9
"""More scans than anybody has: where the search for the number needed ends."""


def allowed(share: float, m: int) -> int:
    """⌊m (1 - share)⌋ for the decimal number as it is written: 1 of 10 at 0.9, where floats give 0."""
    return math.floor(m * (1 - Fraction(str(float(share)))))


def chance_always(rank: int, n: int, share: float) -> float:
    """P(F ≤ 1 - share): the threshold at `rank` of `n` keeps the promise on all future scans of the class."""
    return float(binom.sf(rank - 1, n, 1 - share))


def chance_next(rank: int, n: int, share: float, m: int) -> float:
    """P(M ≤ ⌊m (1 - share)⌋): the threshold at `rank` of `n` keeps the promise on the next `m` of the class.

    Of n + m scores in random order, M ≤ a if and only if the k + a lowest hold at least k calibration scores.
    """
    return float(hypergeom.sf(rank - 1, n + m, n, rank + allowed(share, m)))


@dataclass(frozen=True)
class Promise:
    """What is promised for one class.

    Attributes:
        method: one of `METHODS`.
        share: of the class that is not lost, at least, in (0, 1).
        confidence: in (0, 1); not used by `conformal`.
        ahead: m of `next_scans`, else None.
    """

    method: Method
    share: float
    confidence: float
    ahead: int | None = None

    def kept(self, rank: int, n: int) -> bool:
        """Whether the threshold at `rank` of `n` keeps the promise; where it does not, no higher one does."""
        if self.method == "conformal":
            return rank <= allowed(self.share, n + 1)
        if self.ahead is None:
            return chance_always(rank, n, self.share) >= self.confidence
        return chance_next(rank, n, self.share, self.ahead) >= self.confidence

    def rank(self, n: int) -> int:
        """The largest rank that keeps the promise, 0 where none does."""
        return _rank(self, n)

    def needed(self) -> int:
        """The smallest number of calibration scans of the class with which some rank keeps the promise."""
        return 1 + bisect_left(range(1, _MOST), True, key=lambda n: self.kept(1, n))


@lru_cache(maxsize=1024)
def _rank(promise: Promise, n: int) -> int:
    return bisect_left(range(1, n + 1), True, key=lambda rank: not promise.kept(rank, n))
