"""Performance of a triage on test scans, and its effect on the reading order.

`triage_table`: fractions of decisions and of errors, with intervals by patient bootstrap.

`worklist_effect`: one radiologist reads a backlog of B scans one after another, each in the same time, and no
new scan arrives. The scan at place r = 0, 1, ... of the list waits r · `minutes_per_scan`. Scans arrive in
random order: with q scans in earlier queues and c scans in its own queue, a scan waits on average for
q + (c - 1)/2 scans.

Shapes: B scans, J metrics, R resamples, T arrival orders.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ich_mil.evaluate.bootstrap import LEVEL, RESAMPLES, patient_bootstrap, proportion_interval
from ich_mil.evaluate.deployment.triage import Triage
from ich_mil.evaluate.sample import divide
from ich_mil.evaluate.scores import known_scores, patient_keys
from ich_mil.ledger import DECISIONS, LOOK, NEGATIVE, POSITIVE
from ich_mil.sets.labels import UNKNOWN

COLUMNS = ["metric", "value", "low", "high", "count", "n", "patients", "unlabelled", "resamples", "ignored"]
COLUMNS += ["note"]

ORDERS = ("first come", "triage", "probability")
"""By arrival; by decision (positive, look, negative), then arrival; by falling probability."""

WORKLIST_COLUMNS = ["order", "group", "scans", "minutes", "low", "high", "longest", "note"]


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

    The intervals resample patients, with the thresholds fixed. Columns `COLUMNS`: `patients` of all labelled
    scans; the number of scans `unlabelled`; `ignored` resamples, in which the metric is not defined.

    Raises:
        DataError: no label is known, or a probability is NaN or outside [0, 1].
    """
    known = np.asarray(labels) != UNKNOWN
    owner = patient_keys(patients, len(labels))[known]
    labels, p = known_scores(labels, probability, what="triage", probability=True)
    positive, decision = labels == 1, triage.decide(p)
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
            interval = proportion_interval(interval, count / n, len(np.unique(owner[within])))
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


def worklist_effect(
    labels: np.ndarray,
    decisions: np.ndarray,
    probability: np.ndarray,
    *,
    minutes_per_scan: float,
    seed: int,
    repeats: int = 1000,
) -> pd.DataFrame:
    """Mean waiting time of positive, negative and missed scans for each reading order.

    Unlabelled scans are in the backlog, but in no group; `repeats` is the number of arrival orders.

    Returns:
        Columns `WORKLIST_COLUMNS`: `order` from `ORDERS`; `group`: 'positive', 'negative', or 'missed'
        (positive but called negative, and so delayed by the triage); their mean waiting time in `minutes`,
        and its central 95 % over arrival orders; the `longest` waiting time in the group, mean over arrival
        orders.
    """
    queues = {
        "first come": np.zeros(len(probability)),
        "triage": np.array([DECISIONS.index(one) for one in decisions], dtype=np.float64),
        "probability": np.unique(-probability, return_inverse=True)[1].astype(np.float64),
    }
    groups = {
        "positive": (labels == 1, "no scan is known to be positive"),
        "negative": (labels == 0, "no scan is known to be negative"),
        "missed": ((labels == 1) & (decisions == NEGATIVE), "no positive scan was called negative"),
    }
    waits: dict[tuple[str, str], list[tuple[float, float]]] = {}
    generator = np.random.default_rng(seed)
    for _ in range(repeats):
        arrival = generator.permutation(len(probability))
        for order in ORDERS:
            place = np.empty(len(probability))
            place[np.lexsort((arrival, queues[order]))] = np.arange(len(probability))
            for group, (members, _) in groups.items():
                if members.any():
                    wait = minutes_per_scan * place[members]
                    waits.setdefault((order, group), []).append((wait.mean(), wait.max()))
    tail = (1 - LEVEL) / 2
    rows: list[dict[str, Any]] = []
    for order in ORDERS:
        for group, (members, why) in groups.items():
            row = {"order": order, "group": group, "scans": int(members.sum())}
            if members.any():
                mean, longest = np.array(waits[order, group]).T  # (T,)
                low, high = np.quantile(mean, [tail, 1 - tail])
                row |= {"minutes": mean.mean(), "low": low, "high": high, "longest": longest.mean()}
                rows.append({**row, "note": ""})
            else:
                rows.append({**row, "note": why})
    return pd.DataFrame(rows, columns=WORKLIST_COLUMNS)
