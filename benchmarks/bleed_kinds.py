"""Kinds of bleed in CQ500 from the features of three networks, by one kernel per network.

    python -m benchmarks.bleed_kinds [--folds 5] [--write]

A scan is described by the mean and the maximum over its slices of the 8 features of a network (16 numbers). A
kind is present where two of three readers see it. Scans are those in which two readers see a bleed. 63 of the
205 have several kinds and 6 have none of the five, so kinds are no exclusive classes: each is classified
against the rest, by chains of its own. A scan of CQ500 is a patient; folds are stratified by the kind, and
predictions of all held-out folds are scored together.
"""

import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.public_features import DATA
from benchmarks.record import command_line, record, table, with_interval
from ich_mil.multikernel import MultiKernelGP

FEATURES = DATA / "features"
KINDS = ("IPH", "IVH", "SAH", "SDH", "EDH")
RUNS = ("run0", "run1", "run2")
RESAMPLES, ENDS = 2000, (0.025, 0.975)
Tables = dict[str, np.ndarray]


def majority(reads: pd.DataFrame, finding: str) -> pd.Series:
    """Whether at least two of three readers see the finding."""
    return reads[[f"R{reader}:{finding}" for reader in (1, 2, 3)]].sum(axis=1) >= 2


def load() -> tuple[Tables, pd.DataFrame]:
    """Scan embeddings (n, 16) of each run, and kinds (n, 5), of the scans with a bleed."""
    reads = pd.read_csv(FEATURES / "cq500_reads.csv").set_index("name")
    embedded = {}
    for run in RUNS:
        slices = pd.read_csv(FEATURES / f"cq500_d8_{run}.csv")
        columns = [f"feature_{k}" for k in range(8)]
        embedded[run] = slices.groupby("bag_name")[columns].agg(["mean", "max"])
    names = [name for name in reads.index[majority(reads, "ICH")] if name in embedded["run0"].index]
    kinds = pd.DataFrame({kind: majority(reads, kind).loc[names].astype(int) for kind in KINDS})
    return {run: values.loc[names].to_numpy() for run, values in embedded.items()}, kinds


def several_kernels(train: Tables, y: np.ndarray, test: Tables) -> np.ndarray:
    model = MultiKernelGP(chains=4, burn_in=600, draws=400, random_state=0)
    return np.asarray(model.fit(train, y).predict_proba(test))[:, 1]


def one_kernel(train: Tables, y: np.ndarray, test: Tables) -> np.ndarray:
    x, new = ({"all": np.hstack(list(tables.values()))} for tables in (train, test))
    return several_kernels(x, y, new)


def logistic(train: Tables, y: np.ndarray, test: Tables) -> np.ndarray:
    """Logistic regression on all columns, its penalty chosen within the training scans by log-loss."""
    x, new = (np.hstack(list(tables.values())) for tables in (train, test))
    inner = StratifiedKFold(5, shuffle=True, random_state=0)
    regression = LogisticRegressionCV(
        Cs=np.logspace(-4, 1, 11), cv=inner, scoring="neg_log_loss", max_iter=5000,
        l1_ratios=(0,), use_legacy_attributes=False,
    )  # fmt: skip
    return make_pipeline(StandardScaler(), regression).fit(x, y).predict_proba(new)[:, 1]


MODELS: dict[str, Callable[[Tables, np.ndarray, Tables], np.ndarray]] = {
    "three kernels": several_kernels,
    "one kernel": one_kernel,
    "logistic regression": logistic,
}


def held_out(tables: Tables, kinds: pd.DataFrame, folds: int) -> dict[str, np.ndarray]:
    """Held-out probabilities (n, 5) by model, and those of the base rate."""
    out = {name: np.zeros(kinds.shape) for name in (*MODELS, "base rate")}
    for k, kind in enumerate(kinds):
        y = kinds[kind].to_numpy()
        for train, test in StratifiedKFold(folds, shuffle=True, random_state=0).split(y, y):
            parts = [{run: x[rows] for run, x in tables.items()} for rows in (train, test)]
            for name, model in MODELS.items():
                out[name][test, k] = model(parts[0], y[train], parts[1])
            out["base rate"][test, k] = y[train].mean()
    return out


