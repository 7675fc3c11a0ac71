"""Analyses for deployment at a hospital: triage with guarantees, recalibration, drift alarm.

In: a `ScoredSet` and the title of the section. Out: sections of the report.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch

from ich_mil.errors import DataError
from ich_mil.evaluate.deployment.drift import DriftAlarm, column_names, summarise
from ich_mil.evaluate.deployment.triage import fit_triage
from ich_mil.gp.calibration import Calibration
from ich_mil.sets.labels import UNKNOWN
from research.reproduce.figures import bars, curves, thresholds
from research.reproduce.page import Section
from research.reproduce.scored_set import ScoredSet, known
from research.reproduce.statistics.drift_rates import BATCH, alarm_rates
from research.reproduce.statistics.recalibration_curve import SIZES, WAYS, pays_from, recalibration_curve
from research.reproduce.statistics.triage_evaluation import triage_table, worklist_effect
from research.reproduce.statistics.triage_simulation import simulate_triage

MINUTES_PER_SCAN = 5.0
"""Reading time of a scan in the simulated worklist; waiting times are proportional to it."""


def triage(scored: ScoredSet, title: str) -> Iterator[Section]:
    """Triage thresholds, the worklist they give, and a check of their guarantees on random splits."""
    config = scored.config
    patients = np.asarray(scored.bags.patients)
    some = np.unique(patients)
    some = np.random.default_rng(scored.seed).permutation(some)[: len(some) // 2]
    inside = np.isin(patients, some)
    fitted = fit_triage(
        scored.labels[inside],
        scored.probability[inside],
        sensitivity=config.sensitivity,
        specificity=config.specificity,
        confidence=config.confidence,
        patients=patients[inside].tolist(),
    )
    rest = ~inside
    labels, p = scored.labels[rest], scored.probability[rest]
    frame = triage_table(fitted, labels, p, patients[rest].tolist(), **scored.resampling)
    labelled = labels != UNKNOWN
    yield Section(
        title,
        f"Fitted to half of the patients, counted on the others. {fitted.guarantees} `low` to `high`: 95 % "
        "over resamples of the others with fixed thresholds; for a fraction of 0 or 1 the exact interval.",
        scored.table(frame, "triage")[["metric", "value", "low", "high", "count", "n", "note"]],
        (
            scored.figure(
                thresholds(labels[labelled], p[labelled], low=fitted.low, high=fitted.high), "triage"
            ),
        ),
    )
    waits = worklist_effect(labels, fitted.decide(p), p, minutes_per_scan=MINUTES_PER_SCAN, seed=scored.seed)
    png = bars(
        waits[waits.group == "positive"],
        x="order",
        y="minutes",
        labels=("order of reading", "mean wait, minutes"),
    )
    yield Section(
        "The worklist",
        f"A backlog of these {len(labels)} scans, {MINUTES_PER_SCAN:g} minutes each, read by one person, "
        "while no new scan arrives. `low` to `high`: 95 % of the orders in which these scans may arrive. The "
        "figure shows the waiting time of positive scans.",
        scored.table(waits, "worklist"),
        (scored.figure(png, "worklist"),),
    )
    yield Section(
        f"The guarantees, on {config.simulations} random splits",
        "A guarantee bounds the fraction of all future scans. `kept`: fraction of splits in which the "
        "count of the test part met the guarantee; `expected`: its theoretical value for a finite test part.",
        scored.table(_kept(scored), "promise"),
    )


def _kept(scored: ScoredSet) -> pd.DataFrame:
    """How often the guarantees are met; a row with the reason if the triage cannot be fitted."""
    try:
        return simulate_triage(
            scored.labels,
            scored.probability,
            scored.bags.patients,
            splits=scored.config.simulations,
            seed=scored.seed,
            sensitivity=scored.config.sensitivity,
            specificity=scored.config.specificity,
            confidence=scored.config.confidence,
        )
    except DataError as error:
        return pd.DataFrame({"splits": [0], "note": [str(error)]})


def recalibration(scored: ScoredSet, title: str) -> Iterator[Section]:
    """Scan metrics after recalibration to n labelled scans of the scored site."""
    if scored.home is None:
        return
    p = torch.from_numpy(scored.probability)
    sizes = [n for n in SIZES if 2 * n <= len(p)]
    if not sizes:
        raise DataError(f"{len(p)} scans are too few")
    curve = recalibration_curve(
        torch.logit(p, eps=1e-6),
        scored.labels,
        scored.bags.patients,
        Calibration(),
        sizes=sizes,
        seed=scored.seed,
    )
    scored.table(curve, "recalibration")
    shown = curve[curve.metric.isin(["log_loss", "ece"])]
    shown = shown[["n", "way", "metric", "own", "value", "low", "high", "better", "used"]]
    losses = curve[(curve.metric == "log_loss") & curve.value.notna()]
    lines = [
        (f"recalibrated: {way}", rows.rename(columns={"value": "y"})[["n", "y", "low", "high"]])
        for way, rows in losses.groupby("way")
    ]
    own = losses.drop_duplicates("n").rename(columns={"own": "y"})[["n", "y"]]
    pays = {way: pays_from(curve, way=way) for way in WAYS}
    text = "; ".join(
        f"{way}: improves the log-loss from {n} scans on"
        if n
        else f"{way}: improves it at none of these sizes"
        for way, n in pays.items()
    )
    lines = [("as trained", own), *lines]
    png = curves(lines, x="n", y="y", labels=("labelled scans", "scan log-loss"))
    yield Section(
        title,
        "Platt's sigmoid (`platt`) or its intercept alone fitted to n labelled scans of the site, measured "
        "on its other scans: median over draws, `low` to `high` their 5th to 95th percentile, `better` the "
        f"fraction of draws below the model's `own`. These are no confidence intervals. {text}.",
        shown,
        (scored.figure(png, "recalibration"),),
    )


def drift(scored: ScoredSet, title: str) -> Iterator[Section]:
    """Drift test of the scored set against the training site, and alarm rates within the training site."""
    if scored.home is None:
        return
    home, home_scores = scored.home[0], known(scored.home[1].scan)
    alarm = DriftAlarm.fit(
        summarise(home.x.numpy(), home.offsets.numpy()),
        home_scores,
        home.patients,
        names=column_names(home.x.shape[1]),
        seed=scored.seed,
    )
    found = alarm.test(
        summarise(scored.bags.x.numpy(), scored.bags.offsets.numpy()),
        scored.probability,
        scored.bags.patients,
    )
    moved = pd.DataFrame([vars(one) for one in (*found.moved, found.score)])
    yield Section(title, found.text(), scored.table(moved, "drift"))
    if len(set(home.patients)) < 2 * BATCH:
        return
    rates = alarm_rates(home.x.numpy(), home.offsets.numpy(), home_scores, home.patients, seed=scored.seed)
    yield Section(
        "Rate of drift alarms at the training site",
        f"{BATCH} random patients against the others, unchanged (`step` 0) and with every feature shifted by "
        "`step` standard deviations over scans. The interval is for more draws from the same scans.",
        scored.table(rates, "drift_rates"),
    )
