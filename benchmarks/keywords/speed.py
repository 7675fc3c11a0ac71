"""Agreement with Gibbs sampling, and speed, of VBSS: parts `gibbs`, `collection` of `benchmarks.keywords`."""

from time import perf_counter, process_time

import numpy as np

from benchmarks.keywords.documents import SEED, STATED, TEXTS, Document, load, vbss
from benchmarks.record import record, table
from ich_mil.reports.ascent import VbssFit
from ich_mil.reports.gibbs import GibbsFit, Link, sample
from ich_mil.reports.keywords import KeywordExtractor
from ich_mil.reports.spectrum import DenseSpectrum
from ich_mil.reports.vbss import Prior

CHAIN = 10_000
"""Number of draws kept of a long chain."""
LINKS: tuple[Link, Link] = ("probit", "logistic")


def gibbs(every: int) -> None:
    """Compare VBSS with the probit Gibbs sampler of the same model, in p̂ and time, and with BSS in time."""
    documents = load(TEXTS, "Inspec", min_count=1, seed=SEED)
    chosen = [documents[i] for i in np.random.default_rng(SEED).choice(len(documents), 10, replace=False)]
    head = ["document", "words", "p̂", "Φ(m)", "p̂ as printed", "between chains", "correlation of p̂"]
    head += ["VBSS, ms", "probit Gibbs as near", "BSS (logistic) as near to its limit"]
    for prior, label in ((Prior(), "α learned"), (Prior(alpha=STATED), f"α = {STATED}")):
        rows, errors = [], []
        for number, document in enumerate(chosen):
            new = ~document.known
            chains = [_chain(document, prior, "probit", CHAIN, seed) for seed in (1, 2)]
            oracle = (chains[0].proba + chains[1].proba) / 2
            linked = (chains[0].link + chains[1].link) / 2
            began = process_time()
            fit = vbss(document.graph, document.known, prior)
            taken = process_time() - began
            printed = vbss(document.graph, document.known, prior, "printed")
            pairs = (fit.proba, oracle), (fit.link, linked), (printed.proba, oracle)
            errors.append(
                [np.abs(p - q)[new].mean() for p, q in (*pairs, (chains[0].proba, chains[1].proba))]
            )
            limits = oracle, _chain(document, prior, "logistic", CHAIN, 3).proba
            costs = [
                _time_to(errors[-1][0], document, prior, link, limit)
                for link, limit in zip(LINKS, limits, strict=True)
            ]
            told = [f"{s} sweeps, {1000 * t:.0f} ms, {t / taken:.0f} x" for s, t in costs]
            correlation = f"{np.corrcoef(fit.proba[new], oracle[new])[0, 1]:.3f}"
            means = [f"{error:.4f}" for error in errors[-1]]
            rows.append([number, len(new), *means, correlation, f"{1000 * taken:.1f}", *told])
        rows.append(["mean", "", *(f"{m:.4f}" for m in np.mean(errors, axis=0)), "", "", "", ""])
        text = f"{label}. Mean absolute difference of new words from two chains of {CHAIN} probit draws; "
        text += "processor time.\n\n"
        record("VBSS against Gibbs sampling", text + table(head, rows))


def _chain(document: Document, prior: Prior, link: Link, sweeps: int, seed: int) -> GibbsFit:
    Q = document.graph.normalised()
    theta0, rng = prior.theta0(Q, document.known), np.random.default_rng(seed)
    chain = {"link": link, "sweeps": sweeps, "burn_in": sweeps // 4, "rng": rng}
    return sample(DenseSpectrum(Q), theta0, document.known, prior, **chain)  # type: ignore[arg-type]


def _time_to(
    error: float, document: Document, prior: Prior, link: Link, limit: np.ndarray
) -> tuple[int, float]:
    """Number of sweeps and seconds until the mean error of a chain against `limit` is at most `error`."""
    new = ~document.known
    for sweeps in (25, 50, 100, 200, 400, 800, 1600, 3200):
        began = process_time()
        found = [_chain(document, prior, link, sweeps, seed).proba for seed in (4, 5)]
        taken = (process_time() - began) / 2
        if np.mean([np.abs(p - limit)[new].mean() for p in found]) <= error:
            break
    return sweeps, taken


def collection(every: int) -> None:
    """Time on synthetic collections of 200-word reports, one of them with more than 10^5 distinct words."""
    rows = []
    for reports, vocabulary in (*((n, 20_000) for n in (1250, 2500, 5000, 10_000)), (10_000, 200_000)):
        texts, names = synthetic(reports, vocabulary)
        began, worked = perf_counter(), process_time()
        extractor = KeywordExtractor(language=None).fit(texts, known=names[20:30])
        taken, worked = perf_counter() - began, process_time() - worked
        fit = extractor.fit_
        assert isinstance(fit, VbssFit)
        sizes = reports, vocabulary, len(extractor.stems_), extractor.graph_.adjacency.nnz // 2
        times = f"{taken:.1f}", f"{worked:.1f}", f"{1000 * worked / reports:.2f}"
        rows.append([*sizes, *times, fit.sweeps, fit.converged])
    head = [
        "reports",
        "vocabulary",
        "words",
        "edges",
        "seconds",
        "processor seconds",
        "processor ms a report",
    ]
    head += ["sweeps", "converged"]
    text = "Words by Zipf's law, ten known; one thread; texts to table.\n\n" + table(head, rows)
    record("Keywords of a collection", text)


def synthetic(reports: int, vocabulary: int) -> tuple[list[str], list[str]]:
    """Reports of 200 words drawn by Zipf's law, and the vocabulary by decreasing frequency."""
    rng = np.random.default_rng(SEED)
    share = np.cumsum(1 / np.arange(1, vocabulary + 1))
    drawn = np.searchsorted(share / share[-1], rng.random((reports, 200)))
    names = np.array([f"w{place:x}z" for place in range(vocabulary)])
    return [" ".join(line) for line in names[drawn]], names.tolist()
