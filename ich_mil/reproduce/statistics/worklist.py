"""Effect of a triage on the reading order: waiting time until a scan is opened.

In: labels, decisions and probabilities of a backlog of B scans. One radiologist reads them one after another,
each in the same time, and no new scan arrives. Out: the waiting time in minutes for three reading orders.

The scan at place r = 0, 1, ... of the list waits r · `minutes_per_scan`. Scans arrive in random order. With q
scans in earlier queues and c scans in its own queue, a scan waits on average over arrival orders for
q + (c - 1)/2 scans.

Shapes: B scans, T arrival orders.
"""

from typing import Any

import numpy as np
import pandas as pd

from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import LEVEL
from ich_mil.evaluate.deployment.triage import DECISIONS, NEGATIVE
from ich_mil.evaluate.metrics import check_scores

ORDERS = ("first come", "triage", "probability")
"""By arrival; by decision (positive, look, negative), then arrival; by falling probability."""

COLUMNS = ["order", "group", "scans", "minutes", "low", "high", "longest", "note"]


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

    Args:
        labels: (B,) in {0, 1} or `UNKNOWN`; unlabelled scans are in the backlog, but in no group.
        decisions: (B,) from `Triage.decide`.
        probability: (B,) in [0, 1].
        minutes_per_scan: reading time of one scan.
        seed: seed of the arrival orders.
        repeats: number of arrival orders.

    Returns:
        Columns `COLUMNS`: `order` from `ORDERS`; `group`: 'positive', 'negative', or 'missed' (positive but
        called negative, and so delayed by the triage); the number of `scans` in the group; their mean waiting
        time in `minutes`, and its central 95 % over arrival orders, `low` to `high`; the `longest` waiting
        time in the group, mean over arrival orders; `note`: why a number is NaN, else empty.

    Raises:
        DataError: there is no scan, a decision is unknown, or a probability is NaN or outside [0, 1].
        ValueError: sizes do not match, or a number is out of range.
    """
    labels, p = check_scores(labels, probability, what="worklist", probability=True)
    decisions = np.asarray(decisions)
    if decisions.shape != labels.shape:
        raise ValueError(f"{len(decisions)} decisions for {len(labels)} scans")
    if not (minutes_per_scan > 0 and repeats >= 1):
        raise ValueError(f"need minutes above 0 and one repeat, got {minutes_per_scan} and {repeats}")
    if not len(labels):
        raise DataError("worklist: there is no scan to read")
    strange = ~np.isin(decisions, DECISIONS)
    if strange.any():
        raise DataError(
            f"worklist: a decision must be one of {', '.join(DECISIONS)}, got {str(decisions[strange][0])!r}"
        )
    queues = {
        "first come": np.zeros(len(p)),
        "triage": np.array([DECISIONS.index(one) for one in decisions], dtype=np.float64),
        "probability": np.unique(-p, return_inverse=True)[1].astype(np.float64),
    }
    groups = {
        "positive": (labels == 1, "no scan is known to be positive"),
        "negative": (labels == 0, "no scan is known to be negative"),
        "missed": ((labels == 1) & (decisions == NEGATIVE), "no positive scan was called negative"),
    }
    waits: dict[tuple[str, str], list[tuple[float, float]]] = {}
    generator = np.random.default_rng(seed)
    for _ in range(repeats):
        arrival = generator.permutation(len(p))
        for order in ORDERS:
            place = np.empty(len(p))
            place[np.lexsort((arrival, queues[order]))] = np.arange(len(p))
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
                rows.append(
                    {**row, **dict.fromkeys(("minutes", "low", "high", "longest"), np.nan), "note": why}
                )
    return pd.DataFrame(rows)[COLUMNS]
