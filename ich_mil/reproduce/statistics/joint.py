"""Scan uncertainty from joint samples of the slices compared with independent samples.

In: for each scan the standard deviation from both kinds of samples, its number of slices, and its loss. Out:
a table of mean uncertainty, AURC and correlation with the loss.

Shapes: B scans.
"""

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from ich_mil.errors import DataError
from ich_mil.evaluate.metrics import equal_mass
from ich_mil.evaluate.uncertainty import risk_coverage, scan_rows


def _rank_correlation(uncertainty: np.ndarray, loss: np.ndarray) -> float:
    """Spearman's rank correlation; NaN if either argument is constant."""
    if np.ptp(uncertainty) == 0 or np.ptp(loss) == 0:
        return float("nan")
    return float(spearmanr(uncertainty, loss).statistic)


def joint_against_independent(
    joint: np.ndarray, independent: np.ndarray, slices: np.ndarray, loss: np.ndarray, *, bins: int = 5
) -> pd.DataFrame:
    """Effect of the correlation between slices on the uncertainty of scans.

    Joint samples are those of `ich_mil.gp.predict.predict`. Independent samples are those of
    `independent_scans`, which treat the slices of a scan as independent, so that the standard deviation of a
    scan depends on its number of slices.

    Args:
        joint: (B,) standard deviation of the scan from joint samples.
        independent: (B,) standard deviation from independent samples.
        slices: (B,) number of slices of each scan.
        loss: (B,) loss of the call, the same for both kinds of samples.
        bins: largest number of equal-mass bins by number of slices.

    Returns:
        One row for all scans (`scans` 'all'), then one for each bin ('by slices'); columns `scans`,
        `slices_low`, `slices_high`, `n`, `joint` and `independent` (mean standard deviations), `ratio`
        (independent / joint, of these means), `aurc_joint`, `aurc_independent`, `correlation_joint`,
        `correlation_independent` (Spearman, with the loss), `note`.

    Raises:
        DataError: there is no scan; a value is not finite; a joint standard deviation is not above 0, or an
            independent one is negative.
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
