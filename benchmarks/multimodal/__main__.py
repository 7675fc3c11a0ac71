"""vMMIC and MICProB: the authors' simulated set, speed, the thesis's grid, one modality, CQ500 with two.

    python -m benchmarks.multimodal [--parts authors,gibbs,coverage,time,grid,single,musk2,cq500]
        [--replicates 5] [--write]

Bags are simulated by `simulated.py`, baselines are those of `baselines.py`. Processor seconds are of one
thread. No bag is scored by a model that has seen it.
"""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold

from benchmarks.multimodal.baselines import BASELINES
from benchmarks.multimodal.simulations import authors, bag_loss, coverage, gibbs, grid, time
from benchmarks.public_features import DATA, cq500, musk, rsna
from benchmarks.record import command_line, record, table
from ich_mil.gp.head import Head
from ich_mil.multimodal import MultimodalMIL

BOOTSTRAP = 2000
FINDINGS = ("Fracture", "MidlineShift", "MassEffect")


def _arrays(features: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, bag of each row and labels of a packed set."""
    x, offsets, labels = features.x, features.offsets, features.labels  # type: ignore[attr-defined]
    bags = np.repeat(np.arange(len(labels)), np.diff(offsets.numpy()))
    return x.double().numpy(), bags, labels.numpy()


def single(replicates: int) -> None:
    """One modality on held-out folds: MUSK1 and the RSNA features, beside the GP head."""
    _single({"MUSK1": _arrays(musk("musk1")), "RSNA, 8 features": _arrays(rsna())})


def musk2(replicates: int) -> None:
    """The same on MUSK2, which takes minutes: 166 features, bags of up to 1,044."""
    _single({"MUSK2": _arrays(musk("musk2"))})


def _single(sets: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]) -> None:
    rows: list[Sequence[object]] = []
    for name, (x, bags, y) in sets.items():
        found: dict[str, list[float]] = {}

        def add(label: str, score: object, truth: np.ndarray, found: dict[str, list[float]] = found) -> None:
            found.setdefault(label, []).append(float(roc_auc_score(truth, np.asarray(score))))

        for train, held in StratifiedKFold(5, shuffle=True, random_state=0).split(y, y):
            part, out = (
                (x[np.isin(bags, c)], np.searchsorted(np.sort(c), bags[np.isin(bags, c)]))
                for c in (train, held)
            )
            for label, count in (("vMMIC", False), ("vMMIC with count_effect", True)):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # fewer bags than coefficients
                    model = MultimodalMIL(count_effect=count, restarts=2, tolerance=1e-4)
                    model.fit([part[0]], [part[1]], y[train])
                add(label, model.predict_bag_proba([out[0]], [out[1]]), y[held])
            for label in ("mean-pooled LR", "MI-SVM", "NSK-SVM"):
                add(label, BASELINES[label](part, y[train], out), y[held])
            add("GP head", Head().fit(*part, y[train]).predict_bag_proba(*out), y[held])
        rows.append([name, *(f"{np.mean(v):.3f} ± {np.std(v):.3f}" for v in found.values())])
        print(rows[-1], flush=True)
    text = "AUC of five held-out folds, mean ± std; the GP head chooses its kernel; 2 restarts.\n\n"
    record("vMMIC with one modality", text + table(["", *found], rows))


def findings() -> pd.DataFrame:
    """Share of the three readers that name each finding, by scan of CQ500."""
    reads = pd.read_csv(DATA / "features" / "cq500_reads.csv").set_index("name")
    return pd.DataFrame({one: reads[[f"R{r}:{one}" for r in (1, 2, 3)]].mean(axis=1) for one in FINDINGS})


def cross_validated(
    sources: list[tuple[np.ndarray, np.ndarray]], y: np.ndarray, *, count: bool
) -> np.ndarray:
    """Probability (B,) of each bag by a model that has not seen it, five folds; sources are (X, bags)."""
    p = np.empty(len(y))
    for train, held in StratifiedKFold(5, shuffle=True, random_state=0).split(y, y):
        parts = []
        for chosen in (train, held):
            kept = [(x[np.isin(bags, chosen)], bags[np.isin(bags, chosen)]) for x, bags in sources]
            parts.append(([x for x, _ in kept], [bags for _, bags in kept]))
        model = MultimodalMIL(count_effect=count, restarts=2, tolerance=1e-4).fit(*parts[0], y[train])
        p[held] = model.predict_bag_proba(*parts[1])
    return p


def paired(y: np.ndarray, p: np.ndarray, q: np.ndarray) -> str:
    """AUC of p less that of q, with a 95 % interval over resampled bags."""
    rng, values = np.random.default_rng(0), []
    for _ in range(BOOTSTRAP):
        chosen = rng.integers(0, len(y), len(y))
        values.append(roc_auc_score(y[chosen], p[chosen]) - roc_auc_score(y[chosen], q[chosen]))
    low, high = np.quantile(values, [0.025, 0.975])
    return f"{roc_auc_score(y, p) - roc_auc_score(y, q):+.3f} [{low:+.3f}, {high:+.3f}]"


def two_modalities(replicates: int) -> None:
    """CQ500: slices alone, findings of the readers alone, and both."""
    scans = cq500()
    x, bags, y = _arrays(scans)
    read = findings().reindex(list(scans.scans))
    known = np.flatnonzero(read.notna().all(axis=1).to_numpy())
    truth, kept = y[known], np.isin(bags, known)
    slices = x[kept], np.searchsorted(known, bags[kept])
    extra = read.to_numpy()[known], np.arange(len(known))
    sources = {"slices": [slices], "findings": [extra], "slices and findings": [slices, extra]}
    rows: list[Sequence[object]] = []
    for count in (False, True):
        results = {name: cross_validated(one, truth, count=count) for name, one in sources.items()}
        for name, p in results.items():
            gain = "-" if name == "slices" else paired(truth, p, results["slices"])
            figures = f"{roc_auc_score(truth, p):.3f}", f"{bag_loss(truth, p):.3f}", gain
            rows.append([name, "yes" if count else "no", *figures])
    text = (
        f"{len(known)} scans, five folds. Findings: share of the readers who name a fracture, midline shift, "
        "mass effect; 2 restarts. The same readers name the bleed: findings depend on the label.\n\n"
    )
    head = ["", "count_effect", "AUC", "log-loss", "AUC less that of slices"]
    record("vMMIC on CQ500 with two modalities", text + table(head, rows))


PARTS: dict[str, Callable[[int], None]] = {
    "authors": authors,
    "gibbs": gibbs,
    "coverage": coverage,
    "time": time,
    "grid": grid,
    "single": single,
    "musk2": musk2,
    "cq500": two_modalities,
}

if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated")
    parser.add_argument("--replicates", type=int, default=5, help="seeds, or simulated data sets")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for chosen_part in arguments.parts.split(","):
        PARTS[chosen_part](arguments.replicates)
