"""Quality of the heads: cells of the grid, folds of RSNA, MUSK, families.

Each function returns Markdown. Every scan is scored by heads and calibrations that were not fitted to it.
"""

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch
from sklearn.metrics import accuracy_score, f1_score, log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold

from ich_mil.gp.aggregation import scan_logit
from ich_mil.gp.bags import Bags
from ich_mil.gp.fit import Job, fit, fit_replicates
from ich_mil.gp.fit_calibration import fit_calibrated
from ich_mil.gp.inference.folds import folds_of
from ich_mil.gp.predict import Predictions, mean_logits, predict
from ich_mil.gp.settings import HeadSettings
from ich_mil.sets.features import FeatureSet
from research.benchmarks.public_features import bags_of, cq500, musk, rsna
from research.benchmarks.record import table

HEADS = {
    "VGPMIL": HeadSettings(density="logistic"),
    "G-VGPMIL(1, 2.5)": HeadSettings(density="gamma", alpha=1.0, beta=2.5),
}
SEEDS = range(5)


def head_on(train: FeatureSet, test: FeatureSet, settings: HeadSettings) -> Predictions:
    """Fit to all training scans, calibrate on held-out folds of them, predict the test scans."""
    model, _ = fit_calibrated(bags_of(train), settings, patients=train.patients)
    scans = Bags(test.x, test.offsets, ids=test.scans)
    return predict(model, scans, calibration=model.calibration)


def scan_metrics(labels: torch.Tensor, p: torch.Tensor) -> tuple[float, float, float]:
    """AUC, log-loss, and accuracy at p = ½."""
    y, q = labels.numpy(), p.numpy()
    return float(roc_auc_score(y, q)), float(log_loss(y, q)), float(accuracy_score(y, q >= 0.5))


Cell = tuple[int, float, float]
"""M, α and β."""


def grid_cells(seeds: Sequence[int]) -> tuple[dict[Cell, list[float]], list[str]]:
    """CQ500 scan AUC per cell and seed (NaN if a score is not finite), and the reason each fit stopped."""
    train, test = rsna(), cq500()
    base = HeadSettings(density="gamma", rule="max")
    jobs = [
        Job(replace(base, n_inducing=m, alpha=alpha, beta=beta, random_state=seed))
        for m in (50, 100, 200)
        for seed in seeds
        for alpha in (0.5, 1.0)
        for beta in (1.0, 2.5, 4.0)
    ]
    found: dict[Cell, list[float]] = {}
    stopped: list[str] = []
    for group in fit_replicates(bags_of(train), jobs):
        logits = mean_logits([one.model for one in group], bags_of(test))
        for one, score in zip(group, scan_logit(logits, test.offsets, "max"), strict=True):
            s = one.model.settings
            auc = float(roc_auc_score(test.labels, score)) if bool(score.isfinite().all()) else float("nan")
            found.setdefault((s.n_inducing, s.alpha, s.beta), []).append(auc)
            stopped.append(one.report.stopped)
    return found, stopped


def cells() -> str:
    """Worst and best CQ500 scan AUC of each cell of the paper's grid over 5 seeds."""
    found, stopped = grid_cells(SEEDS)
    rows = [
        [m, a, b, f"{min(values):.4f}", f"{max(values):.4f}", sum(map(np.isnan, values))]
        for (m, a, b), values in found.items()
    ]
    ended = ", ".join(f"{stopped.count(how)} {how}" for how in sorted(set(stopped)))
    worst = min(min(values) for values in found.values())
    head = ["M", "α", "β", "lowest AUC of 5 seeds", "highest", "not finite"]
    return f"Worst of {len(stopped)}: {worst:.4f}. How they ended: {ended}.\n\n" + table(head, rows)


def folds() -> str:
    """Metrics on held-out RSNA slices and scans; calibration on folds within the training scans of a fold."""
    features = rsna()
    rows = []
    for name, settings in HEADS.items():
        found = []
        for train, held in folds_of(features.labels, features.patients, folds=5, seed=0):
            part, out = (features.select([features.scans[b] for b in chosen]) for chosen in (train, held))
            got = head_on(part, out, settings)
            y, p = out.slice_labels.numpy(), got.slice_mean.numpy()
            scan = scan_metrics(out.labels, got.scan_mean)
            found.append([roc_auc_score(y, p), f1_score(y, p >= 0.5), *scan])
        mean, std = np.mean(found, 0), np.std(found, 0)
        rows.append([name, *(f"{a:.4f} ± {b:.4f}" for a, b in zip(mean, std, strict=True))])
    return table(
        ["head, mean ± std of 5 folds", "slice AUC", "slice F1", "scan AUC", "log-loss", "accuracy"], rows
    )


