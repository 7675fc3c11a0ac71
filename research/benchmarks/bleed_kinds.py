"""Kinds of bleed by the models of `ich-mil subtype`, from the features of three networks.

    python -m research.benchmarks.bleed_kinds --sets cq500 rsna1000
    python -m research.benchmarks.bleed_kinds --sets --slices

`--slices` measures the six targets of the challenge on the slices of rsna1000. Scans are those with a bleed.
A kind is present in CQ500 where two of three readers see it, in RSNA 2019 where a slice is labelled with it.
Folds and measures are those of `ich-mil subtype`; a scan is a patient.
"""

import numpy as np
import pandas as pd
from sklearn.metrics import log_loss, roc_auc_score

from ich_mil.evaluate.weighted_log_loss import image_losses, mean_loss
from ich_mil.model.site.slice_kinds import held_out as held_out_slices
from ich_mil.model.site.subtype import (
    base_rates,
    folds_by_patient,
    held_out,
    log_loss_less,
    with_interval,
)
from ich_mil.sets.layouts.rsna_labels import KINDS
from research.benchmarks.public_features import DATA
from research.benchmarks.record import command_line, record, table

FEATURES, RUNS = DATA / "features", ("run0", "run1", "run2")
COLUMNS = [f"feature_{k}" for k in range(8)]
CQ500 = ("IPH", "IVH", "SAH", "SDH", "EDH")
RSNA = ("intraparenchymal", "intraventricular", "subarachnoid", "subdural", "epidural")


def load(name: str) -> tuple[dict[str, np.ndarray], pd.DataFrame]:
    """Scan features (n, 16) of each network, and kinds (n, 5), of the scans with a bleed."""
    slices = [pd.read_csv(FEATURES / f"{name}_d8_{run}.csv").set_index("bag_name") for run in RUNS]
    if name == "cq500":
        reads = pd.read_csv(FEATURES / "cq500_reads.csv").set_index("name")
        seen = {kind: reads[[f"R{r}:{kind}" for r in (1, 2, 3)]].sum(axis=1) >= 2 for kind in ("ICH", *CQ500)}
        kinds = pd.DataFrame(seen)
        kinds = kinds[kinds.ICH & kinds.index.isin(slices[0].index)][list(CQ500)].astype(int)
    else:
        kinds = slices[0][list(RSNA)].groupby(level=0).max()
        kinds = kinds[kinds.any(axis=1)]
    embedded = [
        x.loc[x.index.isin(kinds.index), COLUMNS].groupby(level=0).agg(["mean", "max"]) for x in slices
    ]
    return {f"network {k}": x.loc[kinds.index].to_numpy() for k, x in enumerate(embedded)}, kinds


def measure_slices() -> None:
    """Weighted log-loss of the six targets on the slices of rsna1000, in folds by scan."""
    tables = [pd.read_csv(FEATURES / f"rsna1000_d8_{run}.csv") for run in RUNS]
    y, scans = tables[0][list(KINDS)].to_numpy(), tables[0].bag_name.to_numpy(str)
    p, base = held_out_slices({f"network {k}": x[COLUMNS].to_numpy() for k, x in enumerate(tables)}, y, scans)
    losses, base_losses = image_losses(y, p), image_losses(y, base)
    less = with_interval(mean_loss(losses - base_losses, scans))
    rows = [["logistic", f"{losses.mean():.4f}"], ["base rate", f"{base_losses.mean():.4f}"], ["less", less]]
    text = f"{len(y)} slices of {len(set(scans))} scans.\n\n{table(['', 'weighted log-loss'], rows)}"
    record("Six targets of RSNA 2019: slices of rsna1000", text)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--slices", action="store_true", help="the six targets on slices")
    parser.add_argument("--sets", nargs="*", choices=["cq500", "rsna1000"], default=["cq500", "rsna1000"])
    chosen = parser.parse_args()
    if chosen.slices:
        measure_slices()
    head = ["kind", "scans", "AUC of logistic regression", "log-loss", "less that of the base rate"]
    for name in chosen.sets:
        sources, kinds = load(name)
        scans, rows, labels = list(kinds.index), [], []
        fitted, base = [], []
        for kind in kinds:
            y = kinds[kind].to_numpy()
            folds = folds_by_patient(y, scans)
            assert folds is not None
            labels.append(y)
            base.append(base_rates(y, folds))
            fitted.append(p := held_out(sources, y, scans, folds))
            less = with_interval(log_loss_less(y, p, base[-1], scans))
            rows.append([kind, int(y.sum()), f"{roc_auc_score(y, p):.3f}", f"{log_loss(y, p):.3f}", less])
        y, p, q = map(np.concatenate, (labels, fitted, base))
        less = with_interval(log_loss_less(y, p, q, scans * len(labels)))
        told = f"Mean log-loss over kinds: {log_loss(y, p):.3f}, less that of the base rate {less}."
        record(f"Kinds of bleed: {name}", f"{len(scans)} scans.\n\n{table(head, rows)}\n\n{told}")


if __name__ == "__main__":
    main()
