"""vMMIC on real bags: one modality beside the GP head, and CQ500 with slices and findings."""

import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold

from benchmarks.heads_data import DATA, cq500, musk, rsna
from benchmarks.mil_baselines import BASELINES
from benchmarks.multimodal_data import FAST, auc, bag_loss, command, number
from benchmarks.record import record, table
from ich_mil.gp.head import Head
from ich_mil.multimodal import MultimodalMIL
from ich_mil.multimodal.inputs import Method

BOOTSTRAP = 2000


def _arrays(features: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, bag of each row and labels of a packed set."""
    x, offsets, labels = features.x, features.offsets, features.labels  # type: ignore[attr-defined]
    bags = np.repeat(np.arange(len(labels)), np.diff(offsets.numpy()))
    return x.double().numpy(), bags, labels.numpy()


def single(replicates: int, write: bool) -> None:
    """One modality on held-out folds: MUSK1 and the RSNA features, beside the GP head."""
    _single(
        {"MUSK1": _arrays(musk("musk1")), "RSNA, 8 features": _arrays(rsna())}, "single", replicates, write
    )


def musk2(replicates: int, write: bool) -> None:
    """The same on MUSK2, which takes minutes: 166 features, bags of up to 1,044."""
    _single({"MUSK2": _arrays(musk("musk2"))}, "musk2", replicates, write)


def _single(
    sets: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]], part_name: str, replicates: int, write: bool
) -> None:
    rows: list[Sequence[object]] = []
    for name, (x, bags, y) in sets.items():
        found: dict[str, list[float]] = {}
        folds = StratifiedKFold(5, shuffle=True, random_state=0).split(y, y)
        for train, held in folds:
            part, out = (
                (x[np.isin(bags, c)], np.searchsorted(np.sort(c), bags[np.isin(bags, c)]))
                for c in (train, held)
            )
            for method in FAST:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # fewer bags than coefficients
                    model = MultimodalMIL(method=method, restarts=2, tolerance=1e-4)
                    model.fit([part[0]], [part[1]], y[train])
                p = model.predict_bag_proba([out[0]], [out[1]])
                found.setdefault(f"vMMIC, {method}", []).append(float(roc_auc_score(y[held], p)))
            for label in ("mean-pooled LR", "MI-SVM", "NSK-SVM"):
                score = BASELINES[label](part, y[train], out)
                found.setdefault(label, []).append(float(roc_auc_score(y[held], score)))
            head = Head()
            head.fit(*part, y[train])
            found.setdefault("GP head", []).append(
                float(roc_auc_score(y[held], head.predict_bag_proba(*out)))
            )
        rows.append([name, *(f"{np.mean(v):.3f} ± {np.std(v):.3f}" for v in found.values())])
        print(rows[-1], flush=True)
    text = "AUC of five held-out folds, mean ± std; the GP head chooses its kernel; 2 restarts.\n\n"
    record(
        "vMMIC with one modality",
        command(part_name, replicates),
        text + table(["", *found], rows),
        write=write,
    )


FINDINGS = ("Fracture", "MidlineShift", "MassEffect")


def findings() -> pd.DataFrame:
    """Share of the three readers that name each finding, by scan of CQ500."""
    reads = pd.read_csv(DATA / "features" / "cq500_reads.csv").set_index("name")
    return pd.DataFrame({one: reads[[f"R{r}:{one}" for r in (1, 2, 3)]].mean(axis=1) for one in FINDINGS})


def cross_validated(X: list[np.ndarray], bags: list[np.ndarray], y: np.ndarray, method: Method) -> np.ndarray:
    """Probability (B,) of each bag by a model that has not seen it, five folds."""
    p = np.empty(len(y))
    for train, held in StratifiedKFold(5, shuffle=True, random_state=0).split(y, y):
        parts = []
        for chosen in (train, held):
            rows = [np.isin(b, chosen) for b in bags]
            parts.append(
                (
                    [x[r] for x, r in zip(X, rows, strict=True)],
                    [b[r] for b, r in zip(bags, rows, strict=True)],
                )
            )
        model = MultimodalMIL(method=method, restarts=2, tolerance=1e-4).fit(*parts[0], y[train])
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


def two_modalities(replicates: int, write: bool) -> None:
    """CQ500: slices alone, findings of the readers alone, and both."""
    scans = cq500()
    x, bags, y = _arrays(scans)
    table_of = findings().reindex(list(scans.scans))
    known = np.flatnonzero(table_of.notna().all(axis=1).to_numpy())
    extra = table_of.to_numpy()[known]
    sources = {
        "slices": ([x], [bags]),
        "findings": ([extra], [known]),
        "slices and findings": ([x, extra], [bags, known]),
    }
    rows: list[Sequence[object]] = []
    chosen = np.isin(np.arange(len(y)), known)
    for method in FAST:
        kept = np.isin(bags, known)
        place = np.cumsum(chosen) - 1
        results = {}
        for name, (tables, owners) in sources.items():
            cut = [
                (t[kept], place[o[kept]]) if t is x else (t, place[o])
                for t, o in zip(tables, owners, strict=True)
            ]
            results[name] = cross_validated([c[0] for c in cut], [c[1] for c in cut], y[chosen], method)
        truth = y[chosen]
        for name, p in results.items():
            gain = "-" if name == "slices" else paired(truth, p, results["slices"])
            rows.append(
                [
                    name,
                    method,
                    auc(truth, p),
                    number(bag_loss(truth, p)),
                    gain,
                ]
            )
    text = (
        f"{len(known)} scans, five folds. Findings: share of the readers who name a fracture, midline shift, "
        "mass effect; 2 restarts. The same readers name the bleed: findings depend on the label.\n\n"
    )
    head = ["", "method", "AUC", "log-loss", "AUC less that of slices"]
    record(
        "vMMIC on CQ500 with two modalities",
        command("cq500", replicates),
        text + table(head, rows),
        write=write,
    )
