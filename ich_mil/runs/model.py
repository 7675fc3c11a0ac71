"""Trained model: frozen CNN, Gaussian-process head, calibration and provenance of a run or an ensemble.

In: the folder of a run, or of an ensemble of runs. Out: `TrainedModel`, which computes predictions from
prepared scans or features. An ensemble is the mixture of its members. Their posterior samples are pooled, so
that the uncertainty includes the spread between networks:

    E p = mean of the members' means        Var p = mean of their variances + variance of their means

Each sample passes through the Platt scaling of its member, then through that of the mixture, which is stored
in `ensemble.json`. The second step is needed because averages of calibrated probabilities are
under-confident. On held-out scans of the RSNA features of three CNN runs the log-loss is 0.230 without it and
0.221 with it (15 divisions into five folds, better in each).

Shapes: B scans, L samples.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ich_mil import __version__
from ich_mil.data.features import FeatureSet
from ich_mil.data.store import PreparedSet
from ich_mil.data.views import Places, Views
from ich_mil.encoders.attention_cnn import AttentionCnn
from ich_mil.encoders.frozen import load_cnn, stored_features
from ich_mil.errors import ConfigError, ModelError
from ich_mil.evaluate.baselines import CNN_SIGMOID
from ich_mil.evaluate.deployment.out_of_distribution import LIKENESS, Likeness
from ich_mil.evaluate.metrics import THRESHOLD
from ich_mil.files import copy_files, digest, write_json
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.counterfactual import Counterfactuals, counterfactuals, mean_counterfactuals
from ich_mil.gp.predict import Predictions, Sampled, pool, sample_probabilities, scan_samples, summarise
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.gp.storage import load_head, save_head
from ich_mil.multimodal.extras import ExtraSources
from ich_mil.multimodal.head import MultimodalHead
from ich_mil.progress import say_once
from ich_mil.ranks import device
from ich_mil.runs.predictions import DIGITS, Provenance

RUN_FORMAT = "ich_mil.run.5"
ENSEMBLE, ENSEMBLE_FORMAT = "ensemble.json", "ich_mil.ensemble.1"
FINISHED = ("head.json", ENSEMBLE)
"""Files written last: their presence marks a finished run or ensemble."""
REFERENCE = "reference.safetensors"
"""File name of the reference scans of the drift test; see `ich_mil.commands.drift`."""
KEPT = (
    "config.yaml",
    "splits.csv",
    "cnn.json",
    "cnn.safetensors",
    CNN_SIGMOID,
    "head_fit.json",
    LIKENESS,
    REFERENCE,
    "run.json",
    "head.safetensors",
    "head.json",
)
"""Files that `copy_run` copies."""
BUNDLED = "headct-base"
"""Name of the model bundled with the package."""
LEAST_SAMPLES = 200
"""Minimum of posterior samples per member, needed for its interval, unless the settings ask for fewer."""
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
class Member:
    """A network with its head.

    Attributes:
        folder: folder of its run.
        cnn: frozen CNN; None for a run on public features.
        head: head with its calibration.
        own: for a member of an ensemble, the head's calibration, applied before that of the ensemble; None
            for a single run, or where the head is not calibrated.
        seed: seed of the samples.
        likeness: check of the likeness to the training scans; None where the run has none.
    """

    folder: Path
    cnn: AttentionCnn | None
    head: SparseGP | MultimodalHead
    own: Calibration | None
    seed: int
    likeness: Likeness | None

    def calibration(self, joint: Calibration | None) -> Calibration | None:
        """Calibration of the head's logits: `own`, followed by the `joint` calibration of the model."""
        return self.own.then(joint) if self.own and joint else self.own or joint

    def sampled(self, features: FeatureSet, samples: int) -> dict[str, Any]:
        """Keyword arguments of the sampling functions of `ich_mil.gp`."""
        return {
            "x": features.x.double(),
            "offsets": features.offsets,
            "scans": features.scans,
            "positions": features.positions_mm,
            "samples": samples,
            "seed": self.seed,
        }

    def logits(self, features: FeatureSet, samples: int) -> Tensor:
        """Sampled logits (2, L, B) of `scan_samples`, by scan rule and by slice rule, after `own` if any."""
        if isinstance(self.head, MultimodalHead):
            both = self.head.logits(features, samples, seed=self.seed)
        else:
            both = torch.stack(scan_samples(self.head, **self.sampled(features, samples)))
        return both if self.own is None else self.own.logits(both)

    def probabilities(
        self, features: FeatureSet, samples: int, joint: Calibration | None
    ) -> Iterator[Sampled]:
        """Sampled probabilities of slices and scans, by the calibration `self.calibration(joint)`."""
        calibration = self.calibration(joint)
        if isinstance(self.head, MultimodalHead):
            return self.head.sample_probabilities(features, samples, seed=self.seed, calibration=calibration)
        return sample_probabilities(self.head, **self.sampled(features, samples), calibration=calibration)

    def explain(
        self,
        features: FeatureSet,
        slice_mean: Tensor,
        places: Places | None,
        samples: int,
        joint: Calibration | None,
    ) -> Counterfactuals:
        """Counterfactuals of the member; arguments as in `ich_mil.gp.counterfactual.counterfactuals`."""
        how: dict[str, Any] = {
            "threshold": THRESHOLD,
            "places": places,
            "calibration": self.calibration(joint),
        }
        if isinstance(self.head, MultimodalHead):
            return self.head.counterfactuals(features, slice_mean, samples, seed=self.seed, **how)
        sampled = self.sampled(features, samples)
        return counterfactuals(self.head, **sampled, slice_mean=slice_mean, **how)


