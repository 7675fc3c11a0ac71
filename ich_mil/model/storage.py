"""Loading and storage of trained models: a run, an ensemble of runs, or the bundled model."""

import json
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from ich_mil import __version__
from ich_mil.errors import ModelError
from ich_mil.evaluate.deployment.out_of_distribution import Likeness
from ich_mil.families import FAMILIES
from ich_mil.files import digest, write_json
from ich_mil.gp.calibration import Calibration
from ich_mil.model.folder import ENSEMBLE, read_run, run_folder
from ich_mil.model.model import Member, TrainedModel
from ich_mil.model.predictions import Provenance
from ich_mil.model_files import read_json, record
from ich_mil.network.frozen import load_cnn
from ich_mil.network.location import LOCATION, Location
from ich_mil.sets.splits import load_learned
from ich_mil.study.series import AVERAGE_TO_MM

ENSEMBLE_FORMAT = "ich_mil.ensemble.1"
LEAST_SAMPLES = 200
"""Minimum of posterior samples per member, needed for its interval, unless the settings ask for fewer."""


def _calibration(calibration: Calibration | None, site: dict[str, Any] | None, of: str = "") -> str:
    if calibration is None:
        return ""
    if site is None:
        share = calibration.prevalence
        positive = "" if share is None else f", {share:.0%} of them positive"
        return f"Platt scaling{of} on held-out scans{positive}"
    scans = f"{site['scans']} labelled scans of the site, {site['positive']} of them positive"
    return f"sigmoid, its intercept fitted to {scans}"


def load_model(folder: str | Path) -> TrainedModel:
    """Load the model of a run or ensemble, or the bundled model by its name.

    Raises:
        ModelError: the run is not finished, damaged, or of another version.
    """
    folder = run_folder(folder)
    metadata = read_run(folder)
    return _load_ensemble(folder, metadata) if "members" in metadata else _load_run(folder, metadata)


def _load_run(folder: Path, metadata: dict[str, Any]) -> TrainedModel:
    """Model of a single run."""
    names = ("cnn", "head") if metadata["cnn"] else ("head",)
    files = [folder / f"{name}{end}" for name in names for end in (".json", ".safetensors")]
    if missing := [path.name for path in files if not path.is_file()]:
        raise ModelError(
            f"{folder}: its training is not finished, {missing[0]} is not there; go on with --resume"
        )
    cnn = load_cnn(folder) if metadata["cnn"] else None
    config = metadata["config"]
    location = None if cnn is None else Location.load(folder, cnn.channels)
    if location is not None:
        files.append(folder / LOCATION)
    family = FAMILIES[config["head"]["family"]].head()
    head = family.load(folder, n_features=None if cnn is None else cnn.settings.features)
    return _model(
        folder,
        metadata,
        members=(Member(folder, cnn, head, None, config["seed"], Likeness.load(folder), location),),
        calibration=head.calibration,
        name=head.name,
        weights=[path.read_bytes() for path in files],
        calibrated=_calibration(head.calibration, metadata.get("site")),
    )


def _model(
    folder: Path,
    metadata: dict[str, Any],
    *,
    members: tuple[Member, ...],
    calibration: Calibration | None,
    name: str,
    weights: list[bytes],
    calibrated: str,
) -> TrainedModel:
    """Model with the settings in its `run.json`, `metadata`."""
    config = metadata["config"]
    settings = json.dumps([AVERAGE_TO_MM, config["samples"], config["seed"]]).encode()
    calibrations = [member.calibration for member in members] if calibration is None else [calibration]
    shares = [c.prevalence for c in calibrations if c and c.prevalence]
    provenance = Provenance(
        name=name,
        version=__version__,
        weights=digest(*weights, settings),
        config=metadata["config_hash"],
        calibration=calibrated,
        trained_on=metadata["trained_on"],
        prevalence=sum(shares) / len(shares) if len(shares) == len(calibrations) else None,
    )
    return TrainedModel(
        folder,
        members,
        calibration,
        provenance,
        samples=samples_each(config["samples"], len(members)),
        bootstrap=config["bootstrap"],
        seed=config["seed"],
    )


@dataclass(frozen=True)
class _EnsembleFile:
    """Content of `ensemble.json`."""

    format: str
    calibration: Calibration | None


def _load_ensemble(folder: Path, metadata: dict[str, Any]) -> TrainedModel:
    path = folder / ENSEMBLE
    models = []
    for name in metadata["members"]:
        member_metadata = read_run(folder / name)
        if "members" in member_metadata:
            raise ModelError(f"{folder / name}: is an ensemble and cannot be a member; join its members")
        models.append(_load_run(folder / name, member_metadata))
    if not path.is_file():
        raise ModelError(
            f"{folder}: its training is not finished, {path.name} is not there; go on with --resume"
        )
    calibration = record(_EnsembleFile, read_json(path, ENSEMBLE_FORMAT), path).calibration
    members = tuple(ensemble_member(model) for model in models)
    for member in members:
        if (final := member.calibration_then(calibration)) is not None:
            try:
                final.check(member.head.settings.variant.rule)
            except ValueError as error:
                raise ModelError(f"{path}: {error} of {member.folder}; train again") from error
    names = Counter(model.provenance.name for model in models)
    calibrated = _calibration(calibration, metadata.get("site"), " of members and of their mixture")
    return _model(
        folder,
        metadata,
        members=members,
        calibration=calibration,
        name=f"{', '.join(f'{count} x {name}' for name, count in names.items())}, mixture",
        weights=[path.read_bytes(), *(model.provenance.weights.encode() for model in models)],
        calibrated=calibrated or "; ".join(sorted({m.provenance.calibration for m in models} - {""})),
    )


def learned_table(folder: Path) -> pd.DataFrame:
    """The `splits.csv` of a model, with the scans that earlier networks learned (`load_learned`).

    Raises:
        ModelError: the file is missing.
        DataError: as in `load_learned`.
    """
    path = folder / "splits.csv"
    if not path.is_file():
        raise ModelError(
            f"{path}: is missing, so what the model learned from is unknown; copy its whole folder again"
        )
    return load_learned(path)


def ensemble_member(model: TrainedModel) -> Member:
    """Convert a single run to a member of an ensemble."""
    return replace(model.members[0], calibration=model.members[0].head.calibration)


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
    head.save(folder)


def write_ensemble(calibration: Calibration | None, folder: Path) -> None:
    """Write the joint calibration of an ensemble; this marks `folder` as finished."""
    write_json(folder / ENSEMBLE, asdict(_EnsembleFile(ENSEMBLE_FORMAT, calibration)))