def musk_bags() -> str:
    """Held-out bag AUC on MUSK; kernel and density are chosen by 5 folds within each training part."""
    base = HeadSettings(sweeps=10, calibration="none")
    lines = []
    for name in ("musk1", "musk2"):
        data = musk(name)
        d = data.x.shape[1]
        grid = [
            replace(base, variance=v, lengthscale_squared=part * d, bias=bias, **density)
            for bias in (0.0, 10.0)
            for v in (1.0, 10.0)
            for part in (0.25, 1.0)
            for density in ({"density": "logistic"}, {"density": "gamma", "alpha": 1.0, "beta": 1.0})
        ]
        nested, pooled, picks, fixed = [], [], [], {place: [] for place in range(len(grid))}  # type: ignore[var-annotated]
        for repeat in range(5):
            scores, labels = [], []
            split = StratifiedKFold(5, shuffle=True, random_state=repeat)
            for train, held in split.split(data.labels, data.labels):
                inner = [(train[a], train[b]) for a, b in split.split(train, data.truth[train])]
                within = _held_out(data, grid, inner)
                chosen = max(within, key=lambda place: float(np.mean(within[place][0])))
                aucs = _held_out(data, grid, [(train, held)])
                for place, (auc, _) in aucs.items():
                    fixed[place].append(auc[0])
                nested.append(aucs[chosen][0][0])
                picks.append(chosen)
                scores.append(aucs[chosen][1])
                labels.append(data.truth[held].numpy())
            pooled.append(roc_auc_score(np.concatenate(labels), np.concatenate(scores)))
        best = max(fixed, key=lambda place: float(np.mean(fixed[place])))
        s, v = grid[best], grid[best].variant
        setting = f"v {v.variance:g}, ℓ {s.lengthscale_squared:g}, bias {v.bias:g}, {s.density}"
        with_bias = sum(grid[place].variant.bias > 0 for place in picks)
        without = max(np.mean(fixed[p]) for p in fixed if grid[p].variant.bias == 0)
        cells = [f"{np.mean(nested):.3f} ± {np.std(nested):.3f}", f"{np.mean(pooled):.3f}"]
        cells += [f"{with_bias} of {len(picks)}", f"{np.mean(fixed[best]):.3f} ({setting})", f"{without:.3f}"]
        lines.append([name, *cells])
    head = ["", "nested AUC, mean ± std of 25 folds", "pooled by repeat", "bias chosen"]
    return table([*head, "best fixed cell (seen)", "best without bias (seen)"], lines)


def _held_out(
    data: Bags, grid: list[HeadSettings], splits: list[tuple[np.ndarray, np.ndarray]]
) -> dict[int, tuple[list[float], np.ndarray]]:
    """For each cell: AUC of each split, and scores of the held-out bags of the last split."""
    jobs = [Job(settings, tuple(train.tolist())) for train, _ in splits for settings in grid]
    found: dict[int, tuple[list[float], np.ndarray]] = {}
    for group in fit_replicates(data, jobs):
        held = splits[group[0].place // len(grid)][1]
        out = data.take(held.tolist())
        logits = mean_logits([one.model for one in group], out)
        for one, score in zip(group, scan_logit(logits, out.offsets, "max"), strict=True):
            aucs, _ = found.get(one.place % len(grid), ([], None))
            auc = float(roc_auc_score(data.truth[held], score))
            found[one.place % len(grid)] = [*aucs, auc], score.numpy()
    return found


def _compare(heads: dict[str, HeadSettings]) -> str:
    """Table of metrics on RSNA folds (nested calibration) and CQ500, one row per head."""
    features, test = rsna(), cq500()
    rows = []
    for name, settings in heads.items():
        losses, aucs, f1 = [], [], []
        for train, held in folds_of(features.labels, features.patients, folds=5, seed=0):
            part, out = (features.select([features.scans[b] for b in chosen]) for chosen in (train, held))
            got = head_on(part, out, settings)
            auc, loss, _ = scan_metrics(out.labels, got.scan_mean)
            aucs.append(auc)
            losses.append(loss)
            f1.append(f1_score(out.slice_labels, got.slice_mean >= 0.5))
        started = perf_counter()
        fit(bags_of(features), settings)
        took = perf_counter() - started
        got = head_on(features, test, settings)
        auc, loss, accuracy = scan_metrics(test.labels, got.scan_mean)
        rsna_cells = [f"{np.mean(values):.4f}" for values in (aucs, losses, f1)]
        rows.append([name, *rsna_cells, f"{auc:.4f}", f"{loss:.3f}", f"{accuracy:.3f}", f"{took:.1f}"])
    head = ["", "RSNA scan AUC", "RSNA log-loss", "RSNA slice F1", "CQ500 AUC", "CQ500 log-loss"]
    return table([*head, "CQ500 accuracy", "s a fit"], rows)


def families() -> str:
    """Compare all families of heads with default settings."""
    return _compare(
        {
            "VGPMIL": HEADS["VGPMIL"],
            "G-VGPMIL(1, 2.5)": HEADS["G-VGPMIL(1, 2.5)"],
            "LM-VGPMIL": HeadSettings(family="large_margin"),
            "MIL-GP-Probit": HeadSettings(family="probit"),
            "MIL-GP-Probit, Gibbs": HeadSettings(family="gibbs"),
        }
    )