@dataclass(frozen=True)
class TrainedModel:
    """A finished run, or an ensemble of runs whose posterior samples are pooled.

    Attributes:
        folder: folder of the run or ensemble.
        members: networks with their heads; a single run has one.
        calibration: calibration of the head of a single run, or joint calibration of the pooled samples of an
            ensemble; None where there is none.
        provenance: identity of the model, stored with its results.
        thickness_mm: target thickness in mm of averaged thin slices; 0: no averaging.
        samples: posterior samples per prediction, of each member.
        bootstrap: bootstrap resamples per interval.
        seed: seed of resamples and heatmaps.
    """

    folder: Path
    members: tuple[Member, ...]
    calibration: Calibration | None
    provenance: Provenance
    thickness_mm: float
    samples: int
    bootstrap: int
    seed: int

    def check_input(self, *, pictures: bool) -> None:
        """Raise `ModelError` unless the model reads this kind of input: pictures, or else features."""
        cnn = self.members[0].cnn
        if pictures and cnn is None:
            raise ModelError(
                f"{self.folder}: was trained on feature files and has no CNN; it cannot read pictures"
            )
        if not pictures and cnn is not None:
            raise ModelError(f"{self.folder}: has a CNN of its own; it cannot read the features of another")

    def features(self, prepared: PreparedSet, path: Path) -> Views:
        """Features of all scans of a prepared set by the frozen CNN of each member.

        They are stored in `path`; those of further members of an ensemble are stored beside it, as
        `features_1.safetensors`, ... for `path` = `features.safetensors`.
        """
        members = []
        for number, member in enumerate(self.members):
            assert member.cnn is not None  # the caller has called check_input
            members.append(
                stored_features(
                    path.with_stem(f"{path.stem}_{number}") if number else path,
                    member.cnn.to(device()),
                    prepared,
                    list(prepared.scans.index),
                )
            )
        return Views.of(members)

    def predict(self, views: Views) -> Predictions:
        """Calibrated probabilities, with sampled uncertainty, of the scans and slices of `views.features`."""
        drawn = [
            member.probabilities(view, self.samples, self.calibration)
            for member, view in zip(self.members, views.members, strict=True)
        ]
        return summarise(pool(drawn, views.places))

    def logits(self, views: Views) -> Tensor:
        """Pooled logits (2, L, B) before `calibration`, by scan rule and by slice rule."""
        pairs = zip(self.members, views.members, strict=True)
        return torch.cat([member.logits(view, self.samples) for member, view in pairs], 1)

    def unlikeness(self, views: Views) -> np.ndarray:
        """Unlikeness of scans to the training scans, (B,); above 1 a scan is unlike them.

        Mean over members of the ratio of score to threshold. Members without a likeness check are left out;
        NaN if no member has a check.
        """
        pairs = zip(self.members, views.members, strict=True)
        known = [one.likeness.scores(view) / one.likeness.threshold for one, view in pairs if one.likeness]
        return np.mean(known, axis=0) if known else np.full(views.features.n_scans, np.nan)

    def explain(self, views: Views, predictions: Predictions) -> Counterfactuals:
        """Calibrated scan probability without each slice, and without each run of positive slices."""
        slice_mean = predictions.slice_mean.round(decimals=DIGITS)  # as written to the files
        return mean_counterfactuals(
            [
                member.explain(view, slice_mean, places, self.samples, self.calibration)
                for member, view, places in zip(self.members, views.members, views.places, strict=True)
            ]
        )


