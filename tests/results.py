"""Made-up results of phantom scans, for tests and pictures of report pages."""

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd

from ich_mil.evaluate.curves import scan_curves
from ich_mil.evaluate.result_table import evaluate
from ich_mil.evaluate.scores import Scores
from ich_mil.ledger import BY_INTERVAL, LOOK, NEGATIVE, POSITIVE, WHOLE_ONLY, Code, LedgerEntry, whole_only
from ich_mil.model.maps import ScanMaps
from ich_mil.model.predictions import Provenance, Results, Run, ScanPrediction, SliceResult
from ich_mil.pages.run_page import EvaluatedSet
from ich_mil.phantoms.data_sets import SITE_A, make_phantom
from ich_mil.sets.features import bare_features

MODEL = Provenance(
    "G-VGPMIL α=1 β=2.5, M=100, D=8",
    "0.1.0",
    "3f9a01c2",
    "a1b2c3d4",
    "isotonic regression",
    "synthetic heads: 40 scans, 20 positive",
)
DECIDED_BY = f"{BY_INTERVAL}; {WHOLE_ONLY}"
LEDGER = (
    LedgerEntry("1.2.840.1", "DOE^JANE/CT000001.dcm", Code.LOCALIZER, "ImageType says LOCALIZER"),
    LedgerEntry(
        "1.2.840.1", "DOE^JANE/CT000009.dcm", Code.DUPLICATE, "same position as DOE^JANE/CT000008.dcm"
    ),
    LedgerEntry("1.2.840.1", "", Code.SERIES_KIND, "series 'HEAD POST' (1.2.840.1.2) is post-contrast"),
)


@cache
def phantom(size: int = 256, n_slices: int = 36) -> tuple[np.ndarray, np.ndarray]:
    """HU and masks of blood (n, size, size) of a phantom with a bleed."""
    made = make_phantom(
        np.random.default_rng(3), bleeds=("intraparenchymal",), site=SITE_A, size=size, n_slices=n_slices
    )
    return made.hu, made.masks


def scan_of(masks: np.ndarray) -> ScanPrediction:
    """Results as a good model might give for these masks."""
    area = masks.astype(bool).sum((1, 2))
    probability = (0.04 + 0.9 * np.minimum(1, area / max(1, area.max() / 3))).round(6)
    probability[3] = 0.31  # beam hardening at the base
    positive = np.flatnonzero(probability >= 0.5)
    slices = tuple(
        SliceResult(
            slice=i,
            name=f"1.2.840.1.{i}",
            position_mm=5.0 * i,
            probability=float(p),
            std=0.05,
            interval_95=(
                max(0.0, round(p - 0.02 - 0.3 * p * (1 - p), 6)),
                min(1.0, round(p + 0.03 + 0.4 * p * (1 - p), 6)),
            ),
            scan_without=0.861 if p >= 0.9 else 0.873,
            label=int(area[i] > 0),
            corrections=(),
        )
        for i, p in enumerate(probability.tolist())
    )
    runs = (Run(int(positive[0]), int(positive[-1]), 0.213),)
    return ScanPrediction(
        scan="1.2.840.113619.2.55.3.604688119.971.1449",
        patient="PAT-0071",
        probability=0.873,
        std=0.061,
        interval_95=(0.712, 0.951),
        decision=POSITIVE,
        label=1,
        runs=runs,
        slices=slices,
        ledger=LEDGER,
        pixels="",
    )


def maps_of(masks: np.ndarray, *, most: int = 8, cells: int = 16) -> ScanMaps:
    """Heatmaps of the slices with most blood: where the blood is, unsure at its edge."""
    area = masks.astype(bool).sum((1, 2))
    slices = np.sort(np.argsort(-area, kind="stable")[:most]).astype(np.int64)
    blocks = masks[slices].astype(bool).reshape(len(slices), cells, masks.shape[1] // cells, cells, -1)
    mean = blocks.mean((2, 4)).astype(np.float32)  # (k, cells, cells)
    std = np.sqrt(mean * (1 - mean)) * 0.8 + 0.02
    rng = np.random.default_rng(0)
    return ScanMaps(slices, 0.9 * mean + 0.1 * rng.random(mean.shape, dtype=np.float32), std)


def cohort(n: int = 24) -> Results:
    """Scans of all three decisions, some with input problems, and a study without a prediction."""
    base = scan_of(np.pad(np.ones((6, 8, 8), bool), ((12, 12), (0, 0), (0, 0))))
    rng = np.random.default_rng(1)
    scans = []
    for i, p in enumerate(np.sort(rng.beta(0.35, 0.5, n)).round(6).tolist()):
        width = 0.02 + 0.5 * p * (1 - p)
        low, high = round(max(0, p - width), 6), round(min(1, p + width), 6)
        ledger = LEDGER if i % 5 == 2 else LEDGER[:1]
        decision = whole_only(POSITIVE if low >= 0.5 else NEGATIVE if high < 0.5 else LOOK, ledger)
        first = int(rng.integers(2, 20))
        runs = (Run(first, first + int(rng.integers(0, 7)), round(p / 3, 6)),) if p > 0.5 else ()
        scans.append(
            replace(
                base,
                scan=f"1.2.840.113619.2.55.3.{604688119 + 7919 * i}",
                probability=p,
                interval_95=(low, high),
                decision=decision,
                label=None,
                runs=runs,
                ledger=ledger,
            )
        )
    lost = LedgerEntry("1.2.840.113619.2.55.3.99", "", Code.SCAN_EMPTY, "no slice could be read")
    return Results("new", MODEL, DECIDED_BY, tuple(scans[i] for i in rng.permutation(n)), (lost,))


def evaluated_set(labels: np.ndarray) -> EvaluatedSet:
    """Metrics and curves of two models on scans with these labels, and four scans."""
    patients = [str(i) for i in range(len(labels))]
    rng = np.random.default_rng(0)
    scores = [
        Scores(name, np.clip(labels * 0.3 + rng.random(len(labels)) * 0.7, 0, 1), None)
        for name in ("GP", "CNN")
    ]
    n = len(labels)
    features = bare_features(np.zeros((n, 1)), np.ones(n, dtype=int), patients, labels, patients)
    table = evaluate(scores, features, seed=0, resamples=50)
    line = pd.DataFrame({"x": [0.1, 0.9], "y": [0.2, 0.7], "low": [0.1, 0.6], "high": [0.3, 0.8]})
    curves = {"calibration": {"GP": line, "CNN": line[["x", "y"]]}} if (labels >= 0).any() else {}
    for one in scores if curves else ():
        for name, frame in scan_curves(labels, one.scan, patients, seed=0, resamples=20).items():
            curves.setdefault(name, {})[one.name] = frame if one is scores[0] else frame[["x", "y"]]
    (base,) = cohort(1).scans
    scans = [
        replace(base, scan="low", probability=0.1234, interval_95=(0.02, 0.3), label=0),
        replace(base, scan="missed", probability=0.0321, interval_95=(0.01, 0.1), label=1),
        replace(base, scan="high", probability=0.9876, label=1),
        replace(base, scan="unknown", probability=0.5, label=None),
    ]
    return EvaluatedSet("CQ500", table, curves, scans)
