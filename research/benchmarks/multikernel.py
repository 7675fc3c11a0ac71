"""Pseudo-marginal multi-class multiple-kernel GPs: Table I of the paper.

    python -m research.benchmarks.multikernel --chains 10 --steps 10000

It is the synthetic experiment of O'Harney et al. (2014), section IV-A: 150 instances, three classes, an
RBF and a linear kernel, Gamma(1, 1). The paper gives no inputs and no length scale: here x is uniform in
[-3, 3], the RBF kernel has length 0.3, instances are drawn until each class has 50.
"""

from pathlib import Path
from time import perf_counter, process_time

import matplotlib
import numpy as np
import torch
from torch import Tensor

from ich_mil.convergence import bulk_ess, r_hat
from ich_mil.multikernel.chains import Chains, SamplerSettings
from ich_mil.multikernel.laplace import covariance
from research.benchmarks.record import command_line, record, table

THETA = ((2.0, 0.0), (2.0, 0.0), (0.0, 2.0))
"""True weights of the RBF and the linear kernel in each class (section IV-A)."""
CANDIDATES, WIDTH, LENGTH, JITTER = 1000, 3.0, 0.3, 1e-6
ADAPTIVE = 2000
"""Steps of the paper's adaptive phase."""
FIGURE = Path(__file__).parents[2] / "docs" / "multikernel.png"


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


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--chains", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10_000, help="kept steps of a chain")
    parser.add_argument("--burn-in", type=int, default=ADAPTIVE)
    parser.add_argument("--instances", type=int, default=150)
    parser.add_argument("--importance", nargs="+", type=int, default=[40, 10, 100, 450])
    parser.add_argument("--proposals", nargs="+", default=["surrogate", "random_walk"])
    chosen = parser.parse_args()
    sizes = {"chains": chosen.chains, "burn_in": chosen.burn_in}
    for proposal in chosen.proposals:
        for importance in chosen.importance:
            settings = SamplerSettings(proposal=proposal, importance=importance, draws=chosen.steps, **sizes)
            chains, clock, work = sampled(settings, chosen.instances)
            text = f"{table(HEAD, [row(chains, clock, work)])}\n\n{weights(chains)}"
            record(f"Table I: {proposal}, N_imp = {importance}", text)
            if proposal == "surrogate" and importance == chosen.importance[0]:
                draw_figure(chains)


if __name__ == "__main__":
    main()
