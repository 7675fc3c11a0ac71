"""Analyses for deployment at a hospital: triage with guarantees, recalibration, drift alarm.

In: a `Look` and the title of the section. Out: sections of the report, as in `ich_mil.reproduce.analyses`.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch

from ich_mil.data.labels import UNKNOWN
from ich_mil.errors import DataError
from ich_mil.evaluate.deployment.conformal import METHODS, Method
from ich_mil.evaluate.deployment.drift import DriftAlarm, column_names, summarise
from ich_mil.evaluate.deployment.recalibration import SIZES, WAYS, pays_from, recalibration_curve
from ich_mil.evaluate.deployment.triage import fit_triage
from ich_mil.gp.calibration import Calibration
from ich_mil.reproduce.figures import bars, curves, thresholds
from ich_mil.reproduce.look import Look
from ich_mil.reproduce.page import Section
from ich_mil.reproduce.statistics.drift_rates import BATCH, alarm_rates
from ich_mil.reproduce.statistics.triage_splits import verify
from ich_mil.reproduce.statistics.triage_table import triage_table
from ich_mil.reproduce.statistics.worklist import worklist_effect

MINUTES_PER_SCAN = 5.0
"""Reading time of a scan in the simulated worklist; waiting times are proportional to it."""


def triage(look: Look, title: str) -> Iterator[Section]:
    """Triage thresholds, the worklist they give, and a check of their guarantees on random splits."""
    config = look.config
    patients = np.asarray(look.bags.patients)
    some = np.unique(patients)
    some = np.random.default_rng(look.seed).permutation(some)[: len(some) // 2]
    inside = np.isin(patients, some)
    fitted = fit_triage(
        look.labels[inside],
        look.probability[inside],
        sensitivity=config.sensitivity,
        specificity=config.specificity,
        confidence=config.confidence,
        patients=patients[inside].tolist(),
    )
    rest = ~inside
    labels, p = look.labels[rest], look.probability[rest]
    frame = triage_table(fitted, labels, p, patients[rest].tolist(), **look.resampling)
    known = labels != UNKNOWN
    yield Section(
        title,
        f"Calibrated on half of the patients, counted on the others. {fitted.promise} `low` to `high`: 95 % "
        "over resamples of these others, thresholds as they are; of a share of 0 or 1 the exact interval.",
        look.table(frame, "triage")[["metric", "value", "low", "high", "count", "n", "note"]],
        (look.figure(thresholds(labels[known], p[known], low=fitted.low, high=fitted.high), "triage"),),
    )
    waits = worklist_effect(labels, fitted.decide(p), p, minutes_per_scan=MINUTES_PER_SCAN, seed=look.seed)
    png = bars(
        waits[waits.group == "positive"],
        x="order",
        y="minutes",
        labels=("order of reading", "mean wait, minutes"),
    )
    yield Section(
        "The worklist",
        f"A backlog of these {len(labels)} scans, {MINUTES_PER_SCAN:g} minutes each, read by one person, "
        "while no new scan arrives. `low` to `high`: 95 % of orders in which these scans may arrive; other "
        "scans are not in it. The figure shows how long positive scans wait.",
        look.table(waits, "worklist"),
        (look.figure(png, "worklist"),),
    )
    yield Section(
        f"The promise, on {config.simulations} random splits",
        "`risk_control` bounds the share among all future scans, `next_scans` the count among the scans of "
        "the test part, `conformal` the mean over calibration sets. `kept`: share of splits in which the "
        "count of the test part kept the promise; `expected`: what theory says of a finite test part.",
        look.table(pd.concat([_kept(look, method) for method in METHODS], ignore_index=True), "promise"),
    )


def _kept(look: Look, method: Method) -> pd.DataFrame:
    """How often one method meets its guarantees; a row with the reason if the triage cannot be fitted."""
    try:
        found = verify(
            look.labels,
            look.probability,
            look.bags.patients,
            splits=look.config.simulations,
            method=method,
            seed=look.seed,
            sensitivity=look.config.sensitivity,
            specificity=look.config.specificity,
            confidence=look.config.confidence,
        ).summary
    except DataError as error:
        found = pd.DataFrame({"splits": [0], "note": [str(error)]})
    found.insert(0, "method", method)
    return found


def recalibration(look: Look, title: str) -> Iterator[Section]:
    """Scan metrics after recalibration to n labelled scans of the scored site."""
    if look.home is None:
        return
    p = torch.from_numpy(look.probability)
    sizes = [n for n in SIZES if 2 * n <= len(p)]
    if not sizes:
        raise DataError(f"{len(p)} scans are too few")
    curve = recalibration_curve(
        torch.logit(p, eps=1e-6),
        look.labels,
        look.bags.patients,
        Calibration(),
        sizes=sizes,
        seed=look.seed,
    )
    look.table(curve, "recalibration")
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
        f"{way}: pays from {n} scans on" if n else f"{way}: pays at none of these sizes"
        for way, n in pays.items()
    )
    lines = [("as trained", own), *lines]
    png = curves(lines, x="n", y="y", labels=("labelled scans", "scan log-loss"))
    yield Section(
        title,
        "Platt's sigmoid (`platt`) or its intercept alone fitted to n labelled scans of the site, measured "
        "on its other scans: median of draws, `low` to `high` 5 to 95 % of them, `better` the share of draws "
        f"below the model's `own`. Draws overlap, so these are no confidence intervals. {text}.",
        shown,
        (look.figure(png, "recalibration"),),
    )


def drift(look: Look, title: str) -> Iterator[Section]:
    """Drift test of the scored set against the training site, and alarm rates within the training site."""
    if look.home is None:
        return
    home, there = look.home
    alarm = DriftAlarm.fit(
        summarise(home.x.numpy(), home.offsets.numpy()),
        there.scan,
        home.patients,
        names=column_names(home.x.shape[1]),
        seed=look.seed,
    )
    found = alarm.test(
        summarise(look.bags.x.numpy(), look.bags.offsets.numpy()), look.probability, look.bags.patients
    )
    moved = pd.DataFrame([vars(one) for one in (*found.moved, found.score)])
    yield Section(title, found.text(), look.table(moved, "drift"))
    if len(set(home.patients)) < 2 * BATCH:
        return
    rates = alarm_rates(home.x.numpy(), home.offsets.numpy(), there.scan, home.patients, seed=look.seed)
    yield Section(
        "How often the drift alarm rings at the training site",
        f"{BATCH} patients of it, drawn at random, against its others: as they are, and with every feature "
        "moved by `step` of its deviation over scans. The interval is for more draws from the same scans.",
        look.table(rates, "drift_rates"),
    )
