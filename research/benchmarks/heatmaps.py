"""Localisation of blood by heatmaps, on slices with known masks.

    python -m research.benchmarks.heatmaps --run RUN --out FOLDER [--write]

RUN is the run of `make demo`, on phantoms. The slices are of new phantoms, one bleed each, the five
subtypes in equal numbers, with their own masks. Evaluated are slices with blood among the
`SUSPICIOUS` slices that the trained model ranks highest in their scan, those shown to a reader. Controls that
a useful map must beat: a CNN with random weights and a CNN trained on shuffled scan labels, each with a head
fitted to it, and the centre of the head in place of a map. The shuffled CNN is trained once and stored in
FOLDER.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from ich_mil.gp.bags import Bags
from ich_mil.gp.fit import fit
from ich_mil.gp.settings import HeadSettings
from ich_mil.heads.gaussian_process import GaussianProcessHead
from ich_mil.heads.scan_head import ScanHead
from ich_mil.model.folder import read_run
from ich_mil.model.heatmap import slice_maps
from ich_mil.model.maps import MAP_SAMPLES
from ich_mil.model.storage import load_model
from ich_mil.network.attention_cnn import AttentionCnn, CnnSettings
from ich_mil.network.frozen import extract_features
from ich_mil.network.slice_encoders import EncoderSettings
from ich_mil.network.training.fit_cnn import fit_cnn
from ich_mil.network.training.settings import TrainingSettings
from ich_mil.network.windows import resize, to_pictures
from ich_mil.phantoms.data_sets import SITE_A, SUBTYPES, make_phantom
from ich_mil.sets.splits import load_splits
from ich_mil.sets.store import PreparedSet, open_prepared
from ich_mil.study.window_presets import Windows
from research.benchmarks.localise import TOLERANCE, localise
from research.benchmarks.record import command_line, record, table, with_interval

PHANTOMS = 40
SUSPICIOUS = 8
COLUMNS = {
    "strict": "maximum on the mask",
    "near": f"within {TOLERANCE:.0%} of the side",
    "energy": "energy inside",
    "gain": "its gain over area",
}

Model = tuple[AttentionCnn, ScanHead]


@dataclass(frozen=True)
class Known:
    """Scan with masks of blood: images (n, C, S, S), masks of blood and of the head (n, S, S)."""

    patient: str
    pictures: Tensor
    masks: np.ndarray
    heads: np.ndarray

    @property
    def bloody(self) -> np.ndarray:
        """Indices of slices with blood."""
        return np.flatnonzero(self.masks.any(axis=(1, 2)))


def known(patient: str, hu: np.ndarray, masks: np.ndarray, windows: Windows, size: int) -> Known:
    """Window and resize a scan (n, H, W) int16 HU and its masks for the CNN, and find the head."""
    heads = np.zeros(hu.shape, bool)
    for head, picture in zip(heads, hu, strict=True):
        regions, found = ndimage.label(ndimage.binary_opening(picture > -200, iterations=2))
        if found:  # no region above the vertex
            head |= ndimage.binary_fill_holes(regions == 1 + np.bincount(regions.ravel())[1:].argmax())
    masks, heads = (
        resize(torch.from_numpy(mask.astype(np.float32))[:, None], size)[:, 0].numpy() > 0.5
        for mask in (masks, heads)
    )
    return Known(patient, to_pictures(torch.from_numpy(hu), windows, size), masks, heads)


def phantoms(windows: Windows, size: int) -> list[Known]:
    """New phantom studies of the training scanner, with seeds not used in training."""
    made = []
    for number in range(PHANTOMS):
        rng = np.random.default_rng([2026, number])
        study = make_phantom(rng, bleeds=[SUBTYPES[number % len(SUBTYPES)]], site=SITE_A, size=128)
        made.append(known(f"phantom {number}", study.hu, study.masks > 0, windows, size))
    return made


@torch.no_grad()
def suspicious(model: Model, scan: Known) -> np.ndarray:
    """Slices with blood among the `SUSPICIOUS` slices ranked highest."""
    cnn, head = model
    f = head.evidence(cnn.encode(scan.pictures).double(), head.evidence_mean)
    return np.intersect1d(f.argsort(descending=True)[:SUSPICIOUS].numpy(), scan.bloody)


Maps = Callable[[Known, np.ndarray], Tensor]


def mean_maps(model: Model) -> Maps:
    weights = model[1].evidence_draws(MAP_SAMPLES, 0)
    return lambda scan, chosen: slice_maps(*model, scan.pictures, chosen.tolist(), weights)[0]


def middle(scan: Known, chosen: np.ndarray) -> Tensor:
    """Control maps: all evidence at the centre of the head."""
    maps = torch.zeros(len(chosen), *scan.heads.shape[1:])
    for one, head in zip(maps, scan.heads[chosen], strict=True):
        y, x = ndimage.center_of_mass(head)
        one[round(y), round(x)] = 1
    return maps


def measured(name: str, maps: Maps, scans: list[Known], chosen: list[np.ndarray]) -> list[str]:
    """Table row of a method: localisation metrics with intervals."""
    some = [(scan, places) for scan, places in zip(scans, chosen, strict=True) if len(places)]
    found = localise(
        torch.cat([maps(scan, places).double() for scan, places in some]),
        np.concatenate([scan.masks[places] for scan, places in some]),
        np.concatenate([scan.heads[places] for scan, places in some]),
        [scan.patient for scan, places in some for _ in places],
        seed=0,
    )
    row = [f"{name} ({len(found.strict)} slices of {len(some)} scans)"]
    for metric in COLUMNS:
        ends = found.intervals[metric]
        row.append(with_interval(found.means[metric], (ends.low, ends.high), 1 if metric == "gain" else 3))
    print(" | ".join(row), flush=True)
    return row


def compared(models: dict[str, Model], scans: list[Known]) -> str:
    """Result table of a set; the first of `models` is the trained model."""
    trained = next(iter(models.values()))
    chosen = [suspicious(trained, scan) for scan in scans]
    rows = [measured(name, mean_maps(model), scans, chosen) for name, model in models.items()]
    every = [scan.bloody for scan in scans]
    rows.append(measured("trained, all slices with blood", mean_maps(trained), scans, every))
    rows.append(measured("middle of the head", middle, scans, chosen))
    return table(["map", *COLUMNS.values()], rows)


def untrained(encoder: EncoderSettings, settings: CnnSettings) -> AttentionCnn:
    """CNN of the same architecture with random weights."""
    torch.manual_seed(1)
    return AttentionCnn(encoder, settings).eval()


def of_phantoms(run: Path, out: Path) -> str:
    """Result table on phantoms."""
    (model,) = load_model(run).members
    assert model.cnn is not None  # a run on pictures
    config = read_run(run)["config"]
    encoder, settings = model.cnn.encoder_settings, model.cnn.settings
    splits = load_splits(run / "splits.csv")
    scans = splits.scan[splits.split == "train"].tolist()

    def with_head(cnn: AttentionCnn, prepared: PreparedSet) -> Model:
        features = extract_features(cnn, prepared, scans)
        x, labels = features.x.double(), features.labels
        head, _ = fit(Bags(x, features.offsets, labels), HeadSettings(**config["head"]))
        return cnn, GaussianProcessHead(head)

    prepared, mixed = (open_prepared(Path(config["prepared"]) / "train") for _ in range(2))
    splits["label"] = splits.groupby("split").label.transform(
        lambda part: np.random.default_rng(0).permutation(part.to_numpy())
    )
    mixed.table["scan_label"] = mixed.table.scan.map(splits.set_index("scan").label)
    training, folder = (
        replace(TrainingSettings(**config["training"]), fixed_epochs=True),
        out / "shuffled" / "cnn",
    )
    shuffled = fit_cnn(
        mixed, splits, folder, encoder=encoder, cnn=settings, training=training, seed=config["seed"]
    )
    models = {
        "trained": (model.cnn, model.head),
        "random weights": with_head(untrained(encoder, settings), prepared),
        "shuffled labels": with_head(shuffled, mixed),
    }
    return compared(models, phantoms(encoder.windows, encoder.size))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    record("Heat maps: do they point at the blood", of_phantoms(chosen.run, chosen.out))


if __name__ == "__main__":
    main()
