"""Whether a triage keeps its promises on real scans, and what it costs and gains.

    python -m benchmarks.triage [--splits 1000] [--minutes 5] [--write]

A head fitted and calibrated on the 150 RSNA scans gives probabilities for the 490 CQ500 scans. Then, over and
over, thresholds are fitted on one half of the CQ500 patients and counted on the other:

* the share of splits in which the test half kept to the promise, with its 95 % Monte Carlo interval, beside
  the exact chance of that for scans drawn without replacement. Only `next_scans` promises this count;
  `risk_control` promises the share of all future scans, `conformal` the mean;
* the mean and the lowest empirical value, and the share of scans left to a person;
* for one split, the wait of positive scans in a backlog of the test half.
"""

import argparse
from time import perf_counter

import numpy as np
import torch

from benchmarks.heads_data import cq500, rsna
from benchmarks.record import record, table
from ich_mil.evaluate.promises import METHODS
from ich_mil.evaluate.triage import fit_triage
from ich_mil.evaluate.triage_splits import verify
from ich_mil.evaluate.worklist import worklist_effect
from ich_mil.gp.head import Head

SHARES = (0.9, 0.95)
CONFIDENCE = 0.9


def scored() -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Labels, probabilities and patients of CQ500."""
    train, test = rsna(), cq500()
    head = Head(density="gamma").fit(train.x, train.offsets, train.labels, groups=train.patients)
    probability = head.predict_bag_proba(test.x, test.offsets)
    assert isinstance(probability, np.ndarray)
    return test.labels.numpy(), probability, test.patients


def promises(labels: np.ndarray, probability: np.ndarray, patients: list[str], splits: int) -> str:
    rows = []
    for method in METHODS:
        for share in SHARES:
            found = verify(
                labels,
                probability,
                patients,
                splits=splits,
                sensitivity=share,
                specificity=share,
                confidence=CONFIDENCE,
                method=method,
                seed=0,
            )
            look = found.splits["look"].mean()
            rows += [
                (
                    method,
                    f"{row['promise']} {share:g}",
                    f"{row['kept']:.3f} [{row['kept_low']:.3f}, {row['kept_high']:.3f}]",
                    f"{row['expected']:.3f}",
                    f"{row['mean']:.3f}",
                    f"{row['lowest']:.3f}",
                    f"{look:.3f}",
                )
                for row in found.summary.to_dict("records")
            ]
    return table(("method", "promised", "splits that kept it", "exact", "mean", "lowest", "to look at"), rows)


def waits(labels: np.ndarray, probability: np.ndarray, *, minutes: float) -> str:
    """Wait of positive and missed scans in a backlog of one half, triaged by the other."""
    order = np.random.default_rng(0).permutation(len(labels))
    fitted, read = order[: len(order) // 2], order[len(order) // 2 :]
    triage = fit_triage(labels[fitted], probability[fitted], sensitivity=0.95, confidence=CONFIDENCE)
    effect = worklist_effect(
        labels[read], triage.decide(probability[read]), probability[read], minutes_per_scan=minutes, seed=0
    )
    rows = [
        (
            row["order"],
            row["group"],
            row["scans"],
            row["note"] or f"{row['minutes']:.0f} [{row['low']:.0f}, {row['high']:.0f}]",
        )
        for row in effect.to_dict("records")
    ]
    head = ("order", "scans that are", "number", "mean wait in minutes")
    backlog = f"A backlog of {len(read)} scans, {minutes:g} minutes each:"
    return f"{triage.promise}\n\n{backlog}\n\n{table(head, rows)}"


def main() -> None:
    """Fit, split, count."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--splits", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    labels, probability, patients = scored()
    started = perf_counter()
    told = promises(labels, probability, patients, arguments.splits)
    took = (perf_counter() - started) / (len(METHODS) * len(SHARES))
    text = (
        f"{len(labels)} scans, {int(labels.sum())} positive; {arguments.splits:,} splits by patient in "
        f"halves, confidence {CONFIDENCE:g}, {took:.1f} s a setting.\n\n{told}\n\n"
        f"{waits(labels, probability, minutes=arguments.minutes)}"
    )
    record("Triage: promises kept", "python -m benchmarks.triage", text, write=arguments.write)


if __name__ == "__main__":
    main()