def losses(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    return np.array([log_loss(y[:, k], p[:, k], labels=[0, 1]) for k in range(y.shape[1])])


def aucs(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    return np.array([roc_auc_score(y[:, k], p[:, k]) for k in range(y.shape[1])])


def scores(kinds: pd.DataFrame, out: dict[str, np.ndarray]) -> str:
    """AUC and log-loss with 95 % bootstrap intervals over scans, and differences on the same resamples."""
    y, rng = kinds.to_numpy(), np.random.default_rng(0)
    again: list[np.ndarray] = []
    while len(again) < RESAMPLES:
        rows = rng.integers(0, len(y), len(y))
        if (y[rows].min(0) == 0).all() and (y[rows].max(0) == 1).all():
            again.append(rows)
    rows_of, macro, loss = [], {}, {}
    for name in MODELS:
        p = out[name]
        each = np.array([aucs(y[rows], p[rows]) for rows in again])  # (RESAMPLES, 5)
        macro[name] = each.mean(1)
        loss[name] = np.array([losses(y[rows], p[rows]).mean() for rows in again])
        found = aucs(y, p)
        cells = [
            (found.mean(), macro[name]),
            *zip(found, each.T, strict=True),
            (losses(y, p).mean(), loss[name]),
        ]
        rows_of.append([name, *(with_interval(value, np.quantile(some, ENDS)) for value, some in cells)])
    base = losses(y, out["base rate"]).mean()
    rows_of.append(["base rate", *["0.5"] * 6, f"{base:.4f}"])
    head = ["model", "macro AUC", *(f"{kind} ({int(kinds[kind].sum())})" for kind in kinds), "log-loss"]
    lines = []
    for other in ("one kernel", "logistic regression"):
        a, b = macro["three kernels"] - macro[other], loss["three kernels"] - loss[other]
        auc, of_loss = (with_interval(part.mean(), np.quantile(part, ENDS)) for part in (a, b))
        lines.append(f"Three kernels less {other}: macro AUC {auc}, log-loss {of_loss}.")
    return table(head, rows_of) + "\n\n" + "\n".join(lines)


def leanings(tables: Tables, kinds: pd.DataFrame) -> str:
    """Share of each run in the kernel of f¹ - f², θ_1h + θ_2h over their sum, fitted to all scans."""
    rows = []
    for kind in kinds:
        model = MultiKernelGP(chains=4, burn_in=500, draws=500).fit(tables, kinds[kind].to_numpy())
        theta = np.exp(model.log_theta_).sum(2).reshape(-1, len(RUNS))  # (draws, 3)
        share = theta / theta.sum(1, keepdims=True)
        most = share.argmax(1)
        rows.append(
            [kind]
            + [with_interval(one.mean(), np.quantile(one, ENDS), 2) for one in share.T]
            + [" / ".join(f"{(most == h).mean():.2f}" for h in range(len(RUNS)))]
            + [f"{model.diagnostics_['largest_r_hat']:.3f}", f"{model.diagnostics_['smallest_ess']:.0f}"]
        )
    return table(["kind", *RUNS, "P(largest) 0 / 1 / 2", "R-hat", "ESS"], rows)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--folds", type=int, default=5)
    chosen = parser.parse_args()
    tables, kinds = load()
    several = int((kinds.sum(axis=1) > 1).sum())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = held_out(tables, kinds, chosen.folds)
        lean = leanings(tables, kinds)
    failed = sum("not converged" in str(one.message) for one in caught)
    text = (
        f"{len(kinds)} scans with a bleed, {several} of several kinds, {chosen.folds} folds, "
        f"{RESAMPLES} bootstrap resamples of scans. Chains that had not converged: {failed} of "
        f"{2 * chosen.folds * len(KINDS) + len(KINDS)} fits.\n\n{scores(kinds, out)}\n\n"
        f"Share of each network in the latent function, all scans:\n\n{lean}"
    )
    record("Kinds of bleed in CQ500", text)


if __name__ == "__main__":
    main()