def with_extras(
    views: Views, model: TrainedModel, sources: ExtraSources, prepared: PreparedSet | None
) -> Views:
    """Add the inputs beside the slices that the user names, if the model uses any.

    Raises:
        ConfigError: inputs for a model of slices alone.
        DataError: inputs that cannot be used.
    """
    heads = [one.head for one in model.members if isinstance(one.head, MultimodalHead)]
    kinds = sorted({kind for head in heads for kind in head.modalities.kinds} - {"slice"})
    if sources and not kinds:
        raise ConfigError(f"{model.folder}: predicts from slices alone; leave out requests and covariates")
    if not sources:
        if kinds:
            say_once(f"predicted from slices alone, though the model also takes: {', '.join(kinds)}")
        return views
    return views.with_extras(sources.read(views.features.scans, prepared))


def _name(head: SparseGP | MultimodalHead) -> str:
    if isinstance(head, MultimodalHead):
        return head.name
    settings = head.settings
    name = FAMILIES[settings.family]
    if "density" in head.given:
        name = "ψ-VGPMIL with a density of its own"
    elif settings.family == "psi" and settings.density == "gamma":
        name = f"G-VGPMIL α={settings.alpha:g} β={settings.beta:g}"
    return f"{name}, M={len(head.inducing)}, D={len(head.x_mean)}"


def _calibration(calibration: Calibration | None, site: dict[str, Any] | None, of: str = "") -> str:
    if calibration is None:
        return ""
    if site is None:
        return f"{CALIBRATIONS[calibration.method]}{of} on held-out scans"
    scans = f"{site['scans']} labelled scans of the site, {site['positive']} of them positive"
    return f"sigmoid, its intercept fitted to {scans}"


def check_no_run(out: Path) -> None:
    """Raise `ConfigError` if the output folder is the folder of a run."""
    if (out / "run.json").is_file():
        raise ConfigError(f"{out}: is the folder of a run; choose another --out")


def read_run(folder: Path) -> dict[str, Any]:
    """Read `run.json` of a run. Raises `ModelError` if it is missing, damaged or of another version."""
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
    needed = {"cnn", "config_hash", "table", "trained_on", "versions"}
    missing = needed - set(about) | {"thickness_mm", "samples", "bootstrap", "seed"} - known
    if missing:
        raise ModelError(f"{folder / 'run.json'}: lacks {', '.join(sorted(missing))}; train again")
    return dict(about)


def made_of(about: dict[str, Any]) -> str:
    """Derivation of a model from finished runs: `recalibrated`, `joined`, or '' for a trained model."""
    return "recalibrated" if "site" in about else "joined" if "joined" in about else ""


