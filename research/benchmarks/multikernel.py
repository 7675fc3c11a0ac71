"""Pseudo-marginal multi-class multiple-kernel GPs: Table I of the paper, calibration.

    python -m research.benchmarks.multikernel --parts table calibration --chains 10 --steps 10000

`table` is the synthetic experiment of O'Harney et al. (2014), section IV-A: 150 instances, three classes, an
RBF and a linear kernel, Gamma(1, 1). The paper gives no inputs and no length scale: here x is uniform in
[-3, 3], the RBF kernel has length 0.3, instances are drawn until each class has 50.
`calibration` is simulation-based calibration (Talts et al. 2018): ranks of the true θ among posterior draws.
`quantiles` is the bias of posterior quantiles of log θ: the share of a chain's draws below the exact
quantile, less its level. Exact quantiles are those of draws of the prior, weighted by estimates of p(y | θ).
"""

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, process_time

import matplotlib
import numpy as np
import torch
from scipy.stats import chisquare
from torch import Tensor

from ich_mil.convergence import bulk_ess, r_hat
from ich_mil.multikernel.chains import Chains, Proposal, SamplerSettings
from ich_mil.multikernel.laplace import covariance
from ich_mil.multikernel.marginal import Marginal
from research.benchmarks.record import command_line, record, table

THETA = ((2.0, 0.0), (2.0, 0.0), (0.0, 2.0))
"""True weights of the RBF and the linear kernel in each class (section IV-A)."""
CANDIDATES, WIDTH, LENGTH, JITTER = 1000, 3.0, 0.3, 1e-6
ADAPTIVE = 2000
"""Steps of the paper's adaptive phase."""
FIGURE = Path(__file__).parents[2] / "docs" / "multikernel.png"
SETS, SMALL, RANKS = 100, 20, 99
"""Data sets of the calibration, instances of each, and posterior draws a rank is counted among."""
LEVELS = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64)
PRIOR_DRAWS, BATCH = 40_000, 50
"""Draws of θ behind exact quantiles, and how many are evaluated together."""


def kernels(x: Tensor) -> Tensor:
    """RBF and linear kernel of x (n,): (2, n, n)."""
    S = torch.stack([torch.exp(-((x[:, None] - x) ** 2) / (2 * LENGTH**2)), x[:, None] * x])
    return S + JITTER * torch.eye(len(x), dtype=x.dtype)


def draw_labels(theta: Tensor, S: Tensor, generator: torch.Generator) -> Tensor:
    """Classes (n,) drawn from the model with weights (C, d)."""
    K = covariance(theta[None], S)[0] + JITTER * torch.eye(S.shape[1], dtype=S.dtype)
    noise = torch.randn(*K.shape[:2], 1, generator=generator, dtype=S.dtype)
    f = (torch.linalg.cholesky(K) @ noise)[..., 0]
    return torch.multinomial(f.softmax(0).T, 1, generator=generator)[:, 0]


def one_hot(y: Tensor, classes: int = 3) -> Tensor:
    """(C, n)."""
    return torch.nn.functional.one_hot(y, classes).T.to(torch.float64)


