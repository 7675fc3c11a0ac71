"""vMMIC and MICProB: the authors' simulated set, speed, the thesis's grid, one modality, CQ500 with two.

    python -m benchmarks.multimodal [--parts authors,gibbs,coverage,time,grid,single,musk2,cq500]
        [--replicates 5] [--write]

Simulated bags are those of `benchmarks.multimodal_data`, baselines those of `benchmarks.mil_baselines`.
Processor seconds are of one thread. No bag is scored by a model that has seen it.
"""

import resource
import warnings
from collections.abc import Callable, Sequence
from time import process_time
from typing import Literal

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold

from benchmarks.heads_data import DATA, cq500, musk, rsna
from benchmarks.mil_baselines import BASELINES, joined
from benchmarks.multimodal_data import INNER, OUTER, Set, authors_set, oracle, simulate
from benchmarks.record import command_line, record, table
from ich_mil.gp.head import Head
from ich_mil.multimodal import MultimodalMIL

PPI = (0.35, 0.35)
"""Shares of primary instances in the basic setting (thesis, section 2.3.1), and in the authors' set."""

FAST: tuple[Literal["variational", "laplace"], ...] = ("variational", "laplace")

BOOTSTRAP = 2000


def auc_of_instances(test: Set, p: Sequence[np.ndarray]) -> float:
    """AUC of primary instances, both modalities together."""
    return float(roc_auc_score(np.concatenate(test.primary), np.concatenate(list(p))))


def timed(work: Callable[[], object]) -> tuple[object, float]:
    began = process_time()
    return work(), process_time() - began


def number(value: float) -> str:
    return f"{value:.3f}"


def auc(y: np.ndarray, p: object) -> str:
    return number(float(roc_auc_score(y, np.asarray(p))))


def bag_loss(y: np.ndarray, p: np.ndarray) -> float:
    return float(log_loss(y, np.clip(p, 1e-12, 1 - 1e-12)))


def authors(replicates: int, write: bool) -> None:
    """One fit a seed, and baselines, on 500 training and 300 test bags."""
    train, test = authors_set()
    rows: list[Sequence[object]] = []
    y = test.labels
    for seed, method in [(s, m) for s in range(replicates) for m in FAST]:
        model = MultimodalMIL(method=method, random_state=seed)
        _, taken = timed(lambda m=model: m.fit(train.X, train.bags, train.labels))  # type: ignore[misc]
        p, plug = model.predict_bag_proba(test.X, test.bags), model.predict_plug_in(test.X, test.bags)
        assert isinstance(p, np.ndarray)
        instances = model.predict_instance_proba(test.X, test.bags)
        assert isinstance(instances, list)
        rows.append(
            [
                f"vMMIC, {method}, seed {seed}",
                auc(y, p),
                number(auc_of_instances(test, instances)),
                number(bag_loss(y, p)),
                f"{roc_auc_score(y, plug):.3f} / {bag_loss(y, plug):.3f}",
                f"{model.bounds_[-1]:.1f}",
                f"{taken:.1f}",
            ]
        )
    p, primary = oracle(test, PPI, np.random.default_rng(0))
    rows.append(
        [
            "true parameters",
            auc(y, p),
            number(auc_of_instances(test, primary)),
            number(bag_loss(y, p)),
        ]
        + ["-"] * 3
    )
    a, b = joined(train.X, train.bags), joined(test.X, test.bags)
    for name, baseline in BASELINES.items():
        score, taken = timed(lambda f=baseline: f(a, train.labels, b))  # type: ignore[misc]
        rows.append([name, auc(y, score), *["-"] * 4, f"{taken:.1f}"])
    head = ["", "bag AUC", "instance AUC", "log-loss", "AUC / log-loss of the plug-in", "bound", "seconds"]
    record("vMMIC on the authors' set", _command("authors", replicates), table(head, rows), write=write)


def gibbs(replicates: int, write: bool) -> None:
    """Variational coefficients in deviations of the Gibbs posterior, and what both are worth."""
    rows: list[Sequence[object]] = []
    sets = {"authors' set, n = 500, m = 10": authors_set()}
    rng = np.random.default_rng(0)
    sets["simulated, n = 1,000, m = 10, r = 1"] = (
        simulate(1000, 10, 1, PPI, rng),
        simulate(500, 10, 1, PPI, rng),
    )
    for name, (train, test) in sets.items():
        sampler = MultimodalMIL(method="gibbs", chains=4, burn_in=1000, draws=1000)
        for one in (sampler, MultimodalMIL(tolerance=1e-6), MultimodalMIL(method="laplace")):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # R-hat stands in the table
                _, taken = timed(lambda m=one, s=train: m.fit(s.X, s.bags, s.labels))  # type: ignore[misc]
            p = one.predict_bag_proba(test.X, test.bags)
            instances = one.predict_instance_proba(test.X, test.bags)
            assert isinstance(p, np.ndarray)
            assert isinstance(instances, list)
            chains = f"R-hat {sampler.r_hat_:.2f}, ESS {sampler.effective_samples_:.0f}"
            rows.append(
                [
                    name,
                    one.method,
                    auc(test.labels, p),
                    number(auc_of_instances(test, instances)),
                    number(bag_loss(test.labels, p)),
                    f"{taken:.0f}",
                    chains if one is sampler else _distance(one, sampler),
                ]
            )
    head = ["", "method", "bag AUC", "instance AUC", "log-loss", "seconds", ""]
    record("vMMIC against Gibbs", _command("gibbs", replicates), table(head, rows), write=write)


