"""Recalibrate the probabilities of a trained model to labelled scans of a site.

In: a finished run and labelled scans of patients it has not seen. Out: a folder with a run for `predict`,
`validate` and `serve`, and `recalibration.csv` with the metrics before and after. CNN and Gaussian process
are unchanged. The intercept of the sigmoid that calibrates scan probabilities is refitted, and so is that of
the sigmoid over the CNN's own probability in result tables. The scans of the site are added to `splits.csv`,
so that the model is not evaluated on their patients.

Only the intercept is fitted: a refitted slope did not help for any number of scans tried (`python -m
research.reproduce features`). The intercept depends on the share of positive scans, so scans selected by
their label give a wrong intercept.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from torch import Tensor

from ich_mil.errors import DataError, ModelError, named
from ich_mil.evaluate.baselines import CNN_SIGMOID, CnnSigmoid
from ich_mil.evaluate.deployment.recalibration import (
    LEAST_SCANS,
    cross_fitted,
    recalibrate,
    refitted_differences,
)
from ich_mil.evaluate.metrics import scan_metrics
from ich_mil.files import alone, copy_files, write_csv, write_json
from ich_mil.gp.calibration import Calibration
from ich_mil.model.copying import copy_run
from ich_mil.model.folder import check_new, read_run
from ich_mil.model.model import TrainedModel
from ich_mil.model.site.validate import MeasuredSet, Site
from ich_mil.model.storage import learned_table, load_model, save_calibration
from ich_mil.progress import say
from ich_mil.sets.features import FeatureSet
from ich_mil.sets.splits import SPLIT_COLUMNS, keys_of, scan_keys, write_splits

LEAST_OF_A_LABEL = 5
"""Minimum of scans per label; with fewer, or below `LEAST_SCANS` patients, prevalence is too uncertain."""

DIVISIONS = 20
"""Number of random divisions of the patients into folds; cross-fitted metrics are means over them."""

SHOWN = {"log_loss": "log-loss", "brier": "Brier", "ece": "ECE"}


def recalibrate_run(site: Site, *, model: Path, out: Path) -> None:
    """Write the recalibrated model to `out` and print the change of the metrics.

    The prepared set and features of the site go to `out/site`.

    Raises:
        ConfigError: `out` holds a run already.
        ModelError: the run is not finished, or is not calibrated.
        DataError: data that cannot be used, a patient the run has seen, too few scans, or an AUC of the model
            of at most 0.5 on these scans.
    """
    with alone(out, doing="writing"):
        check_new(out, "recalibrated")
        prepared = site.prepare(out / "site")  # a fault of the labels shows before the model is loaded
        trained, old = _calibrated(model)
        measured = site.measured(trained, prepared, out / "site")
        features = measured.features
        with named(site.root):
            _check_site(features)
            logits = trained.logits(measured.views)[0]
            table = _table(logits, features, old, trained.seed)
            if table.auc[0] <= 0.5:
                raise DataError(
                    f"the model does not rank these scans (AUC {table.auc[0]:.3f}), or their labels are "
                    "swapped; recalibration cannot help"
                )
        new = recalibrate(logits, features.labels.numpy(), old)
        _write_all_but_head(trained, measured, out)
        write_csv(out / "recalibration.csv", table)
        save_calibration(trained, new, out)  # last, as it marks the run as finished
    say(*_summary(table, old, new), f"{out}: use it as --model")


def _calibrated(model: Path) -> tuple[TrainedModel, Calibration]:
    """The model and its calibration. `ModelError`: it is not finished, or not calibrated."""
    trained = load_model(model)
    calibration = trained.calibration
    if calibration is None and all(member.calibration for member in trained.members):
        calibration = Calibration()  # identity: an ensemble with calibrated members but no joint calibration
    if calibration is None:
        raise ModelError(
            f"{model}: is not calibrated (head.calibration is none, or its AUC on held-out scans is at most "
            "0.5); train a calibrated model"
        )
    return trained, calibration


def _check_site(features: FeatureSet) -> None:
    patients, positive = len(set(features.patients)), int(features.labels.sum())
    if patients < LEAST_SCANS:
        raise DataError(
            f"recalibration needs labelled scans of at least {LEAST_SCANS} patients, these are of "
            f"{patients}; label more, or keep the model's own calibration"
        )
    if min(positive, features.n_scans - positive) < LEAST_OF_A_LABEL:
        raise DataError(
            f"recalibration needs at least {LEAST_OF_A_LABEL} scans of each label, {positive} of "
            f"{features.n_scans} are positive; label more consecutive scans, without selection"
        )


def _table(logits: Tensor, features: FeatureSet, calibration: Calibration, seed: int) -> pd.DataFrame:
    """Table with a row per metric: before, after (cross-fitted), 95 % of resampled differences, counts."""
    labels = features.labels.numpy()
    before = scan_metrics(labels, calibration.scan(logits).mean(0).numpy())
    held = [cross_fitted(logits, labels, features.patients, calibration, seed=k) for k in range(DIVISIONS)]
    after = pd.DataFrame([scan_metrics(labels, p) for p in held]).mean()
    resampled = refitted_differences(logits, labels, features.patients, calibration, seed=seed)
    rows = []
    for metric in SHOWN:
        low, high = np.quantile(resampled[metric], [0.025, 0.975])
        better = float((resampled[metric] < 0).mean())
        rows.append((metric, before[metric], after[metric], low, high, better))
    table = pd.DataFrame(rows, columns=["metric", "before", "after", "low", "high", "better"])
    facts = {"n": len(labels), "positives": int(labels.sum()), "patients": len(set(features.patients))}
    return table.assign(**facts, auc=before["auc"])


def _write_all_but_head(trained: TrainedModel, measured: MeasuredSet, out: Path) -> None:
    """Write the files of the run except the head; `run.json` is first, as it identifies a recalibration."""
    scans, features = measured.scans, measured.features
    site = {"scans": len(scans), "positive": int(scans.label.sum()), "run": str(trained.folder)}
    write_json(out / "run.json", {**read_run(trained.folder), "site": site})
    copy_files(trained.folder, out, "config.yaml", "cnn.json", "cnn.safetensors")
    for member in trained.members:
        if member.folder != trained.folder:
            copy_run(member.folder, out / member.folder.name)
    sigmoid = CnnSigmoid.load(trained.folder / CNN_SIGMOID)
    if sigmoid and (new := sigmoid.at_site(features.cnn_scan, features.labels)):
        new.save(out / CNN_SIGMOID)
    write_splits(_splits(learned_table(trained.folder), scans), out / "splits.csv")


def _splits(splits: pd.DataFrame, scans: pd.DataFrame) -> pd.DataFrame:
    """Split of the recalibrated run: scans of the site are added to the split `validation`."""
    site = scans.rename_axis("scan").reset_index().assign(split="validation", learn="heads")[SPLIT_COLUMNS]
    # the site may include patients held out by the run; they are no longer held out
    seen, rows = keys_of(scans), zip(splits.scan, splits.patient, splits.content, strict=True)
    kept = [scan_keys(*row).isdisjoint(seen) for row in rows]
    return pd.concat([splits[kept], site], ignore_index=True)


def _summary(table: pd.DataFrame, old: Calibration, new: Calibration) -> list[str]:
    """Change of the metrics in words, for the console."""
    first = table.iloc[0]
    share = f"{first.positives / first.n:.0%}"
    lines = [
        f"{first.n} labelled scans of {first.patients} patients, {first.positives} positive ({share}); AUC "
        f"{first.auc:.3f}. Intercept: {old.intercept:.3f} before, {new.intercept:.3f} after.",
        f"Metrics of held-out patients, mean of {DIVISIONS} divisions into folds; in brackets 95 % of "
        "resamples of patients (few scans: mostly sampling noise):",
    ]
    for row in table.to_dict("records"):
        change = f"{row['after'] - row['before']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"
        lines.append(
            f"  {SHOWN[row['metric']]:<9}{row['before']:.3f} -> {row['after']:.3f}, {change}, better in "
            f"{row['better']:.0%} of resamples"
        )
    return [
        *lines,
        f"Prefer the log-loss: the ECE is biased upwards. Valid for scans with a similar share of positives "
        f"({share}); scans selected by label give a wrong intercept.",
    ]
