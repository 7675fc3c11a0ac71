"""Performance of a triage on test scans: fractions of decisions and of errors, with intervals.

In: a triage, and labels and probabilities of scans it was not fitted to. Out: one row for each metric, with
its interval by patient bootstrap.

Shapes: B scans, J metrics, R resamples.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ich_mil.data.labels import UNKNOWN
from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import RESAMPLES, of_proportion, patient_bootstrap
from ich_mil.evaluate.deployment.triage import LOOK, NEGATIVE, POSITIVE, Triage
from ich_mil.evaluate.metrics import check_scores, patient_keys
from ich_mil.evaluate.resampled_metrics import divide

COLUMNS = ["metric", "value", "low", "high", "count", "n", "patients", "unlabelled", "resamples", "ignored"]
COLUMNS += ["note"]


def triage_table(
    triage: Triage,
    labels: np.ndarray,
    probability: np.ndarray,
    patients: Sequence[str],
    *,
    seed: int,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """Fractions of decisions and errors, each `count` of `n` scans.

    * `cleared`, `called_positive` and `to_look` (left to a reader) sum to 1 over all labelled scans.
    * `missed` is the fraction of positive scans called negative, and `sensitivity` = 1 - `missed`: a scan
      left to a reader is not missed. `false_alarms` and `specificity` are the same for negative scans.
    * `sensitivity_decided` and `specificity_decided` are among the scans with a decision.
    * `ppv` and `npv` are the fractions of positive and negative decisions that are correct, at the prevalence
      of these scans.
    * `abstention_positive` and `abstention_negative` are the fractions of each class without a decision.

    Args:
        triage: the fitted thresholds.
        labels: (B,) in {0, 1} or `UNKNOWN`; unlabelled scans are left out and counted.
        probability: (B,) in [0, 1].
        patients: B patient keys; the intervals resample patients, with the thresholds fixed.
        seed: seed of the resampling.
        resamples: number of resamples behind each interval.

    Returns:
        Columns `COLUMNS`: `metric`, `value`, its 95 % interval `low` and `high`, `count`, `n`, the number of
        `patients` of all labelled scans, the number of scans `unlabelled`, `resamples`, the number of
        resamples `ignored` because the metric is not defined in them, and `note`: why `value` or the interval
        is NaN, else empty.

    Raises:
        DataError: no label is known, or a probability is NaN or outside [0, 1].
        ValueError: sizes do not match.
    """
    labels, p = check_scores(labels, probability, what="triage", probability=True)
    owner = patient_keys(patients, len(labels))
    known = labels != UNKNOWN
    if not known.any():
        raise DataError(f"triage: none of the {len(labels)} labels is known, so nothing can be measured")
    positive, owner, decision = labels[known] == 1, owner[known], triage.decide(p[known])
    cleared, called, look = (decision == name for name in (NEGATIVE, POSITIVE, LOOK))
    negative, every = ~positive, np.ones(len(decision), dtype=bool)
    no_positive, no_negative = "no scan is positive", "no scan is negative"
    open_positive = "every positive scan is to be looked at" if positive.any() else no_positive
    open_negative = "every negative scan is to be looked at" if negative.any() else no_negative
    both = every & positive.any() & negative.any()  # with one class only, every call of it is correct
    parts = {  # name: scans counted, scans they are counted among, reason if there are none
        "cleared": (cleared, every, ""),
        "called_positive": (called, every, ""),
        "to_look": (look, every, ""),
        "missed": (cleared, positive, no_positive),
        "sensitivity": (~cleared, positive, no_positive),
        "false_alarms": (called, negative, no_negative),
        "specificity": (~called, negative, no_negative),
        "sensitivity_decided": (called, positive & ~look, open_positive),
        "specificity_decided": (cleared, negative & ~look, open_negative),
        "ppv": (positive, called & both, "one class only, or no scan is called positive"),
        "npv": (negative, cleared & both, "one class only, or no scan is cleared"),
        "abstention_positive": (look, positive, no_positive),
        "abstention_negative": (look, negative, no_negative),
    }
    among = np.array([within for _, within, _ in parts.values()], dtype=np.float64)  # (J, B)
    counted = among * [scans for scans, _, _ in parts.values()]  # (J, B)

    def shares(counts: np.ndarray) -> dict[str, np.ndarray]:
        return dict(zip(parts, divide(counted @ counts, among @ counts), strict=True))  # (J, R) by metric

    intervals = patient_bootstrap(shares, owner, resamples=resamples, seed=seed)
    values = shares(np.ones((len(owner), 1)))
    rows = []
    for (name, (_, within, why)), count, n in zip(
        parts.items(), counted.sum(axis=1), among.sum(axis=1), strict=True
    ):
        interval, note = intervals[name], "" if n else why
        if n:
            interval = of_proportion(interval, count / n, len(np.unique(owner[within])))
        if n and np.isnan(interval.low):
            note = "too few patients for an interval"
        rows.append(
            {
                "metric": name,
                "value": float(values[name][0]),
                "low": interval.low,
                "high": interval.high,
                "count": int(count),
                "n": int(n),
                "patients": len(np.unique(owner)),
                "unlabelled": int((~known).sum()),
                "resamples": resamples,
                "ignored": interval.ignored if n else 0,
                "note": note,
            }
        )
    return pd.DataFrame(rows)[COLUMNS]
