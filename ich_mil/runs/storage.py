"""Loading and storage of trained models: a run, an ensemble of runs, or the bundled model."""

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ich_mil import __version__
from ich_mil.encoders.frozen import load_cnn
from ich_mil.errors import ModelError
from ich_mil.evaluate.deployment.out_of_distribution import Likeness
from ich_mil.files import digest, write_json
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.gp.storage import load_head, save_head
from ich_mil.runs.folder import ENSEMBLE, read_run, run_folder
from ich_mil.runs.model import Member, TrainedModel
from ich_mil.runs.predictions import Provenance

ENSEMBLE_FORMAT = "ich_mil.ensemble.1"
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


def _name(head: SparseGP) -> str:
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


def load_model(folder: str | Path) -> TrainedModel:
    """Load the model of a run or ensemble, or the bundled model by its name.

    Raises:
        ModelError: the run is not finished, damaged, or of another version.
    """
    folder = run_folder(folder)
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
    head = load_head(folder, n_features=None if cnn is None else cnn.settings.features)
    config = about["config"]
    return _model(
        folder,
        about,
        members=(Member(folder, cnn, head, None, config["seed"], Likeness.load(folder)),),
        calibration=head.calibration,
        name=_name(head),
        weights=[path.read_bytes() for path in files],
        calibrated=_calibration(head.calibration, about.get("site")),
    )


def _model(
    folder: Path,
    about: dict[str, Any],
    *,
    members: tuple[Member, ...],
    calibration: Calibration | None,
    name: str,
    weights: list[bytes],
    calibrated: str,
) -> TrainedModel:
    """Model with the settings in its `run.json`, `about`."""
    config = about["config"]
    settings = json.dumps([config[key] for key in ("thickness_mm", "samples", "seed")]).encode()
    provenance = Provenance(
        name=name,
        version=__version__,
        weights=digest(*weights, settings),
        config=about["config_hash"],
        calibration=calibrated,
        trained_on=about["trained_on"],
    )
    return TrainedModel(
        folder,
        members,
        calibration,
        provenance,
        thickness_mm=config["thickness_mm"],
        samples=samples_each(config["samples"], len(members)),
        bootstrap=config["bootstrap"],
        seed=config["seed"],
    )


def _load_ensemble(folder: Path, about: dict[str, Any]) -> TrainedModel:
    path = folder / ENSEMBLE
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
    names = Counter(model.provenance.name for model in models)
    calibrated = _calibration(calibration, about.get("site"), " of members and of their mixture")
    return _model(
        folder,
        about,
        members=tuple(ensemble_member(model) for model in models),
        calibration=calibration,
        name=f"{', '.join(f'{count} x {name}' for name, count in names.items())}, mixture",
        weights=[path.read_bytes(), *(model.provenance.weights.encode() for model in models)],
        calibrated=calibrated or "; ".join(sorted({m.provenance.calibration for m in models} - {""})),
    )


def ensemble_member(model: TrainedModel) -> Member:
    """Convert a single run to a member of an ensemble."""
    return replace(model.members[0], own=model.members[0].head.calibration)


def samples_each(samples: int, members: int) -> int:
    """Number of posterior samples of each member, about `samples` over all members."""
    return samples if members == 1 else min(samples, max(samples // members, LEAST_SAMPLES))


def save_calibration(model: TrainedModel, calibration: Calibration, folder: Path) -> None:
    """Write the calibration of the model, for a single run with its head; it marks `folder` as finished."""
    if len(model.members) > 1:
        write_ensemble(calibration, folder)
        return
    head = model.members[0].head
    head.calibration = calibration
    save_head(head, folder)


def write_ensemble(calibration: Calibration | None, folder: Path) -> None:
    """Write the joint calibration of an ensemble; this marks `folder` as finished."""
    about = None if calibration is None else asdict(calibration)
    write_json(folder / ENSEMBLE, {"format": ENSEMBLE_FORMAT, "calibration": about})