def _distance(model: MultimodalMIL, sampler: MultimodalMIL) -> str:
    """Differences of means in Gibbs deviations, and ratios of deviations, by tier."""
    parts = []
    for tier in ("primary", "bag"):
        a, b = (one.coef_[one.coef_.tier == tier] for one in (model, sampler))
        shift = (np.abs(a["mean"] - b["mean"]) / b["std"]).median()
        ratio = (a["std"] / b["std"]).median()
        parts.append(f"{tier}: means differ by {shift:.1f} deviations, deviations are {ratio:.2f} of Gibbs's")
    return "; ".join(parts) + " (medians)"


def coverage(replicates: int, write: bool) -> None:
    """Share of 95 % intervals that hold the true coefficient, and the size of the estimates."""
    rows = []
    cases = [(n, method) for n in (500, 1000, 2000) for method in FAST]
    for n, method in cases:
        inside: dict[str, list[float]] = {"primary": [], "bag": []}
        slopes: dict[str, list[float]] = {"primary": [], "bag": []}
        for seed in range(replicates):
            train = simulate(n, 10, 1, PPI, np.random.default_rng(seed))
            coef = MultimodalMIL(method=method, restarts=4, random_state=seed).fit(
                train.X, train.bags, train.labels
            )
            for tier, truths in (("primary", INNER), ("bag", OUTER)):
                for k, truth in enumerate(truths):
                    own = coef.coef_[(coef.coef_.tier == tier) & (coef.coef_.modality == k)]
                    own = own[own.feature != "intercept"]
                    scaled = truth * coef.scalings_[k].deviation.numpy()
                    inside[tier] += ((own.lower < scaled) & (scaled < own.upper)).tolist()
                    slopes[tier].append(float(own["mean"] @ scaled / (scaled @ scaled)))
        rows.append(
            [f"{n:,}", method]
            + [f"{np.mean(inside[tier]):.2f}" for tier in inside]
            + [f"{np.mean(slopes[tier]):.2f}" for tier in slopes]
        )
    head = ["n", "method", "coverage, primary tier", "bag tier", "estimate / truth, primary tier", "bag tier"]
    text = f"{replicates} data sets a row, m = 10, r = 1, PPI .35. Slopes only.\n\n" + table(head, rows)
    record("vMMIC: coverage of 95 % intervals", _command("coverage", replicates), text, write=write)


def time(replicates: int, write: bool) -> None:
    """Processor seconds and peak memory up to 16,000 bags of 20."""
    rows: list[Sequence[object]] = []
    test = simulate(1000, 20, 4, PPI, np.random.default_rng(1))
    for n in (1000, 4000, 16_000):
        train = simulate(n, 20, 4, PPI, np.random.default_rng(0))
        model = MultimodalMIL(tolerance=1e-4)
        _, taken = timed(lambda m=model, s=train: m.fit(s.X, s.bags, s.labels))  # type: ignore[misc]
        p = model.predict_bag_proba(test.X, test.bags)
        instances = model.predict_instance_proba(test.X, test.bags)
        assert isinstance(p, np.ndarray)
        assert isinstance(instances, list)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        rows.append(
            [
                f"{n:,}",
                f"{taken:.1f}",
                len(model.bounds_),
                f"{peak:.2f}",
                auc(test.labels, p),
                number(auc_of_instances(test, instances)),
            ]
        )
    p, primary = oracle(test, PPI, np.random.default_rng(0))
    rows.append(
        [
            "true parameters",
            "-",
            "-",
            "-",
            auc(test.labels, p),
            number(auc_of_instances(test, primary)),
        ]
    )
    head = ["n", "processor s", "sweeps over all bags", "peak GB of the process", "bag AUC", "instance AUC"]
    text = "m = 20, r = 4, PPI .35, tolerance 1e-4, 8 restarts; peak memory grows over the rows.\n\n"
    record("vMMIC: time and memory", _command("time", replicates), text + table(head, rows), write=write)


