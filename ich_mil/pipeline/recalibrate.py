"""Recalibrate: a trained model and labelled scans of a site to a model whose probabilities fit that site.

In: a finished run and labelled scans of patients it has not seen. Out, in a folder of its own, a run as
`predict`, `validate` and `serve` read it: the same CNN and the same Gaussian process, with another intercept
of the sigmoid that makes scan probabilities; and `recalibration.csv`, what that changes. The site's patients
stand in its `splits.csv`, so that nobody measures it on them.

One number is fitted, because more pays at no number of scans that was tried (`ich-mil reproduce features`).
"""

from pathlib import Path
from shutil import copyfile

import pandas as pd

from ich_mil.config import SetLayout, SetSettings
from ich_mil.data.features import FeatureSet
from ich_mil.data.splits import load_splits, write_splits
from ich_mil.errors import ConfigError, ModelError
from ich_mil.evaluate.compare import compare
from ich_mil.evaluate.shift import cross_fitted, recalibrate
from ich_mil.evaluate.show import format_value
from ich_mil.files import alone, whole_file, write_json
from ich_mil.gp.predict import scan_samples
from ich_mil.gp.storage import save_head
from ich_mil.model import load_model, read_run
from ich_mil.pipeline.validate import external_set
from ich_mil.progress import say

SHOWN = {"log_loss": "log-loss", "brier": "Brier", "ece": "ECE"}
OWN, NEW = "as trained", "recalibrated"


def recalibrate_run(root: Path, *, layout: SetLayout, model: Path, out: Path, jobs: int) -> None:
    """Write the recalibrated model to `out`, and print what it changes.

    Args:
        root: the labelled scans.
        layout: of `root`.
        model: folder of the run.
        out: folder of the new one; the site's prepared set and features go to `out/site`.
        jobs: processes that prepare.

    Raises:
        ConfigError: `out` holds a run already.
        ModelError: the run is not finished, or its probabilities are not calibrated.
        DataError: data that cannot be used, a patient the run has seen, or too few labelled scans.
    """
    trained = load_model(model)
    own = trained.head.calibration
    if own is None:
        raise ModelError(
            f"{model}: its probabilities are uncalibrated, it did not tell its own held-out scans apart; "
            "train again"
        )
    with alone(out, doing="writing"):
        if (out / "run.json").exists():
            raise ConfigError(f"{out}: holds a run already; choose another --out")
        features = external_set(
            trained,
            SetSettings(layout, str(root)),
            out / "site" / "prepared",
            out / "site" / "features.safetensors",
            jobs,
        ).features
        labels = features.labels.numpy()
        logits, _ = scan_samples(
            trained.head,
            features.x.double(),
            features.offsets,
            features.scans,
            positions=features.positions_mm,
            samples=trained.samples,
            seed=trained.seed,
        )
        trained.head.calibration = recalibrate(logits, labels, own, way="intercept")
        probabilities = {
            OWN: own.scan(logits).mean(0).numpy(),
            NEW: cross_fitted(logits, labels, features.patients, own),
        }
        table = compare(
            labels,
            probabilities,
            features.patients,
            reference=OWN,
            seed=trained.seed,
            resamples=trained.bootstrap,
        )
        table = table[table.metric.isin(SHOWN)].drop(columns="delong_p")
        with whole_file(out / "recalibration.csv") as temporary:
            table.to_csv(temporary, index=False)
        write_splits(_splits(load_splits(model / "splits.csv"), features), out / "splits.csv")
        for name in ("config.yaml", "cnn.json", "cnn.safetensors"):
            if (model / name).is_file():
                with whole_file(out / name) as temporary:
                    copyfile(model / name, temporary)
        save_head(trained.head, out)
        site = {"scans": len(labels), "positive": int(labels.sum()), "run": str(model)}
        write_json(out / "run.json", {**read_run(model), "site": site})  # last: now it is a run
    say(_told(table, own.intercept, trained.head.calibration.intercept))
    say(f"{out}: use it as --model")


def _splits(splits: pd.DataFrame, features: FeatureSet) -> pd.DataFrame:
    """The run's own scans, and those of the site among the ones it was calibrated on."""
    site = pd.DataFrame(
        {
            "scan": features.scans,
            "patient": features.patients,
            "label": features.labels.tolist(),
            "split": "validation",
        }
    )
    # patients the run held out may be used here, and are then held out no more
    return pd.concat([splits[~splits.patient.isin(site.patient)], site], ignore_index=True)


def _told(table: pd.DataFrame, before: float, after: float) -> str:
    first = table.iloc[0]
    lines = [
        f"{first.n} labelled scans, {first.positives} positive, of {first.patients} patients: the intercept "
        f"goes from {before:.3f} to {after:.3f}.",
        "Each scan by an intercept fitted to other patients, against the model as trained; 95 % intervals by "
        "patient:",
    ]
    rows = {row["metric"]: row for row in table.to_dict("records")}
    for metric, title in SHOWN.items():
        row = rows[metric]
        gain = format_value(row["difference"], row["low"], row["high"])
        lines.append(f"  {title:<9}{row['reference_value']:.3f} -> {row['value']:.3f}, difference {gain}")
    if not rows["log_loss"]["high"] < 0:
        lines.append("Whether it pays cannot be told from these scans: the interval of the log-loss holds 0.")
    return "\n".join(lines)
