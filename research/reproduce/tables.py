"""Result table of a protocol, its report sections, and the comparison with published figures."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ich_mil import __version__
from ich_mil.evaluate.metrics import INSIDE, SCAN, SLICE
from ich_mil.evaluate.model_metrics import measure
from ich_mil.evaluate.scores import Scores
from ich_mil.files import write_bytes, write_csv
from ich_mil.sets.features import FeatureSet
from research.reproduce.figures import auc_and_time, metric_rows
from research.reproduce.file_names import file_stem
from research.reproduce.page import Section, spread
from research.reproduce.protocol import BenchmarkSet, ProtocolConfig
from research.reproduce.published import beside

SHOWN = (
    (SCAN, "auc", "scan AUC"),
    (SCAN, "log_loss", "log-loss"),
    (SCAN, "ece", "ECE"),
    (SCAN, "accuracy", "accuracy"),
    (SCAN, "f1", "F1"),
    (SLICE, "auc", "slice AUC"),
    (INSIDE, "auc", "slice AUC inside positive scans"),
)
"""Columns of the report table; `results.csv` has every metric."""

COLUMNS = ["level", "metric", "mean", "std", "low", "high", "seeds", "n", "positives", "patients", "note"]


def metrics_over_seeds(
    runs: Sequence[Scores], bags: FeatureSet, *, seed: int, resamples: int
) -> pd.DataFrame:
    """Metrics of one model over several seeds: mean, standard deviation over seeds, and interval by patient.

    `std` is the variation of another seed (folds, inducing points, initial weights) on the same scans; `low`
    and `high` are the 95 % interval of the mean over seeds for other patients with the same models. A
    mean ± std over splits, as papers report it, mixes the two.

    `runs` are the scores with each seed. `note` says why a number is missing.
    """
    rows = measure(runs, bags, seed=seed, resamples=resamples)
    for row in rows:
        values = row["values"]
        std = values.std(ddof=1) if len(runs) > 1 else np.nan
        row |= {"mean": values.mean(), "std": std, "seeds": len(runs)}
    return pd.DataFrame(rows)[COLUMNS]


def facts_of(config: ProtocolConfig) -> list[str]:
    """Facts about the run, and explanations of the numbers."""
    split = [one for one in config.sets if one.one_split]
    validated = ", validation (early stopping, calibration)"
    return [
        f"ich_mil {__version__}, settings {config.hash}",
        f"heads: {', '.join(config.heads)}, M = {', '.join(map(str, config.n_inducing))}; "
        f"analysed in detail: {config.main}, M = {config.main_inducing}",
        *(_fold_facts(config) if len(split) < len(config.sets) else ()),
        *(
            f"{one.name}: one split into training{'' if one.test else validated} and test scans; seeds "
            f"{', '.join(map(str, one.cnn_seeds))} (of the network and k-means)"
            for one in split
        ),
        "every fitted head and M is shown; the heads' defaults were chosen in earlier work that had seen the "
        "public sets (research/RESULTS.md)",
        "an ECE is never negative, so chance adds to it; its interval allows for that",
        "a ± s [l, h]: mean over seeds, standard deviation over seeds, 95 % interval over "
        f"{config.resamples} resamples of patients",
        "heads are calibrated on held-out folds of their own training scans, or on validation scans",
    ]


def _fold_facts(config: ProtocolConfig) -> list[str]:
    """Facts about the sets that are divided into folds."""
    return [
        f"held-out: {config.folds} folds by patient, stratified by label, seeds "
        f"{', '.join(map(str, config.seeds))} (of folds and k-means); each scan is scored by a head that has "
        "seen no scan of its patient; a table without patients counts each scan as a patient",
        "the held-out folds of a seed are measured as one set; 'position only' gives each fold the "
        "prevalence of the others, so its scan AUC falls a little below 0.5",
    ]


def result_sections(
    one: BenchmarkSet, results: pd.DataFrame, folder: Path, config: ProtocolConfig
) -> Iterator[Section]:
    """Tables and figures of all models on each scored set, and the comparison with published figures."""
    several = results.width.nunique() > 1
    for (scored, width), rows in results.groupby(["scored", "width"], sort=False):
        name = f"{scored}, D={width}" if several else str(scored)
        of_scans = rows[(rows.level == SCAN) & (rows.metric == "auc")]
        figures = []
        for png, what in (
            (metric_rows(of_scans, metric="scan AUC"), "auc"),
            (auc_and_time(of_scans[of_scans.n_inducing > 0]), "auc_time"),
        ):
            path = folder / f"{file_stem(name)}_{what}.png"
            write_bytes(path, png)
            figures.append(f"{folder.name}/{path.name}")
        facts = of_scans.iloc[0]
        yield Section(
            name,
            f"{facts.n:.0f} scans, {facts.positives:.0f} positive, of {facts.patients:.0f} patients; "
            f"{facts.seeds:.0f} seeds.",
            wide(rows),
            tuple(figures),
        )
    theirs = _published(one, results)
    write_csv(folder / "published.csv", theirs)
    aucs = theirs[
        (theirs.metric == "auc") & (theirs.source != "") & (theirs.n_inducing == config.main_inducing)
    ]
    if len(aucs):
        ours = [spread(*one) for one in zip(aucs["mean"], aucs["std"], strict=True)]
        printed = [spread(*one) for one in zip(aucs.published, aucs.published_std, strict=True)]
        yield Section(
            "Published figures beside ours",
            f"AUCs at M = {config.main_inducing}; `published.csv` has all. A figure stands beside ours "
            "where data and protocol are the same; elsewhere the reason is given.",
            aucs[["dataset", "features", "model", "n_inducing", "level"]].assign(
                ours=ours, published=printed, source=aucs.source, note=aucs.note
            ),
        )


def _published(one: BenchmarkSet, results: pd.DataFrame) -> pd.DataFrame:
    """AUC, accuracy and F1 of the heads with the published figure, or the reason why there is none."""
    heads = results[(results.n_inducing > 0) & results.metric.isin(["auc", "accuracy", "f1"])]
    heads = heads[heads.level.isin([SCAN, SLICE])].drop(columns="note")
    away = heads.scored == one.external_name
    pixels = "PCA" if one.components else "RAW"
    return beside(
        heads.assign(
            dataset=heads.scored.where(away, one.dataset or one.name),
            protocol=away.map({True: one.published.get(one.external_name, ""), False: one.published[""]}),
            features=pixels if one.kind in ("digits", "mnist") else heads.width.astype(str),
        )
    )


def wide(rows: pd.DataFrame) -> pd.DataFrame:
    """Reshape to one row for each model and one column for each metric of `SHOWN` that some model has."""
    lines: list[dict[str, str]] = []
    for (model, m), own in rows.groupby(["model", "n_inducing"], sort=False):
        line = {"model": str(model), "M": str(m) if m else ""}
        for level, metric, title in SHOWN:
            cell = own[(own.level == level) & (own.metric == metric)]
            line[title] = "–" if cell.empty else spread(*cell[["mean", "std", "low", "high"]].iloc[0])
        lines.append(line)
    table = pd.DataFrame(lines)
    return table.loc[:, (table != "–").any()]