def grid(replicates: int, write: bool) -> None:
    """Bag AUC over the thesis's design, one factor varied at a time, beside baselines."""
    basic = {"n": 500, "m": 20, "r": 4.0, "ppi": 0.35}
    cells = [dict(basic)]
    cells += [basic | {"n": n} for n in (250, 1000)]
    cells += [basic | {"m": m} for m in (10, 30, 40)]
    cells += [basic | {"r": r} for r in (1.0, 2.0, 3.0)]
    cells += [basic | {"ppi": ppi} for ppi in (0.1, 0.6, 0.85)]
    names = ["vMMIC", *BASELINES]
    rows: list[Sequence[object]] = []
    for cell in cells:
        found: dict[str, list[float]] = {name: [] for name in (*names, "instances", "seconds", "oracle")}
        for seed in range(replicates):
            rng, ppi = np.random.default_rng(seed), (PPI[0], float(cell["ppi"]))
            train, test = (
                simulate(n, int(cell["m"]), float(cell["r"]), ppi, rng) for n in (int(cell["n"]), 300)
            )
            model = MultimodalMIL(restarts=4, tolerance=1e-4, random_state=seed)
            _, taken = timed(lambda m=model, s=train: m.fit(s.X, s.bags, s.labels))  # type: ignore[misc]
            p = model.predict_bag_proba(test.X, test.bags)
            instances = model.predict_instance_proba(test.X, test.bags)
            assert isinstance(instances, list)
            found["vMMIC"].append(float(roc_auc_score(test.labels, p)))
            found["instances"].append(auc_of_instances(test, instances))
            found["seconds"].append(taken)
            found["oracle"].append(float(roc_auc_score(test.labels, oracle(test, ppi, rng)[0])))
            a, b = joined(train.X, train.bags), joined(test.X, test.bags)
            for name, baseline in BASELINES.items():
                if name in ("MILES", "NSK-SVM") and int(cell["n"]) * int(cell["m"]) > SLOW:
                    continue
                found[name].append(float(roc_auc_score(test.labels, baseline(a, train.labels, b))))
        rows.append(
            [cell["n"], cell["m"], f"{cell['r']:.0f}", cell["ppi"]]
            + [
                f"{np.mean(found[name]):.3f}" if found[name] else "-"
                for name in ("oracle", *names, "instances")
            ]
            + [f"{np.mean(found['seconds']):.1f}"]
        )
        print(rows[-1], flush=True)
    head = ["n", "m", "r", "PPI₁", "oracle", *names, "vMMIC, instances", "vMMIC, s"]
    text = f"Means of {replicates} replicates, 300 test bags each; 4 restarts, tolerance 1e-4.\n\n"
    record("vMMIC: the thesis's grid", _command("grid", replicates), text + table(head, rows), write=write)


SLOW = 10_000
"""Training instances beyond which MILES and NSK-SVM are left out."""


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
            for label, count in (("vMMIC", False), ("vMMIC with count_effect", True)):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # fewer bags than coefficients
                    model = MultimodalMIL(count_effect=count, restarts=2, tolerance=1e-4)
                    model.fit([part[0]], [part[1]], y[train])
                p = model.predict_bag_proba([out[0]], [out[1]])
                found.setdefault(label, []).append(float(roc_auc_score(y[held], p)))
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
        _command(part_name, replicates),
        text + table(["", *found], rows),
        write=write,
    )


FINDINGS = ("Fracture", "MidlineShift", "MassEffect")


def findings() -> pd.DataFrame:
    """Share of the three readers that name each finding, by scan of CQ500."""
    reads = pd.read_csv(DATA / "features" / "cq500_reads.csv").set_index("name")
    return pd.DataFrame({one: reads[[f"R{r}:{one}" for r in (1, 2, 3)]].mean(axis=1) for one in FINDINGS})


def cross_validated(X: list[np.ndarray], bags: list[np.ndarray], y: np.ndarray, *, count: bool) -> np.ndarray:
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
    for count in (False, True):
        kept = np.isin(bags, known)
        place = np.cumsum(chosen) - 1
        results = {}
        for name, (tables, owners) in sources.items():
            cut = [
                (t[kept], place[o[kept]]) if t is x else (t, place[o])
                for t, o in zip(tables, owners, strict=True)
            ]
            results[name] = cross_validated([c[0] for c in cut], [c[1] for c in cut], y[chosen], count=count)
        truth = y[chosen]
        for name, p in results.items():
            gain = "-" if name == "slices" else paired(truth, p, results["slices"])
            rows.append(
                [
                    name,
                    "yes" if count else "no",
                    auc(truth, p),
                    number(bag_loss(truth, p)),
                    gain,
                ]
            )
    text = (
        f"{len(known)} scans, five folds. Findings: share of the readers who name a fracture, midline shift, "
        "mass effect; 2 restarts. The same readers name the bleed: findings depend on the label.\n\n"
    )
    head = ["", "count_effect", "AUC", "log-loss", "AUC less that of slices"]
    record(
        "vMMIC on CQ500 with two modalities",
        _command("cq500", replicates),
        text + table(head, rows),
        write=write,
    )


def _command(part: str, replicates: int) -> str:
    return f"python -m benchmarks.multimodal --parts {part} --replicates {replicates}"


PARTS: dict[str, Callable[[int, bool], None]] = {
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
        PARTS[chosen_part](arguments.replicates, arguments.write)
