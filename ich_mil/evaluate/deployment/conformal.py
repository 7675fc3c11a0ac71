"""Conformal thresholds: the order statistic of the calibration scores that guarantees a target rate.

In: the number n of calibration scans of one class, and the guarantee. Out: the rank k of the threshold. With
the ordered scores of the class, s₍₁₎ ≤ ... ≤ s₍ₙ₎, a future scan of the class is *lost* if its score is below
s₍ₖ₎. The guarantee bounds the fraction of lost scans by a = 1 - `share`. Applied to positive scans, `share`
is the target sensitivity.

For any model, the fraction F of all future scans below s₍ₖ₎ has the distribution Beta(k, n + 1 - k) over
calibration sets. With tied scores it is stochastically smaller, since only scores strictly below are lost.
Each method takes the largest k with

    risk_control   P(F ≤ a) = P(Binomial(n, a) ≥ k) ≥ confidence
    next_scans     P(M ≤ ⌊a m⌋) = P(Hypergeometric(n + m, n, k + ⌊a m⌋) ≥ k) ≥ confidence,
                   where M of the next m scans of the class are lost
    conformal      E F ≤ k / (n + 1) ≤ a: on average over calibration sets, without a confidence level

`conformal` is Mondrian split conformal prediction by class (Vovk et al. 2005; Angelopoulos & Bates 2021).
`risk_control` is its validity conditional on the calibration set (Vovk 2012; Park et al. 2020), which equals
risk control by an exact binomial test (Bates et al. 2021; Angelopoulos et al. 2021). `next_scans` is the
order-statistics result for a finite future sample (Wilks 1942). It is the only guarantee that can be audited
by counting: the fraction counted on m scans varies around F, so F ≤ a does not bound it.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal, get_args

Method = Literal["risk_control", "next_scans", "conformal"]
METHODS: tuple[Method, ...] = get_args(Method)

_MOST = 10**9
"""Upper limit of the search for the required number of scans."""


def allowed(share: float, m: int) -> int:
    """⌊m (1 - share)⌋ in exact decimal arithmetic: 1 for m = 10 and share 0.9, where floats give 0."""
    return math.floor(m * (1 - Fraction(str(float(share)))))


def chance_always(rank: int, n: int, share: float) -> float:
    """P(F ≤ 1 - share): probability that the threshold at `rank` of `n` is valid for all future scans."""
    from scipy.stats import binom  # slow to import, and predictions do without

    return float(binom.sf(rank - 1, n, 1 - share))


def chance_next(rank: int, n: int, share: float, m: int) -> float:
    """P(M ≤ ⌊m (1 - share)⌋): probability that the threshold at `rank` of `n` is valid for `m` scans.

    M is the number of lost scans among the next `m` of the class. With a = ⌊m (1 - share)⌋ and n + m scores
    in random order, M ≤ a if and only if the rank + a lowest scores contain at least `rank` calibration
    scores.
    """
    from scipy.stats import hypergeom

    return float(hypergeom.sf(rank - 1, n + m, n, rank + allowed(share, m)))


@dataclass(frozen=True)
class Promise:
    """Guarantee for the scans of one class.

    Attributes:
        method: one of `METHODS`.
        share: minimum fraction of the class that is not lost, in (0, 1).
        confidence: in (0, 1); not used by `conformal`.
        ahead: m of `next_scans`, else None.
    """

    method: Method
    share: float
    confidence: float
    ahead: int | None = None

    def kept(self, rank: int, n: int) -> bool:
        """Whether the threshold at `rank` of `n` satisfies the guarantee; if not, no higher rank does."""
        if self.method == "conformal":
            return rank <= allowed(self.share, n + 1)
        if self.ahead is None:
            return chance_always(rank, n, self.share) >= self.confidence
        return chance_next(rank, n, self.share, self.ahead) >= self.confidence

    def rank(self, n: int) -> int:
        """Largest rank that satisfies the guarantee; 0 if none does."""
        return _rank(self, n)

    def needed(self) -> int:
        """Smallest number of calibration scans of the class for which some rank satisfies the guarantee."""
        return 1 + bisect_left(range(1, _MOST), True, key=lambda n: self.kept(1, n))


@lru_cache(maxsize=1024)
def _rank(promise: Promise, n: int) -> int:
    return bisect_left(range(1, n + 1), True, key=lambda rank: not promise.kept(rank, n))
