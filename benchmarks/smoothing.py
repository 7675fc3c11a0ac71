"""Compare smoothing along z in the model, of its probabilities and of its features, on labelled slices.

    python -m benchmarks.smoothing [--data $D] [--run RUN --prepared SET] --out FOLDER [--write]

CT-ICH: $D is the folder of `benchmarks.ctich`, with its frozen networks. The networks of `ROWS` are used; the
others rank slices no better than chance. The head is fitted to 28 scans of part a, with early stopping on the
other 9, the same split as for the network, and evaluated on part b. Nine scans are too few for calibration
(some networks got a negative slope), so the probabilities are uncalibrated. Phantoms: RUN is a finished
`make demo`, SET its prepared training set; calibration on its validation scans, evaluation on its test scans.

`smooth_mm` is chosen by the validation loss of the fit, from scan labels; slice labels are used for
evaluation only. Results of several networks are averaged. Intervals are bootstrap intervals over patients;
differences are paired.

Shapes: B scans, N slices, K scans with slices of both kinds, R resamples.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmarks.ctich import VALIDATION, name_of, network
from benchmarks.record import command_line, record, table
from ich_mil.data.features import FeatureSet
from ich_mil.data.splits import draw_splits
from ich_mil.data.store import open_prepared
from ich_mil.encoders.frozen import load_cnn, stored_features
from ich_mil.evaluate.bootstrap import of_proportion, patient_bootstrap
from ich_mil.evaluate.metrics import auc_inside
from ich_mil.evaluate.resampled_metrics import resampled_ranking
from ich_mil.gp.bags import Bags
from ich_mil.gp.fit import fit
from ich_mil.gp.fit_calibration import calibrate
from ich_mil.gp.predict import predict
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.smoothing import blocks_of, smoothing_weights

ROWS = ("+ mean of the map", "+ bleeds", "+ controls", "+ warm-up", "+ 96 px")
"""Networks of `benchmarks.ctich` that average the last feature map; the others rank slices by chance."""
SEEDS = (0, 1, 2)
WIDTHS = (2.5, 5.0, 10.0)
"""Candidate widths in mm, besides 0; the slice spacing of CT-ICH is 5 mm."""
HEAD = HeadSettings(density="gamma", n_inducing=50)
PLAIN, CHOSEN = "no smoothing", "in the model, width chosen"
CONTROL = f"control: in the model, {WIDTHS[1]:g} mm, slices in random order"
METRICS = ("slice AUC inside positive scans", "slice AUC, all", "slice log-loss", "scan AUC")
FLOOR = 1e-6
"""Probabilities are clipped to [`FLOOR`, 1 - `FLOOR`] in the log-loss."""


class Said(NamedTuple):
    """Probabilities of slices (N,) and scans (B,)."""

    slices: np.ndarray
    scans: np.ndarray


class Sets(NamedTuple):
    """Features of a frozen network for training, validation and held-out scans."""

    name: str
    learn: FeatureSet
    watch: FeatureSet
    held: FeatureSet


def ctich_sets(data: Path, out: Path) -> Iterator[Sets]:
    """Features of parts a (split as for the network) and b by each trained network."""
    a, b = (open_prepared(data / f"prep_{name}") for name in ("rsna", "rsna_b"))
    for row in ROWS:
        for seed in SEEDS:
            name = name_of(row, seed)
            if not (data / "ablation" / f"{name}.csv").is_file():
                print(f"{name} is not trained yet: left out")
                continue
            model = network(data / "ablation", row, seed)
            parts = [
                stored_features(
                    out / f"{name}-{one.folder.name}.safetensors",
                    model,
                    one,
                    list(one.scans.index),
                )
                for one in (a, b)
            ]
            splits = draw_splits(a.scans, validation=VALIDATION, test=0.0, seed=seed)
            learn, watch = (_split(parts[0], splits, part) for part in ("train", "validation"))
            yield Sets(name, learn, watch, parts[1])


def _split(features: FeatureSet, splits: pd.DataFrame, name: str) -> FeatureSet:
    return features.select(splits.scan[splits.split == name].tolist())


def demo_sets(run: Path, prepared: Path, out: Path) -> Sets:
    """Features of the training, validation and test scans of a finished run by its network."""
    model = load_cnn(run)
    one, splits = open_prepared(prepared), pd.read_csv(run / "splits.csv", dtype={"scan": str})
    features = stored_features(
        out / "demo.safetensors",
        model,
        one,
        splits.scan.tolist(),
    )
    return Sets("demo", *(_split(features, splits, part) for part in ("train", "validation", "test")))


def weighted(features: FeatureSet, values: Tensor, width: float) -> Tensor:
    """Smooth values (N, ...) along z: smoothing matrix of each scan times its values."""
    assert features.positions_mm is not None
    z = features.positions_mm
    return torch.cat(
        [smoothing_weights(z[b], width) @ values[b].double() for b in blocks_of(features.offsets)]
    )


def shuffled(features: FeatureSet) -> FeatureSet:
    """Control: the same scans with the slice positions of each scan permuted at random."""
    assert features.positions_mm is not None
    generator = torch.Generator().manual_seed(0)
    z = features.positions_mm
    parts = [z[b][torch.randperm(len(z[b]), generator=generator)] for b in blocks_of(features.offsets)]
    return replace(features, positions_mm=torch.cat(parts))


def judge(settings: HeadSettings, sets: Sets) -> tuple[Said, float]:
    """Fit and calibrate a head by `settings`; probabilities of the held-out scans, and validation loss."""
    learn, watch = (Bags(one.x.double(), one.offsets, one.labels, one.positions_mm) for one in sets[1:3])
    head, report = fit(learn, settings, validation=watch)
    held = sets.held
    found = predict(
        head,
        Bags(held.x.double(), held.offsets, None, held.positions_mm, held.scans),
        calibration=calibrate(head, watch),
    )
    return Said(found.slice_mean.numpy(), found.scan_mean.numpy()), min(report.validation_log_loss)


def judge_all(settings: HeadSettings, sets: Sets) -> tuple[dict[str, Said], float]:
    """Probabilities by every kind of smoothing, and the width chosen for smoothing in the model."""
    said, losses = {}, {}
    said[PLAIN], losses[0.0] = judge(settings, sets)
    for width in WIDTHS:
        name = f"in the model, {width:g} mm"
        said[name], losses[width] = judge(replace(settings, smooth_mm=width), sets)
    control = Sets(sets.name, *(shuffled(one) for one in sets[1:]))
    said[CONTROL], _ = judge(replace(settings, smooth_mm=WIDTHS[1]), control)
    chosen = min(losses, key=losses.__getitem__)
    said[CHOSEN] = said[f"in the model, {chosen:g} mm" if chosen else PLAIN]
    for width in WIDTHS:
        p = weighted(sets.held, torch.from_numpy(said[PLAIN].slices), width).numpy()
        said[f"afterwards, {width:g} mm"] = Said(p, said[PLAIN].scans)
    for width in WIDTHS:
        mixed = [replace(one, x=weighted(one, one.x, width)) for one in sets[1:]]
        said[f"of the features, {width:g} mm"], _ = judge(settings, Sets(sets.name, *mixed))
    return said, chosen


def statistics(runs: list[Said], held: FeatureSet, counts: np.ndarray) -> np.ndarray:
    """`METRICS` (4, R) of R resamples, means over runs; counts (N, R) of draws of each slice."""
    labels, truth = held.slice_labels.numpy(), held.labels.numpy()
    scan_counts = counts[held.offsets[:-1].numpy()]  # (B, R)
    of_slice = np.repeat(np.arange(held.n_scans), held.offsets.diff().numpy())
    found = []
    for run in runs:
        scans, inside = auc_inside(labels, run.slices, of_slice)  # (K,)
        drawn = scan_counts[scans]  # (K, R)
        p = np.clip(run.slices, FLOOR, 1 - FLOOR)
        loss = -np.log(np.where(labels == 1, p, 1 - p))
        with np.errstate(invalid="ignore"):  # NaN, dropped later, if no scan with both classes was drawn
            found.append(
                [
                    inside @ drawn / drawn.sum(axis=0),
                    resampled_ranking(labels, run.slices, counts)["auc"],
                    loss @ counts / counts.sum(axis=0),
                    resampled_ranking(truth, run.scans, scan_counts)["auc"],
                ]
            )
    return np.mean(found, axis=0)


def figures(name: str, found: list[dict[str, Said]], held: FeatureSet) -> list[str]:
    """Table cells of a kind of smoothing: metrics and differences from no smoothing, with intervals."""
    mine, plain = ([one[way] for one in found] for way in (name, PLAIN))
    patients = np.repeat(np.array(held.patients), held.offsets.diff().numpy())

    def both(counts: np.ndarray) -> dict[str, np.ndarray]:
        own, other = (statistics(runs, held, counts) for runs in (mine, plain))
        parts = {metric: own[i] for i, metric in enumerate(METRICS)}
        return parts | {f"{metric} -": own[i] - other[i] for i, metric in enumerate(METRICS)}

    ends = patient_bootstrap(both, patients, resamples=2000, seed=0)
    values = both(np.ones((len(patients), 1)))
    bleeding = int((held.labels == 1).sum())
    cells = []
    for metric in METRICS:
        value, own = float(values[metric][0]), ends[metric]
        if "AUC" in metric:
            own = of_proportion(own, value, bleeding)
        cell = f"{value:.3f} [{own.low:.3f}, {own.high:.3f}]"
        if name != PLAIN:
            gap, at = values[f"{metric} -"][0], ends[f"{metric} -"]
            cell += f"; **{gap:+.3f}** [{at.low:+.3f}, {at.high:+.3f}]"
        cells.append(cell)
    return cells


def report(title: str, sets: list[Sets], settings: HeadSettings) -> str:
    """Result table of a data set."""
    found, widths = zip(*(judge_all(settings, one) for one in sets), strict=True)
    held = sets[0].held
    both = sum(len(held.slice_labels[block].unique()) == 2 for block in blocks_of(held.offsets))
    about = (
        f"{title}: {len(sets)} networks, {held.n_scans} held-out scans ({int(held.labels.sum())} positive, "
        f"{both} with slices of both kinds), {len(held.x)} slices ({int(held.slice_labels.sum())} positive). "
        f"Widths chosen: {', '.join(f'{width:g}' for width in widths)} mm. After the semicolon: the "
        "difference from no smoothing.\n\n"
    )
    return about + table(["", *METRICS], [[name, *figures(name, list(found), held)] for name in found[0]])


def main() -> None:
    """Evaluate the given sets and print their tables."""
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, help="folder of benchmarks.ctich")
    parser.add_argument("--run", type=Path, help="folder of a finished demo")
    parser.add_argument("--prepared", type=Path, help="its prepared training set")
    parser.add_argument("--out", type=Path, required=True, help="where features are kept")
    chosen = parser.parse_args()
    if (chosen.run is None) != (chosen.prepared is None) or not (chosen.data or chosen.run):
        parser.error("name --data, or --run and --prepared, or all three")
    torch.set_num_threads(1)
    uncalibrated = replace(HEAD, calibration="none")
    parts = []
    if chosen.data:
        parts.append(report("CT-ICH", list(ctich_sets(chosen.data, chosen.out)), uncalibrated))
    if chosen.run:
        parts.append(report("Phantoms", [demo_sets(chosen.run, chosen.prepared, chosen.out)], HEAD))
    command = "python -m benchmarks.smoothing --data $D --run RUN --prepared SET --out FOLDER"
    record("Smoothing along z", command, "\n\n".join(parts), write=chosen.write)


if __name__ == "__main__":
    main()
