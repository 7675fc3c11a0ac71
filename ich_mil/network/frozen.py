"""Frozen CNN: save and load a trained CNN, and extract its features for the Gaussian process.

A saved CNN consists of `cnn.safetensors` (weights) and `cnn.json` (settings of encoder and aggregator, format
version). Neither file holds code; an aggregator `package.module:Class` is imported from what is installed.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from ich_mil.errors import ModelError
from ich_mil.files import digest, write_json
from ich_mil.kernels.segments import take_bags
from ich_mil.model_files import read_json, read_tensors, record, write_tensors
from ich_mil.network.attention_cnn import AttentionCnn, CnnSettings
from ich_mil.network.bags import Batch, ScanDataset
from ich_mil.network.loader import loader
from ich_mil.network.slice_encoders import EncoderSettings
from ich_mil.progress import progress
from ich_mil.ranks import Ranks, these_ranks
from ich_mil.sets.features import (
    FeatureSet,
    check_features,
    join_features,
    made_from,
    read_features,
    write_features,
)
from ich_mil.sets.labels import UNKNOWN
from ich_mil.sets.store import PreparedSet
from ich_mil.study.head_box import head_box
from ich_mil.study.study import Study

FORMAT = "ich_mil.cnn.3"
EXTRACTION = 4
"""Version of the output of `extract_features`; stored features of another version are recomputed."""


@dataclass(frozen=True)
class _CnnFile:
    """Content of `cnn.json`."""

    format: str
    encoder: EncoderSettings
    settings: CnnSettings

    def __post_init__(self) -> None:
        if self.encoder.weights is not None:  # trained weights replace the initial weights
            raise ValueError("encoder.weights must be null, the weights are in cnn.safetensors")


def save_cnn(model: AttentionCnn, folder: str | Path) -> None:
    """Write `cnn.safetensors` and `cnn.json` into `folder`."""
    folder = Path(folder)
    write_tensors(folder / "cnn.safetensors", model.state_dict())
    metadata = _CnnFile(FORMAT, replace(model.encoder_settings, weights=None), model.settings)
    write_json(folder / "cnn.json", asdict(metadata))


def load_cnn(folder: str | Path) -> AttentionCnn:
    """Load a CNN written by `save_cnn`, in evaluation mode. `ModelError` if the files hold none."""
    path = Path(folder) / "cnn.json"
    metadata = record(_CnnFile, read_json(path, FORMAT), path)
    model, path = AttentionCnn(metadata.encoder, metadata.settings), path.with_suffix(".safetensors")
    state, _ = read_tensors(path)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"{path}: does not hold the CNN of cnn.json ({reason}); train again") from error
    return model.eval()


def stored_features(
    path: Path,
    model: AttentionCnn,
    prepared: PreparedSet,
    scans: Sequence[str],
    *,
    workers: int = 0,
    held: Sequence[tuple[AttentionCnn, Sequence[str]]] = (),
) -> FeatureSet:
    """Run `extract_features` with a cache file, which is reused if CNN, pictures and labels are unchanged.

    `held` are further networks, each with the scans whose features are of it instead of `model`.
    """
    states = [network.state_dict() for network in (model, *(network for network, _ in held))]
    weights = [state[name].cpu().numpy().tobytes() for state in states for name in sorted(state)]
    settings = [asdict(model.encoder_settings), asdict(model.settings)]
    inputs = json.dumps([EXTRACTION, prepared.fingerprint, *settings, list(scans)]).encode()
    source = digest(inputs, *weights)
    if made_from(path, source):
        return read_features(path)
    others = {scan for _, own in held for scan in own}
    parts = [(model, [scan for scan in scans if scan not in others]), *held]
    features = join_features(
        [extract_features(network, prepared, own, workers=workers) for network, own in parts]
    )
    if held:
        features = features.select([*scans])
    if these_ranks().first:
        write_features(features, path, source=source)
    return features


@torch.inference_mode()
def extract_features(
    model: AttentionCnn, prepared: PreparedSet, scans: Sequence[str], *, workers: int = 0
) -> FeatureSet:
    """Run the frozen CNN over whole scans, one at a time, on the device of the model.

    The computation is in float32 on every device, so that a head fitted to features from a GPU gets the same
    features on a CPU. The ranks divide the scans among them, and every rank returns the features of all
    scans. `workers` processes read scans ahead. `ValueError` if the model is in training mode.
    """
    if model.training:
        raise ValueError("features are of a model in evaluation mode; call its eval()")
    device, ranks = next(model.parameters()).device, these_ranks()
    dataset = ScanDataset(prepared, scans, crop=model.encoder_settings.crop)
    sizes = dataset.sizes
    mine = ranks.share(sizes)
    batches: Iterable[Batch] = loader(
        dataset, workers=workers, steps=[[index] for index in mine.tolist()], device=device
    )
    if ranks.first:  # the ranks have equal shares, so one progress bar represents all
        batches = progress(batches, total=len(mine), what="extract features")
    outputs = _outputs(model, batches)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    shapes = [(), (), (), (model.settings.features,), (2 * low_blocks(model)[1],)]
    results = _together(outputs, mine, offsets, shapes, ranks)
    slices = pd.concat([prepared.slices(scan) for scan in scans])
    features = _feature_set(results, offsets, prepared.scans.loc[list(scans)], slices)
    check_features(features, str(prepared.folder))
    return features


@torch.inference_mode()
def study_features(model: AttentionCnn, study: Study) -> FeatureSet:
    """Run the frozen CNN over a study in memory; labels are unknown, otherwise as `extract_features`."""
    hu = head_box(study.hu).crop(study.hu) if model.encoder_settings.crop else study.hu
    offsets = torch.tensor([0, len(hu)])
    batch = Batch((torch.from_numpy(hu),), offsets, torch.tensor([float(UNKNOWN)]), (study.id,))
    (outputs,) = _outputs(model, [batch])
    scans = pd.DataFrame({"patient": [study.patient], "label": [UNKNOWN]}, index=[study.id])
    slices = study.slices.assign(slice_label=UNKNOWN)
    return _feature_set([output.cpu() for output in outputs], offsets, scans, slices)


def _feature_set(
    outputs: Sequence[Tensor], offsets: Tensor, scans: pd.DataFrame, slices: pd.DataFrame
) -> FeatureSet:
    """Features from the outputs of `_outputs` and the rows of scans and slices."""
    scan_logit, slice_logit, attention, x, texture = outputs
    return FeatureSet(
        x=x,
        offsets=offsets,
        scans=scans.index.tolist(),
        patients=scans.patient.tolist(),
        labels=torch.tensor(scans.label.tolist()),
        slice_names=slices.sop.tolist(),
        slice_labels=torch.tensor(slices.slice_label.tolist()),
        positions=torch.tensor(slices.position.tolist(), dtype=torch.float32),
        cnn_scan=scan_logit.sigmoid(),
        cnn_slice=slice_logit.sigmoid(),
        attention=attention,
        positions_mm=torch.tensor(slices.position_mm.tolist(), dtype=torch.float64),
        texture=texture,
    )


@torch.no_grad()
def low_blocks(model: AttentionCnn) -> tuple[int, int]:
    """Number of lower blocks up to the map that `texture_of` summarises, and its number of channels F.

    It is the first map with at most an eighth of the picture's pixels a side; if none is, the last. The model
    is in evaluation mode.
    """
    reads, blocks = model.encoder_settings, 0
    maps = next(model.parameters()).new_zeros(1, reads.n_channels, reads.size, reads.size)
    while blocks < len(model.encoder) and maps.shape[-1] > reads.size // 8:
        maps = model.encoder[blocks](maps)
        blocks += 1
    return blocks, maps.shape[1]


def _outputs(model: AttentionCnn, batches: Iterable[Batch]) -> list[tuple[Tensor, ...]]:
    """Scan logit, slice logits, attention, features and texture of each batch, on the device of the model."""
    device, pictures = next(model.parameters()).device, model.pictures()
    blocks, _ = low_blocks(model)
    outputs = []
    # by default cuDNN rounds the inputs of convolutions to TF32, with a significand of 11 bits
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for batch in batches:
            on_device = batch.to(device)
            # The results stay on the GPU, otherwise the host would wait for each scan. They are cloned,
            # because views would keep the memory of the whole inference.
            maps = model.frozen_maps(pictures(on_device), blocks=blocks)
            output = model.classify(maps, on_device.offsets, blocks=blocks)
            outputs.append((*(part.clone() for part in output[:4]), texture_of(maps)))
    return outputs


def texture_of(maps: Tensor) -> Tensor:
    """Mean and deviation (n, 2F) of low maps (n, F, h, w): noise, sharpness and contrast of the slices."""
    return torch.cat([maps.mean((2, 3)), maps.std((2, 3), correction=0)], 1)


def _together(
    outputs: Sequence[tuple[Tensor, ...]],
    mine: Tensor,
    offsets: Tensor,
    shapes: Sequence[tuple[int, ...]],
    ranks: Ranks,
) -> list[Tensor]:
    """Gather the results of all ranks on the CPU, as a sum of arrays that are zero outside a rank's share.

    `outputs` has a tuple for each of the scans `mine`: its first tensor has one row per scan, the others have
    one row per slice, of the given shapes.
    """
    n_bags, n = len(offsets) - 1, int(offsets[-1])
    whole = [torch.zeros(n if k else n_bags, *shape) for k, shape in enumerate(shapes)]
    if outputs:
        rows, _ = take_bags(offsets, mine)
        for k, (to, tensors) in enumerate(zip(whole, zip(*outputs, strict=True), strict=True)):
            to[rows if k else mine] = torch.cat(tensors).cpu()
    return [ranks.total(tensor) for tensor in whole]