def load_model(folder: str | Path) -> TrainedModel:
    """Load the model of a run or ensemble, or the bundled model by its name `BUNDLED`.

    Raises:
        ModelError: the run is not finished, damaged, or of another version.
    """
    folder = Path(folder)
    if str(folder) == BUNDLED and not folder.exists():
        folder = Path(__file__).parents[1] / "bundled" / BUNDLED
        if not folder.exists():
            raise ModelError(f"{BUNDLED}: this installation has no bundled model; name the folder of a run")
    about = read_run(folder)
    if "members" in about:
        return _load_ensemble(folder, about)
    names = ("cnn", "head") if about["cnn"] else ("head",)
    files = [folder / f"{name}{end}" for name in names for end in (".json", ".safetensors")]
    if missing := [path.name for path in files if not path.is_file()]:
        raise ModelError(
            f"{folder}: its training is not finished, {missing[0]} is not there; go on with --resume"
        )
    cnn = load_cnn(folder) if about["cnn"] else None
    config = about["config"]
    multimodal = config.get("head", {}).get("family") == "multimodal"
    load = MultimodalHead.load if multimodal else load_head
    head = load(folder, n_features=None if cnn is None else cnn.settings.features)
    parts = [path.read_bytes() for path in files]
    parts.append(json.dumps([config[name] for name in ("thickness_mm", "samples", "seed")]).encode())
    return TrainedModel(
        folder=folder,
        members=(Member(folder, cnn, head, None, config["seed"], Likeness.load(folder)),),
        calibration=head.calibration,
        provenance=Provenance(
            name=_name(head),
            version=__version__,
            weights=digest(*parts),
            config=about["config_hash"],
            calibration=_calibration(head.calibration, about.get("site")),
            trained_on=about["trained_on"],
        ),
        thickness_mm=config["thickness_mm"],
        samples=config["samples"],
        bootstrap=config["bootstrap"],
        seed=config["seed"],
    )


def _load_ensemble(folder: Path, about: dict[str, Any]) -> TrainedModel:
    path, config = folder / ENSEMBLE, about["config"]
    models = [load_model(folder / name) for name in about["members"]]
    if not path.is_file():
        raise ModelError(
            f"{folder}: its training is not finished, {path.name} is not there; go on with --resume"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = content["format"]
        calibration = content["calibration"] and Calibration(**content["calibration"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelError(
            f"{path}: cannot be read as the calibration of an ensemble ({error}); train again"
        ) from error
    if found != ENSEMBLE_FORMAT:
        raise ModelError(f"{path}: is of another version ({found}, this one: {ENSEMBLE_FORMAT}); train again")
    parts = [path.read_bytes(), *(model.provenance.weights.encode() for model in models)]
    parts.append(json.dumps([config[name] for name in ("thickness_mm", "samples", "seed")]).encode())
    names = Counter(model.provenance.name for model in models)
    return TrainedModel(
        folder=folder,
        members=tuple(ensemble_member(model) for model in models),
        calibration=calibration,
        provenance=Provenance(
            name=f"{', '.join(f'{count} x {name}' for name, count in names.items())}, mixture",
            version=__version__,
            weights=digest(*parts),
            config=about["config_hash"],
            calibration=_calibration(calibration, about.get("site"), " of members and of their mixture")
            or "; ".join(sorted({model.provenance.calibration for model in models} - {""})),
            trained_on=about["trained_on"],
        ),
        thickness_mm=config["thickness_mm"],
        samples=samples_each(config["samples"], len(models)),
        bootstrap=config["bootstrap"],
        seed=config["seed"],
    )


def ensemble_member(model: TrainedModel) -> Member:
    """Convert a single run to a member of an ensemble."""
    return replace(model.members[0], own=model.members[0].head.calibration)


def samples_each(samples: int, members: int) -> int:
    """Number of posterior samples of each member, about `samples` over all members."""
    return samples if members == 1 else min(samples, max(samples // members, LEAST_SAMPLES))


def copy_run(run: Path, to: Path) -> None:
    """Copy the model of a finished run, without features and results.

    `head.json` is copied last: it marks the copy as finished.
    """
    copy_files(run, to, *KEPT)


def save_calibration(model: TrainedModel, calibration: Calibration, folder: Path) -> None:
    """Write the calibration of the model, for a single run with its head; this marks `folder` as finished."""
    if len(model.members) > 1:
        write_ensemble(calibration, folder)
        return
    head = model.members[0].head
    head.calibration = calibration
    if isinstance(head, MultimodalHead):
        head.save(folder)
    else:
        save_head(head, folder)


def write_ensemble(calibration: Calibration | None, folder: Path) -> None:
    """Write the joint calibration of an ensemble; this marks `folder` as finished."""
    about = None if calibration is None else asdict(calibration)
    write_json(folder / ENSEMBLE, {"format": ENSEMBLE_FORMAT, "calibration": about})
