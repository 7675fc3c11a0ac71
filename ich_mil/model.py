"""A trained run as one object: the frozen CNN, the Gaussian-process head, its calibration, and who it is.

In: the folder of a run. Out: `TrainedModel`, which turns prepared scans or features into predictions.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ich_mil import __version__
from ich_mil.data.features import FeatureSet
from ich_mil.data.store import PreparedSet
from ich_mil.errors import ConfigError, ModelError
from ich_mil.evaluate.metrics import THRESHOLD
from ich_mil.files import digest
from ich_mil.gp.counterfactual import Counterfactuals, counterfactuals
from ich_mil.gp.predict import Predictions, predict, scan_samples
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.gp.storage import load_head
from ich_mil.models.attention_cnn import AttentionCnn
from ich_mil.models.frozen import load_cnn, stored_features
from ich_mil.predictions import DIGITS, Provenance
from ich_mil.ranks import device

RUN_FORMAT = "ich_mil.run.4"
FAMILIES = {
    "psi": "VGPMIL",
    "large_margin": "LM-VGPMIL",
    "probit": "MIL-GP-Probit",
    "gibbs": "MIL-GP-Probit, sampled",
}
CALIBRATIONS = {
    "platt": "Platt scaling",
    "temperature": "temperature scaling",
    "isotonic": "isotonic regression",
}


@dataclass(frozen=True)
class TrainedModel:
    """A finished run.

    Attributes:
        folder: of the run.
        cnn: None for a run on public features.
        head: with its calibration.
        provenance: which model it is, for what it says.
        thickness_mm: what thin slices were averaged to; 0 means they were not.
        samples: posterior samples a prediction.
        bootstrap: resamples an interval.
        seed: of the samples.
    """

    folder: Path
    cnn: AttentionCnn | None
    head: SparseGP
    provenance: Provenance
    thickness_mm: float
    samples: int
    bootstrap: int
    seed: int

    def check_input(self, *, pictures: bool) -> None:
        """Raise `ModelError` if the run reads features and pictures are offered, or the other way round."""
        if pictures and self.cnn is None:
            raise ModelError(
                f"{self.folder}: was trained on feature files and has no CNN; it cannot read pictures"
            )
        if not pictures and self.cnn is not None:
            raise ModelError(f"{self.folder}: has a CNN of its own; it cannot read the features of another")

    def features(self, prepared: PreparedSet, path: Path) -> FeatureSet:
        """The frozen CNN over every scan of a prepared set, kept in `path`."""
        assert self.cnn is not None  # check_input comes first
        return stored_features(
            path,
            self.cnn.to(device()),
            prepared,
            list(prepared.scans.index),
        )

    def predict(self, features: FeatureSet) -> Predictions:
        """Calibrated probabilities with sampled uncertainty."""
        return predict(self.head, **self._sampled(features), calibration=self.head.calibration)

    def scan_logits(self, features: FeatureSet) -> Tensor:
        """Sampled scan logits (L, B) before calibration: what a calibration is fitted to."""
        logits, _ = scan_samples(self.head, **self._sampled(features))
        return logits

    def _sampled(self, features: FeatureSet) -> dict[str, Any]:
        """What the posterior is sampled for, and how."""
        return {
            "x": features.x.double(),
            "offsets": features.offsets,
            "scans": features.scans,
            "positions": features.positions_mm,
            "samples": self.samples,
            "seed": self.seed,
        }

    def explain(self, features: FeatureSet, predictions: Predictions) -> Counterfactuals:
        """What each slice did for its scan: the calibrated probability without it."""
        return counterfactuals(
            self.head,
            **self._sampled(features),
            slice_mean=predictions.slice_mean.round(decimals=DIGITS),  # a run is made of what is written
            threshold=THRESHOLD,
            calibration=self.head.calibration,
        )


def _name(head: SparseGP) -> str:
    settings = head.settings
    name = FAMILIES[settings.family]
    if "density" in head.given:
        name = "ψ-VGPMIL with a density of its own"
    elif settings.family == "psi" and settings.density == "gamma":
        name = f"G-VGPMIL α={settings.alpha:g} β={settings.beta:g}"
    return f"{name}, M={len(head.inducing)}, D={len(head.x_mean)}"


def _calibration(head: SparseGP, site: dict[str, Any] | None) -> str:
    if head.calibration is None:
        return ""
    if site is None:
        return f"{CALIBRATIONS[head.calibration.method]} on held-out scans"
    scans = f"{site['scans']} labelled scans of the site, {site['positive']} of them positive"
    return f"sigmoid, its intercept fitted to {scans}"


def check_no_run(out: Path) -> None:
    """Refuse with a `ConfigError` to write results among the files of a run."""
    if (out / "run.json").is_file():
        raise ConfigError(f"{out}: is the folder of a run; choose another --out")


def read_run(folder: Path) -> dict[str, Any]:
    """`run.json` of a run. `ModelError` if there is none, or one that is damaged or of another version."""
    try:
        about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        found = about.get("format")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(
            f"{folder}: is no run of ich_mil ({error}); name the 'out' folder of a training"
        ) from error
    if found != RUN_FORMAT:
        raise ModelError(
            f"{folder}: is a run of another version ({found}, this one: {RUN_FORMAT}); train again"
        )
    config = about.get("config")
    known = set(config if isinstance(config, dict) else ())
    needed = {"cnn", "config_hash", "table", "versions"}
    missing = needed - set(about) | {"thickness_mm", "samples", "bootstrap", "seed"} - known
    if missing:
        raise ModelError(f"{folder / 'run.json'}: lacks {', '.join(sorted(missing))}; train again")
    return dict(about)


def load_model(folder: str | Path) -> TrainedModel:
    """The model of a run. `ModelError` if the run is not finished, or of another version."""
    folder = Path(folder)
    about = read_run(folder)
    names = ("cnn", "head") if about["cnn"] else ("head",)
    files = [folder / f"{name}{end}" for name in names for end in (".json", ".safetensors")]
    if missing := [path.name for path in files if not path.is_file()]:
        raise ModelError(
            f"{folder}: its training is not finished, {missing[0]} is not there; go on with --resume"
        )
    cnn = load_cnn(folder) if about["cnn"] else None
    head = load_head(folder, n_features=None if cnn is None else cnn.settings.features)
    config = about["config"]
    parts = [path.read_bytes() for path in files]
    parts.append(json.dumps([config[name] for name in ("thickness_mm", "samples", "seed")]).encode())
    return TrainedModel(
        folder=folder,
        cnn=cnn,
        head=head,
        provenance=Provenance(
            name=_name(head),
            version=__version__,
            weights=digest(*parts),
            config=about["config_hash"],
            calibration=_calibration(head, about.get("site")),
        ),
        thickness_mm=config["thickness_mm"],
        samples=config["samples"],
        bootstrap=config["bootstrap"],
        seed=config["seed"],
    )
