"""Joint samples of a scan's slices against independent ones: what the correlation does to the uncertainty.

In: for each scan its deviation from both kinds of samples, its number of slices, its loss. Out: a table.

Shapes: B scans.
"""

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from ich_mil.errors import DataError
from ich_mil.evaluate.metrics import equal_mass
from ich_mil.evaluate.uncertainty import risk_coverage, scan_rows


def _rank_correlation(uncertainty: np.ndarray, loss: np.ndarray) -> float:
    """Spearman's; NaN where either is constant."""
    if np.ptp(uncertainty) == 0 or np.ptp(loss) == 0:
        return float("nan")
    return float(spearmanr(uncertainty, loss).statistic)


def joint_against_independent(
    joint: np.ndarray, independent: np.ndarray, slices: np.ndarray, loss: np.ndarray, *, bins: int = 5
) -> pd.DataFrame:
    """What keeping the correlation between slices does to the uncertainty of scans.

    Joint samples are those of `ich_mil.gp.predict.predict`, independent ones those of `independent_scans`,
    which treat the slices of a scan as separate chances: their scan spread depends on the number of slices.

    Args:
        joint: (B,) scan deviation from joint samples.
        independent: (B,) from independent ones.
        slices: (B,) slices of each scan.
        loss: (B,) the loss of the call that is made; the same for both.
        bins: largest number of bins of about equally many scans, by number of slices.

    Returns:
        A row for all scans (`scans` 'all'), then one a bin ('by slices'); columns `scans`, `slices_low`,
        `slices_high`, `n`, `joint` and `independent` (mean deviation), `ratio` (of the two means, independent
        / joint), `aurc_joint`, `aurc_independent`, `correlation_joint`, `correlation_independent`
        (Spearman's, with the loss), `note`.

    Raises:
        DataError: no scan; a value that is not finite; a joint deviation that is not above 0.
    """
    joint, independent, slices, loss = scan_rows(
        joint=joint, independent=independent, slices=slices, loss=loss
    )
    if joint.min() <= 0 or independent.min() < 0:
        worst = min(joint.min(), independent.min())
        raise DataError(f"standard deviations must be above 0, got {worst:g}; predict with more samples")
    place = equal_mass(slices, bins)
    rows = []
    for number in (None, *np.unique(place)):
        chosen = np.ones(len(place), dtype=bool) if number is None else place == number
        a, b, part = joint[chosen], independent[chosen], loss[chosen]
        correlations = _rank_correlation(a, part), _rank_correlation(b, part)
        rows.append(
            {
                "scans": "all" if number is None else "by slices",
                "slices_low": int(slices[chosen].min()),
                "slices_high": int(slices[chosen].max()),
                "n": int(chosen.sum()),
                "joint": float(a.mean()),
                "independent": float(b.mean()),
                "ratio": float(b.mean() / a.mean()),
                "aurc_joint": risk_coverage(part, a).aurc,
                "aurc_independent": risk_coverage(part, b).aurc,
                "correlation_joint": correlations[0],
                "correlation_independent": correlations[1],
                "note": "no correlation: all values are equal" if np.isnan(correlations).any() else "",
            }
        )
    return pd.DataFrame(rows)
