"""From a trained model and its predictions to the pages people open.

In: a trained model, features, predictions and the prepared set with the pictures. Out: `StudyPage`s with
pictures and maps of the slices that drove the scan, written as HTML.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ich_mil.data.features import FeatureSet
from ich_mil.data.labels import UNKNOWN
from ich_mil.data.store import PreparedSet
from ich_mil.gp.predict import Predictions, draw_weights
from ich_mil.ledger import Code, LedgerEntry
from ich_mil.model import FrozenCnn, TrainedModel
from ich_mil.progress import progress
from ich_mil.report.heatmap import slice_maps
from ich_mil.report.html import (
    MAX_PICTURES,
    ModelCard,
    SlicePicture,
    StudyPage,
    render_study,
    study_file_name,
    write_page,
)
from ich_mil.windows import apply_windows, resize

MAP_SAMPLES = 64
"""Posterior samples behind a map: its spread is shown as colours, for which 64 are enough."""
BRAIN = ((40.0, 80.0),)
"""Window of the pictures shown, (level, width) in HU."""
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


def model_card(model: TrainedModel) -> ModelCard:
    """Which model spoke, in words."""
    settings = model.head.settings
    name = FAMILIES[settings.family]
    if "density" in model.head.given:
        name = "ψ-VGPMIL with a density of its own"
    elif settings.family == "psi" and settings.density == "gamma":
        name = f"G-VGPMIL α={settings.alpha:g} β={settings.beta:g}"
    calibration = model.head.calibration
    return ModelCard(
        name=f"{name}, M={len(model.head.inducing)}, D={len(model.head.x_mean)}",
        version=f"{model.provenance.version}, weights {model.provenance.weights}",
        config_hash=model.provenance.config,
        calibration="" if calibration is None else f"{CALIBRATIONS[calibration.method]} on held-out scans",
    )


def write_study_pages(
    model: TrainedModel,
    features: FeatureSet,
    predictions: Predictions,
    prepared: PreparedSet,
    folder: Path,
    *,
    scans: list[str],
    run_link: str = "",
) -> None:
    """Write a page for each of `scans` into `folder`."""
    for scan in progress(scans, total=len(scans), what="write pages", unit="page"):
        page = study_page(model, features, predictions, prepared, scan, run_link=run_link)
        write_page(render_study(page), folder / study_file_name(scan))


def study_page(
    model: TrainedModel,
    features: FeatureSet,
    predictions: Predictions,
    prepared: PreparedSet,
    scan: str,
    *,
    run_link: str = "",
) -> StudyPage:
    """All that the page of one scan shows."""
    b = features.scans.index(scan)
    rows = slice(int(features.offsets[b]), int(features.offsets[b + 1]))
    probability = predictions.slice_mean[rows].numpy()
    own = prepared.ledger_by_scan.get(scan, [])
    return StudyPage(
        scan=scan,
        model=model_card(model),
        probability=float(predictions.scan_mean[b]),
        std=float(predictions.scan_std[b]),
        low=float(predictions.scan_low[b]),
        high=float(predictions.scan_high[b]),
        slice_probability=probability,
        slice_low=predictions.slice_low[rows].numpy(),
        slice_high=predictions.slice_high[rows].numpy(),
        slice_labels=features.slice_labels[rows].numpy()
        if (features.slice_labels[rows] != UNKNOWN).any()
        else None,
        label=int(features.labels[b]),
        pictures=_pictures(model, prepared, scan, probability, predictions.slice_std[rows].numpy()),
        ledger=[LedgerEntry(row["scan"], row["file"], Code(row["code"]), row["detail"]) for row in own],
        run_link=run_link,
    )


def _pictures(
    model: TrainedModel, prepared: PreparedSet, scan: str, probability: np.ndarray, std: np.ndarray
) -> list[SlicePicture]:
    """The most probable slices with their maps."""
    assert model.cnn is not None  # pages are for runs with pictures
    hu = torch.from_numpy(prepared.hu(scan).copy())
    positions = prepared.slices(scan).position_mm.to_numpy()
    chosen = sorted(np.argsort(-probability, kind="stable")[:MAX_PICTURES].tolist())
    mean_maps, std_maps = _maps(model, model.cnn, hu, chosen)
    images = apply_windows(hu[chosen], BRAIN)
    images = resize(images, max(images.shape[-2:]))[:, 0]  # a square, as the maps are
    return [
        SlicePicture(
            image=images[i].numpy(),
            index=n,
            probability=float(probability[n]),
            std=float(std[n]),
            mean_map=mean_maps[i].numpy(),
            std_map=std_maps[i].numpy(),
            position_mm=float(positions[n]),
        )
        for i, n in enumerate(chosen)
    ]


def _maps(model: TrainedModel, cnn: FrozenCnn, hu: Tensor, chosen: list[int]) -> tuple[Tensor, Tensor]:
    device = next(cnn.model.parameters()).device
    pictures = resize(apply_windows(hu, cnn.windows), cnn.settings.image_size).to(device)
    weights = draw_weights(model.head, MAP_SAMPLES, model.seed)
    mean, std = slice_maps(cnn.model, model.head, pictures, chosen, weights)
    return mean.cpu(), std.cpu()
