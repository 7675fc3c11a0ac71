"""Ablation of CNN training on 37 scan labels: the CT-ICH images.

    python -m benchmarks.ctich --data $D [--out FOLDER] [--seeds 0 1 2] [--only NAME ...] [--write]

$D/rsna and $D/rsna_b are parts a and b as written by `ctich_to_dicom.py` (README). Each row trains on 28
scans of part a; the first row uses the other 9 for early stopping. The seed determines split, weights and
order. All rows are evaluated on part b, 18 studies used for no choice. Scan and slice probabilities of the
CNN itself are evaluated. The scores of a (row, seed) are stored in FOLDER/<row>-<seed>.csv and reused.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import roc_auc_score

from benchmarks.record import command_line, record, table, with_interval
from ich_mil.data.bags import ScanDataset
from ich_mil.data.preparation.prepare import prepare
from ich_mil.data.splits import draw_splits
from ich_mil.data.store import PreparedSet
from ich_mil.encoders.attention_cnn import AttentionCnn, CnnSettings
from ich_mil.encoders.slice_encoders import EncoderSettings
from ich_mil.evaluate.baselines import position_score
from ich_mil.evaluate.bootstrap import effective_patients, patient_bootstrap, proportion_interval
from ich_mil.evaluate.metrics import auc_inside
from ich_mil.evaluate.resampled_metrics import resampled_ranking
from ich_mil.files import write_text
from ich_mil.training.fit_cnn import fit_cnn
from ich_mil.training.settings import TrainingSettings

VALIDATION = 0.25
"""Share of part a for validation, as in configs/ctich.yaml."""

PLAIN = TrainingSettings(learning_rate=3e-4, max_epochs=40, patience=10)
SMALL = TrainingSettings(learning_rate=3e-4, bags=2, max_epochs=15, fixed_epochs=True)
"""Fixed number of epochs, last epoch kept: nine validation scans are too few to choose an epoch."""
FLAT, MEAN = CnnSettings(), CnnSettings(pool="mean")

ROWS: dict[str, tuple[EncoderSettings, CnnSettings, TrainingSettings]] = {
    "plain, 128 px": (EncoderSettings(size=128), FLAT, PLAIN),
    "64 px": (EncoderSettings(size=64), FLAT, SMALL),
    "+ augmentation": (EncoderSettings(size=64), FLAT, replace(SMALL, augment=True)),
    "+ mean of the map": (EncoderSettings(size=64), MEAN, replace(SMALL, augment=True)),
    "+ 96 px": (EncoderSettings(size=96), MEAN, replace(SMALL, augment=True)),
}
"""Rows of the table. A row with + adds a component to the row above it."""


def measure(model: AttentionCnn, held: PreparedSet) -> pd.DataFrame:
    """CNN probabilities of all scans of part b and their slices, one row per slice."""
    scans, found = ScanDataset(held, list(held.scans.index)), []
    for batch in (scans[i] for i in range(len(scans))):
        with torch.inference_mode():
            output = model(model.pictures()(batch), batch.offsets)
        columns = {
            "scan": batch.scans[0],
            "index": range(len(batch.hu[0])),
            "scan_score": output.scan_logit.sigmoid().item(),
            "slice_score": output.slice_logit.sigmoid().numpy(),
        }
        found.append(pd.DataFrame(columns))
    return pd.concat(found)


def name_of(row: str, seed: int) -> str:
    """File name of a row and seed in the folder of scores."""
    return f"{row.replace(',', '').replace('+ ', 'with-').replace(' ', '-')}-{seed}"


def run(row: str, seed: int, parts: tuple[PreparedSet, PreparedSet], out: Path) -> pd.DataFrame:
    """Train and evaluate a row with one seed, or read its stored scores."""
    name = name_of(row, seed)
    path = out / f"{name}.csv"
    if not path.is_file():
        learn, held = parts
        encoder, cnn, training = ROWS[row]
        splits = draw_splits(learn.scans, validation=VALIDATION, test=0.0, seed=seed)
        model = fit_cnn(learn, splits, out / name, encoder=encoder, cnn=cnn, training=training, seed=seed)
        write_text(path, measure(model, held).to_csv(index=False))
    return pd.read_csv(path)


def figures(runs: list[pd.DataFrame], held: PreparedSet) -> list[str]:
    """Table cells of a row: scan AUC, AUC per seed, slice AUCs (all, inside positive scans)."""
    per_seed = [found.set_index(["scan", "index"]) for found in runs]
    mean = pd.concat(per_seed)[["scan_score", "slice_score"]].groupby(level=["scan", "index"]).mean()
    slices = held.table.set_index(["scan", "index"]).join(mean)
    scans = slices.groupby("scan").agg(label=("scan_label", "first"), score=("scan_score", "first"))
    seeds = [
        roc_auc_score(scans.label, found.groupby("scan").scan_score.first()[scans.index])
        for found in per_seed
    ]
    cells = [ranking(scans.label.to_numpy(), scans.score.to_numpy(), list(scans.index))]
    cells.append(" ".join(f"{value:.2f}" for value in seeds))
    cells += slice_cells(slices.slice_label.to_numpy(), slices.slice_score.to_numpy(), slices.index)
    return cells


def ranking(labels: np.ndarray, score: np.ndarray, patients: Sequence[str]) -> str:
    """AUC with its bootstrap interval over scans."""
    found = patient_bootstrap(lambda c: {"auc": resampled_ranking(labels, score, c)["auc"]}, patients, seed=0)
    auc, behind = float(roc_auc_score(labels, score)), effective_patients(labels, np.asarray(patients))
    ends = proportion_interval(found["auc"], auc, behind["auc"])
    return with_interval(auc, (ends.low, ends.high))


def slice_cells(labels: np.ndarray, score: np.ndarray, index: pd.Index) -> list[str]:
    """AUC over all slices, and mean AUC inside positive scans, with bootstrap intervals over scans."""
    scan = list(index.get_level_values("scan"))
    inside = auc_inside(labels, score, pd.factorize(np.array(scan))[0])[1]
    found = patient_bootstrap(
        lambda c: {"mean": inside @ c / c.sum(axis=0)}, [str(k) for k in range(len(inside))], seed=0
    )
    mean = float(inside.mean())
    ends = proportion_interval(found["mean"], mean, len(inside))
    return [ranking(labels, score, scan), with_interval(mean, (ends.low, ends.high))]


def position_cells(held: PreparedSet) -> list[str]:
    """`slice_cells` of the position baseline."""
    slices = held.table.set_index(["scan", "index"])
    return slice_cells(
        slices.slice_label.to_numpy(), position_score(slices.position.to_numpy()), slices.index
    )


def ablation(rows: list[str], seeds: list[int], parts: tuple[PreparedSet, PreparedSet], out: Path) -> str:
    """Result table of all rows, with the position baseline as last row."""
    lines = [[row, *figures([run(row, seed, parts, out) for seed in seeds], parts[1])] for row in rows]
    lines.append(["position only", "0.500", "–", *position_cells(parts[1])])
    head = ["", "scan AUC", "each seed", "slice AUC, all", "slice AUC inside positive scans"]
    return table(head, lines)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="where scores are kept; default: ablation in --data")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="NAME")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    a, b = (
        prepare("rsna", chosen.data / name, chosen.data / f"prep_{name}", jobs=1)
        for name in ("rsna", "rsna_b")
    )
    text = ablation(chosen.only, chosen.seeds, (a, b), chosen.out or chosen.data / "ablation")
    record("CT-ICH: learning from 37 scan labels", text)


if __name__ == "__main__":
    main()
