"""The thesis's grid: bag AUC of vMMIC and of baselines over the settings of the simulation.

Each replicate is kept in `data/multimodal_grid.csv` as it ends; a later call goes on from there. Delete the
file to start afresh. A line tells the time that the rest will take.
"""

from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from ich_mil.multimodal import MultimodalMIL
from research.benchmarks.multimodal.baselines import BASELINES, joined
from research.benchmarks.multimodal.simulated import oracle, simulate
from research.benchmarks.multimodal.simulations import PPI, fit_seconds, predicted
from research.benchmarks.record import record, table


def _cells() -> list[dict[str, float]]:
    """The thesis's design: a basic setting, and one factor varied at a time."""
    basic = {"n": 500, "m": 20, "r": 4, "ppi": 0.35}
    values = {"n": (250, 1000, 2000, 4000), "m": (10, 30, 40), "r": (1, 2, 3), "ppi": (0.1, 0.6, 0.85)}
    return [basic, *(basic | {name: v} for name, several in values.items() for v in several)]


GRID = _cells()
KEPT = Path("data") / "multimodal_grid.csv"
SLOW = 10_000
"""Training instances beyond which MILES and NSK-SVM are left out."""


def grid(replicates: int, cells: Sequence[int] = range(len(GRID))) -> None:
    """Bag AUC over the thesis's design, beside baselines."""
    KEPT.parent.mkdir(exist_ok=True)
    done = pd.read_csv(KEPT) if KEPT.exists() else pd.DataFrame(columns=["cell", "seed"])
    known = set(zip(done.cell, done.seed, strict=True))
    todo = [(c, s) for s in range(replicates) for c in cells if (c, s) not in known]
    size = [GRID[c]["n"] * GRID[c]["m"] for c, _ in todo]
    began, spent = monotonic(), 0.0
    for (c, seed), one in zip(todo, size, strict=True):
        row = pd.DataFrame([{"cell": c, "seed": seed, **_replicate(GRID[c], seed)}])
        row.to_csv(KEPT, mode="a", header=not KEPT.exists(), index=False)
        spent += one
        left = (monotonic() - began) * (sum(size) - spent) / spent
        print(
            f"cell {c}, seed {seed}: AUC {row['vMMIC'].iloc[0]:.3f}; about {left / 60:.0f} min left",
            flush=True,
        )
    kept = pd.read_csv(KEPT)
    kept = kept[kept.cell.isin(cells) & (kept.seed < replicates)].drop(columns="seed")
    about = f"{replicates} replicates, 300 test bags each: mean ± standard error. "
    about += "The last columns compare vMMIC with the best baseline of the cell, replicate by replicate.\n\n"
    record("vMMIC: the thesis's grid", about + _table(kept))


def _table(kept: pd.DataFrame) -> str:
    """One row a cell: mean of each column with its standard error, and vMMIC less the best baseline."""
    rows: list[Sequence[object]] = []
    for c in sorted(set(kept.cell)):
        values = kept[kept.cell == c].drop(columns="cell")
        mean, error = values.mean(), values.sem()
        best = str(mean[list(BASELINES)].idxmax())
        gain = values["vMMIC"] - values[best]
        rows.append(
            [f"{value:g}" for value in GRID[int(c)].values()]
            + [f"{mean[k]:.1f}" if k == "seconds" else _pm(mean[k], error[k]) for k in mean.index]
            + [best, _pm(gain.mean(), gain.sem(), "+")]
        )
    head = ["n", "m", "r", "PPI₁", *kept.columns.drop("cell"), "best baseline", "vMMIC less it"]
    return table(head, rows)


def _pm(mean: float, error: float, sign: str = "") -> str:
    return "-" if np.isnan(mean) else f"{mean:{sign}.3f} ± {error:.3f}"


def _replicate(cell: dict[str, float], seed: int) -> dict[str, float]:
    """AUC of all methods on one simulated set, of primary instances, and processor seconds of vMMIC."""
    rng, ppi = np.random.default_rng(seed), (PPI[0], cell["ppi"])
    train, test = (simulate(n, int(cell["m"]), cell["r"], ppi, rng) for n in (int(cell["n"]), 300))
    y, model = test.labels, MultimodalMIL(random_state=seed)
    taken = fit_seconds(model, train)
    bag, instances, _ = predicted(model, test)
    truth = float(roc_auc_score(y, oracle(test, ppi, rng)[0]))
    found = {"oracle": truth, "vMMIC": bag, "instances": instances, "seconds": taken}
    a, b = joined(train.X, train.bags), joined(test.X, test.bags)
    for name, baseline in BASELINES.items():
        left_out = name in ("MILES", "NSK-SVM") and cell["n"] * cell["m"] > SLOW
        found[name] = np.nan if left_out else float(roc_auc_score(y, baseline(a, train.labels, b)))
    return found
