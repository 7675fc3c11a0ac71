"""What a triage does on test scans: how many it decides, and how many of them wrongly.

In: a triage, labels and probabilities of scans it was not fitted on. Out: one row a number, with its interval
by patients.

Shapes: B scans, J numbers, R resamples.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ich_mil.data.labels import UNKNOWN
from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import RESAMPLES, of_proportion, patient_bootstrap
from ich_mil.evaluate.metrics import check_scores, patient_keys
from ich_mil.evaluate.triage import LOOK, NEGATIVE, POSITIVE, Triage
from ich_mil.evaluate.weighted import divide

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
    """Shares of decisions, right and wrong, each `count` of `n` scans.

    `cleared`, `called_positive` and `to_look` share out all labelled scans. `missed` is the share of positive
    scans called negative and `sensitivity` = 1 - `missed`, so that a scan somebody looks at is not missed;
    likewise `false_alarms` and `specificity`. `sensitivity_decided` and `specificity_decided` are among the
    scans that got a decision, and `ppv` and `npv` the shares of positive and negative decisions that are
    right, where as many scans are positive as here; `abstention_positive` and `abstention_negative` are the
    shares that got none.

    Args:
        triage: the fitted thresholds.
        labels: (B,) in {0, 1} or `UNKNOWN`, which is left out and counted.
        probability: (B,) in [0, 1].
        patients: B patient keys; the intervals resample patients, with the thresholds held as they are.
        seed: seed of the resampling.
        resamples: number of resamples behind each interval.

    Returns:
        Columns `COLUMNS`: `metric`, `value`, its 95 % interval `low` and `high`, `count`, `n`, the `patients`
        of all labelled scans, scans `unlabelled`, `resamples`, those `ignored` because the number is not
        defined in them, and `note`: why `value` or the interval is NaN, else empty.

    Raises:
        DataError: no label is known, or a probability is NaN or outside [0, 1].
        ValueError: sizes do not fit together.
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
    # why nothing was decided in a class
    open_positive = "every positive scan is to be looked at" if positive.any() else no_positive
    open_negative = "every negative scan is to be looked at" if negative.any() else no_negative
    both = every & positive.any() & negative.any()  # of one class every call of the one kind is right
    parts = {  # name: the scans counted, among which, and why there may be none
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
        return dict(zip(parts, divide(counted @ counts, among @ counts), strict=True))  # of (J, R)

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
