"""Kinds of bleed of positive scans: a logistic regression for each kind.

In: predictions of scans with known kinds, whose folder holds the features of every network, and a CSV of the
kinds. Out: a folder with one model per kind and `kinds.json`; with it `ich-mil predict --kinds` adds the
probability of each kind to scans that are not called negative.

A scan may show several kinds, so each kind is classified against the rest. Several kernels
(`ich_mil.multikernel`) are no better here (research/RESULTS.md, "Kinds of bleed in CQ500"). A network
describes a scan by the mean and the maximum of its slice features. Training scans are those with at least one
kind: probabilities hold for scans with a bleed.

Shapes: B scans, D features of a network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from scipy.stats import beta
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedGroupKFold

from ich_mil.errors import ConfigError, DataError, ModelError
from ich_mil.evaluate.bootstrap import Interval, patient_bootstrap
from ich_mil.files import alone, write_json
from ich_mil.ledger import NOTICE
from ich_mil.model.predictions import KindResult, Results, read_results
from ich_mil.model.site.logistic_kind import LogisticKind
from ich_mil.model.storage import load_model
from ich_mil.model_files import read_json
from ich_mil.progress import progress, say
from ich_mil.sets.features import FeatureSet
from ich_mil.sets.labels import binary, name_some, read_label_csv
from ich_mil.sets.scan_names import ScanNames, folder_names
from ich_mil.sets.views import Views

FORMAT = "ich_mil.kinds.2"
DESCRIPTION = "kinds.json"
NOT_KINDS = frozenset({"scan", "label", "patient", "probability", "any"})
"""Columns of the CSV that name no kind."""
FOLDS = 5
Fold = tuple[np.ndarray, np.ndarray]
"""Indices of the scans to train on, and of the held-out scans."""
FEWEST = 5
"""Smallest number of training scans with a kind, and without it."""


def _embed(views: Views) -> dict[str, np.ndarray]:
    """Mean and maximum over slices of the features of each network: name -> (B, 2D)."""
    return {f"network {k}": _mean_and_max(view) for k, view in enumerate(views.members)}


def _mean_and_max(features: FeatureSet) -> np.ndarray:
    x, starts = features.x.double().numpy(), features.offsets[:-1].numpy()
    mean = np.add.reduceat(x, starts) / features.offsets.diff().numpy()[:, None]
    return np.hstack([mean, np.maximum.reduceat(x, starts)])


def train_kinds(folder: Path, *, kinds: Path, model: Path, out: Path) -> None:
    """Fit a model for each kind, measure it on held-out folds by patient, and write both to `out`.

    A kind that is not told better than by its share in the table, beyond the 95 % interval, is left out.

    Args:
        folder: folder of `predict` or `validate`.
        kinds: CSV with a column scan, ids or folders of the predictions, and one 0/1 column per kind.
        model: the model of the predictions.
        out: folder to write.
    """
    trained = load_model(model)
    views = trained.predicted_features(folder)
    table = _read_kinds(kinds, read_results(folder))
    chosen = views.select(list(table.index))
    sources, patients = _embed(chosen), chosen.features.patients
    with alone(out, doing="writing"):
        if (out / DESCRIPTION).exists():
            raise ConfigError(f"{out}: holds kinds already; choose another --out")
        entries: list[dict[str, Any]] = []
        for name in progress(table.columns, total=table.shape[1], what="kinds", unit="kind"):
            y = table[name].to_numpy()
            folds = folds_by_patient(y, patients)
            if folds is None:
                say(f"{name}: {y.sum()} of {len(y)} scans, too few with or without it; left out")
                continue
            p, base = held_out(sources, y, patients, folds), base_rates(y, folds)
            auc, loss, base_loss = (
                float(x) for x in (roc_auc_score(y, p), log_loss(y, p), log_loss(y, base))
            )
            less = log_loss_less(y, p, base, patients)
            measured = f"{name}: {y.sum()} of {len(y)} scans; held-out AUC {auc:.3f}, log-loss {loss:.3f}"
            measured += f", less that of the base rate {with_interval(less)}"
            if less[1].high >= 0:
                say(f"{measured}: not told better than by its share; left out")
                continue
            entry = {"name": name, "file": f"kind_{len(entries)}.safetensors", "scans": len(y)}
            entry |= {"positive": int(y.sum()), "auc": auc, "log_loss": loss, "base_log_loss": base_loss}
            LogisticKind.fit(sources, y, patients).save(out / str(entry["file"]))
            entries.append(entry)
            say(measured)
        if not entries:
            raise DataError(
                f"{kinds}: no kind has enough scans and is told better than by its share; label more scans"
            )
        metadata = {"format": FORMAT, "weights": trained.provenance.weights, "notice": NOTICE}
        write_json(out / DESCRIPTION, metadata | {"kinds": entries})
    say(f"{out}: use it as --kinds")


def _read_kinds(path: Path, results: Results) -> pd.DataFrame:
    """Scans with at least one kind: index scan, one 0/1 column per kind."""
    given = read_label_csv(path, ["scan"], key="scan")
    kinds = [str(name) for name in given.columns if name and name not in NOT_KINDS]
    if not kinds:
        raise DataError(f"{path}: has no column of a kind; add one with 0 and 1, such as subdural")
    names = ScanNames(folder_names((scan.scan, scan.folder) for scan in results.scans))
    found = [names.find(name) for name in given.scan]
    if unknown := [name for name, scans in zip(given.scan, found, strict=True) if len(scans) != 1]:
        raise DataError(
            f"{path}: names of no predicted scan, or of several: {name_some(unknown)}; write the scan or the "
            "folder of scans.csv, and predict the others first"
        )
    scans = pd.Index([scan for (scan,) in found], name="scan")
    if twice := scans[scans.duplicated()].tolist():
        raise DataError(f"{path}: scans with two rows: {name_some(twice)}; keep one")
    table = pd.DataFrame({kind: binary(given[kind], path) for kind in kinds}).set_axis(scans)
    table = table[table.any(axis=1)]
    if denied := [scan.scan for scan in results.scans if scan.label == 0 and scan.scan in table.index]:
        raise DataError(
            f"{path}: a kind of scans whose label says no bleed: {name_some(denied)}; correct one of the two"
        )
    return table


def folds_by_patient(y: np.ndarray, patients: Sequence[str]) -> list[Fold] | None:
    """Folds by patient; None if a training part has fewer than `FEWEST` with or without the kind."""
    if min(y.sum(), len(y) - y.sum()) < FEWEST or len(set(patients)) < FOLDS:
        return None
    folds = list(StratifiedGroupKFold(FOLDS, shuffle=True, random_state=0).split(y, y, groups=patients))
    least = min(min(y[inside].sum(), (1 - y[inside]).sum()) for inside, _ in folds)
    return None if least < FEWEST else folds


def held_out(
    sources: Mapping[str, np.ndarray],
    y: np.ndarray,
    patients: Sequence[str],
    folds: Sequence[Fold],
) -> np.ndarray:
    """Probability (B,) of each scan by the model of the other folds."""
    p = np.empty(len(y))
    for inside, outside in folds:
        learn, held = ({name: x[rows] for name, x in sources.items()} for rows in (inside, outside))
        fitted = LogisticKind.fit(learn, y[inside], [patients[i] for i in inside])
        p[outside] = np.asarray(fitted.predict_proba(held))[:, 1]
    return p


def base_rates(y: np.ndarray, folds: Sequence[Fold]) -> np.ndarray:
    """Share (B,) of the kind in the other folds of each scan."""
    p = np.empty(len(y))
    for inside, outside in folds:
        p[outside] = y[inside].mean()
    return p


def log_loss_less(
    y: np.ndarray, p: np.ndarray, other: np.ndarray, patients: Sequence[str]
) -> tuple[float, Interval]:
    """Log-loss of probabilities p (B,) less that of others, with the 95 % interval by patient."""
    losses = [-np.log(np.where(y, q, 1 - q).clip(min=np.finfo(float).eps)) for q in (p, other)]
    less = losses[0] - losses[1]
    ends = patient_bootstrap(lambda counts: {"less": less @ counts / counts.sum(0)}, patients, seed=0)
    return float(less.mean()), ends["less"]


def with_interval(less: tuple[float, Interval]) -> str:
    """A difference with its interval."""
    return f"{less[0]:+.3f} [{less[1].low:+.3f}, {less[1].high:+.3f}]"


@dataclass(frozen=True)
class Kinds:
    """Models of several kinds.

    Attributes:
        models: model of each kind, by name.
        held_out_auc: AUC of each kind on held-out training scans.
    """

    models: dict[str, LogisticKind]
    held_out_auc: dict[str, float]

    @classmethod
    def load(cls, folder: Path, *, weights: str) -> Self:
        """Read what `train_kinds` wrote. `ModelError`: missing, damaged, or of a model of other weights."""
        path = folder / DESCRIPTION
        if not path.is_file():
            raise ModelError(f"{folder}: holds no kinds of bleed; name a folder of 'ich-mil subtype'")
        metadata = read_json(path, FORMAT)
        try:
            entries, stored_weights = metadata["kinds"], metadata["weights"]
            auc = {entry["name"]: float(entry["auc"]) for entry in entries}
            files = {entry["name"]: folder / entry["file"] for entry in entries}
        except (ValueError, TypeError, KeyError) as error:
            raise ModelError(
                f"{path}: cannot be read as kinds of bleed ({error}); name a folder of 'ich-mil subtype'"
            ) from error
        if stored_weights != weights:
            raise ModelError(f"{folder}: belongs to another model; run 'ich-mil subtype' with this one")
        return cls({name: LogisticKind.load(file) for name, file in files.items()}, auc)

    def predict(self, views: Views) -> tuple[KindResult, ...]:
        """Probability of each kind for one scan."""
        sources, kinds = _embed(views), []
        for name, model in self.models.items():
            mean, std = model.predict_proba(sources, return_std=True)
            lead, share = model.shares.argmax(), float(model.shares.max())
            auc = self.held_out_auc[name]
            kinds.append(_result(name, float(mean[0, 1]), float(std[0, 1]), f"network {lead}", share, auc))
        return tuple(kinds)


def _result(name: str, p: float, std: float, source: str, share: float, auc: float) -> KindResult:
    """The interval is that of the Beta distribution with the mean and deviation of the posterior."""
    size = p * (1 - p) / max(std, 1e-9) ** 2 - 1
    ends = (0.025, 0.975)
    low, high = (float(beta.ppf(q, p * size, (1 - p) * size)) for q in ends) if size > 0 else (0.0, 1.0)
    interval = (round(low, 6), round(high, 6))
    return KindResult(name, round(p, 6), round(std, 6), interval, source, round(share, 3), round(auc, 3))