def synthetic(instances: int = 150, seed: int = 0) -> tuple[Tensor, Tensor]:
    """S (2, n, n) and one-hot labels (3, n), classes of equal size."""
    generator = torch.Generator().manual_seed(seed)
    x = (torch.rand(CANDIDATES, generator=generator, dtype=torch.float64) * 2 - 1) * WIDTH
    y = draw_labels(torch.tensor(THETA, dtype=torch.float64), kernels(x), generator)
    kept = torch.cat([(y == c).nonzero()[: instances // 3, 0] for c in range(3)])
    return kernels(x[kept]), one_hot(y[kept])


def sampled(settings: SamplerSettings, instances: int) -> tuple[Chains, float, float]:
    """Chains that have run, seconds by the clock, and processor seconds after the burn-in."""
    started = perf_counter()
    chains = Chains(*synthetic(instances), settings)
    chains.run(steps=settings.burn_in)
    work = process_time()
    chains.run()
    return chains, perf_counter() - started, process_time() - work


def row(chains: Chains, clock: float, work: float) -> list[object]:
    """One line of Table I."""
    draws = chains.log_theta.flatten(2)  # (R, T, p)
    alone = torch.stack([bulk_ess(one[None]) for one in draws])  # (R, p)
    mean, std = alone.mean(0), alone.std(0)
    low, high = int(mean.argmin()), int(mean.argmax())
    hats = [f"{float(r_hat(draws[:, :t]).max()):.3f}" for t in (1000, 2000, 10_000) if t <= draws.shape[1]]
    rates = chains.acceptance
    pooled = bulk_ess(draws)
    return [
        chains.settings.proposal,
        chains.settings.importance,
        draws.shape[1],
        f"{mean[low]:.0f} ({std[low]:.0f})",
        f"{mean[high]:.0f} ({std[high]:.0f})",
        f"{pooled.min():.0f}",
        " / ".join(hats) or f"{float(r_hat(draws).max()):.3f} at {draws.shape[1]}",
        " / ".join(f"{100 * rate:.1f}" for rate in rates.values()),
        f"{float(pooled.min()) / work:.2f}",
        f"{clock:.0f} s",
        f"{work:.0f} s",
    ]


HEAD = [
    "proposal", "N_imp", "steps", "ESS of a chain, min (σ)", "max (σ)", "ESS of all chains, min",
    "R-hat at 1,000 / 2,000 / 10,000", "% accepted (walk / emulator)", "min ESS per processor second",
    "clock, burn-in included", "processor, after burn-in",
]  # fmt: skip


def weights(chains: Chains) -> str:
    """Posterior of each θ_ch beside its true value."""
    theta = chains.log_theta.exp().flatten(0, 1)  # (R·T, C, d)
    rows = []
    for c, true in enumerate(THETA):
        for h, name in enumerate(("RBF", "linear")):
            low, middle, high = np.quantile(theta[:, c, h].numpy(), (0.025, 0.5, 0.975))
            mean = float(theta[:, c, h].mean())
            rows.append([c + 1, name, true[h], f"{mean:.2f}", f"{middle:.2f}", f"{low:.2f} to {high:.2f}"])
    ahead = ", ".join(f"{float((theta[:, c, 0] > theta[:, c, 1]).double().mean()):.2f}" for c in range(3))
    told = table(["class", "kernel", "true θ", "mean", "median", "95 %"], rows)
    return f"{told}\n\nP(θ of RBF > θ of linear) in classes 1, 2, 3: {ahead}."


def draw_figure(chains: Chains) -> None:
    """Posterior of θ by class and kernel, as the left of the paper's Figure 2."""
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    theta = chains.log_theta.exp().flatten(0, 1).numpy()
    figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
    columns = [theta[:, c, h] for c in range(3) for h in range(2)]
    axes.boxplot(columns, whis=(2.5, 97.5), showfliers=False, widths=0.5)
    axes.plot(range(1, 7), np.ravel(THETA), "x", color="tab:red", label="true")
    axes.set_xticks(range(1, 7), [f"class {c}\n{name}" for c in (1, 2, 3) for name in ("RBF", "linear")])
    axes.set_ylabel("θ (box: quartiles, line: 95 %)")
    axes.legend()
    figure.savefig(FIGURE, dpi=110)


def calibration(proposal: Proposal, sets: int) -> list[object]:
    """Ranks of the true θ: χ² against uniform ones in ten bins, for each parameter and for all."""
    generator = torch.Generator().manual_seed(1)
    x = (torch.rand(SMALL, generator=generator, dtype=torch.float64) * 2 - 1) * WIDTH
    S = kernels(x)
    true = torch._standard_gamma(torch.ones(sets, 3, 2, dtype=torch.float64), generator=generator)
    labels = torch.stack([one_hot(draw_labels(theta, S, generator)) for theta in true])
    started = perf_counter()
    sampled_ess = []
    if proposal == "random_walk":  # every data set is a chain
        settings = SamplerSettings(proposal=proposal, chains=sets, burn_in=1000, draws=40 * RANKS)
        chains = Chains(S, labels, settings)
        chains.run()
        draws = chains.log_theta[:, 39::40]  # (sets, RANKS, C, d)
        sampled_ess = [float(bulk_ess(one[None].flatten(2)).min()) for one in chains.log_theta]
    else:
        kept = []
        for k in range(sets):
            chains = Chains(S, labels[k], SamplerSettings(chains=4, burn_in=500, draws=400, random_state=k))
            chains.run()
            kept.append(chains.log_theta[:, 15::16].flatten(0, 1)[:RANKS])
            sampled_ess.append(float(bulk_ess(chains.log_theta.flatten(2)).min()))
        draws = torch.stack(kept)
    ranks = (draws < true.log()[:, None]).sum(1).flatten(1).numpy()  # (sets, p) in 0..RANKS
    bins = ranks * 10 // (RANKS + 1)
    each = [chisquare(np.bincount(bins[:, k], minlength=10)).pvalue for k in range(bins.shape[1])]
    every = np.bincount(bins.ravel(), minlength=10)
    return [
        proposal,
        " ".join(map(str, every)),
        f"{chisquare(every).pvalue:.3f}",
        " ".join(f"{p:.2f}" for p in each),
        f"{np.median(sampled_ess):.0f} ({min(sampled_ess):.0f})",
        f"{perf_counter() - started:.0f} s",
    ]


def exact_quantiles(S: Tensor, hot: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, float]:
    """Posterior quantiles of log θ at `LEVELS` (Q, p), without a Markov chain.

    Returns:
        The quantiles, the influence of each draw on the probabilities below them (draws, Q, p), and the
        effective number of draws.
    """
    theta = torch._standard_gamma(
        torch.ones(PRIOR_DRAWS, len(hot), 2, dtype=torch.float64), generator=generator
    )
    labels = hot.expand(BATCH, *hot.shape).contiguous()
    marginal = Marginal(S, labels, method="pseudo_marginal", importance=40)
    start = torch.zeros_like(labels)
    level = torch.cat([marginal.evaluate(part, generator, start).level for part in theta.split(BATCH)])
    weights, x = level.softmax(0), theta.log().flatten(1)
    ordered, order = x.sort(0)
    below = weights[order].cumsum(0)  # (draws, p)
    quantiles = ordered.gather(0, (below < LEVELS[:, None, None]).sum(1))  # (Q, p)
    influence = weights[:, None, None] * ((x[:, None] < quantiles).double() - LEVELS[:, None])
    return quantiles, influence, float(1 / weights.square().sum())


def quantile_bias(chains: Chains, quantiles: Tensor, influence: Tensor) -> list[object]:
    """Mean bias over θ at each level, and the largest over levels and θ, with 95 % intervals."""
    x = chains.log_theta.flatten(2)  # (R, T, p)
    below = (x[:, :, None] < quantiles).double().mean(1)  # (R, Q, p)

    def interval(
        part: Tensor, own: Tensor
    ) -> Tensor:  # standard error from the spread of chains and of draws
        return 1.96 * (part.var(0) / len(part) + own.square().sum(0)).sqrt()

    bias, wide = below.mean(0) - LEVELS[:, None], interval(below, influence)
    means = zip(bias.mean(1), interval(below.mean(2), influence.mean(2)), strict=True)
    largest = int(bias.abs().argmax())
    outside = int((bias.abs() > wide).sum())
    return [
        *(f"{mean:+.4f} ± {half:.4f}" for mean, half in means),
        f"{bias.flatten()[largest]:+.4f} ± {wide.flatten()[largest]:.4f}",
        f"{outside} of {bias.numel()}",
        f"{bulk_ess(x).min():.0f}",
    ]


def quantiles(sets: int, instances: int, proposals: Sequence[str]) -> list[list[object]]:
    """Bias of both chains on `sets` sets drawn from the prior, of the emulator's on the synthetic set."""
    generator = torch.Generator().manual_seed(2)
    x = (torch.rand(SMALL, generator=generator, dtype=torch.float64) * 2 - 1) * WIDTH
    S = kernels(x)
    true = torch._standard_gamma(torch.ones(sets, 3, 2, dtype=torch.float64), generator=generator)
    problems = [
        (f"{SMALL}, set {k}", S, one_hot(draw_labels(one, S, generator))) for k, one in enumerate(true)
    ]
    settings_of = {
        "surrogate": SamplerSettings(chains=40, burn_in=800, draws=1000),
        "random_walk": SamplerSettings(chains=100, burn_in=800, draws=1500, proposal="random_walk"),
    }
    rows = []
    for name, sources, hot in [*problems, (f"{instances}, synthetic", *synthetic(instances))]:
        started = perf_counter()
        wanted, influence, size = exact_quantiles(sources, hot, generator)
        print(
            name, f"exact quantiles: {size:.0f} effective draws, {perf_counter() - started:.0f} s", flush=True
        )
        for settings in [settings_of[p] for p in proposals if p == "surrogate" or len(hot.T) == SMALL]:
            started = perf_counter()
            chains = Chains(sources, hot, settings)
            chains.run()
            row = [name, f"{size:.0f}", settings.proposal, *quantile_bias(chains, wanted, influence)]
            rows.append([*row, f"{perf_counter() - started:.0f} s"])
            print(*rows[-1], chains.acceptance, sep=" | ", flush=True)
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parts = ["table", "calibration", "quantiles"]
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--chains", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10_000, help="kept steps of a chain")
    parser.add_argument("--burn-in", type=int, default=ADAPTIVE)
    parser.add_argument("--instances", type=int, default=150)
    parser.add_argument("--importance", nargs="+", type=int, default=[40, 10, 100, 450])
    parser.add_argument("--proposals", nargs="+", default=["surrogate", "random_walk"])
    parser.add_argument("--sets", type=int, default=SETS)
    chosen = parser.parse_args()
    sizes = {"chains": chosen.chains, "burn_in": chosen.burn_in}
    if "table" in chosen.parts:
        for proposal in chosen.proposals:
            for importance in chosen.importance:
                settings = SamplerSettings(
                    proposal=proposal, importance=importance, draws=chosen.steps, **sizes
                )
                chains, clock, work = sampled(settings, chosen.instances)
                text = f"{table(HEAD, [row(chains, clock, work)])}\n\n{weights(chains)}"
                record(f"Table I: {proposal}, N_imp = {importance}", text)
                if proposal == "surrogate" and importance == chosen.importance[0]:
                    draw_figure(chains)
    if "calibration" in chosen.parts:
        rows = [calibration(proposal, chosen.sets) for proposal in chosen.proposals]
        head = ["proposal", "ranks in ten bins, all θ", "p of uniform", "p for each θ"]
        head += ["min ESS of a set, median (worst)", "clock"]
        about = f"{chosen.sets} data sets of {SMALL} instances, three classes, two kernels."
        record("Simulation-based calibration", f"{about}\n\n{table(head, rows)}")
    if "quantiles" in chosen.parts:
        head = ["n", "ESS of the exact quantiles", "proposal", *(f"bias at {100 * q:g} %" for q in LEVELS)]
        head += ["largest of all", "intervals without 0", "min ESS", "clock"]
        record("Bias of quantiles", table(head, quantiles(chosen.sets, chosen.instances, chosen.proposals)))


if __name__ == "__main__":
    main()
