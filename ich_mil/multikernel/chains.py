"""Metropolis-Hastings on log θ, chains side by side, with a likelihood that may be an estimate.

In: sources S (d, n, n), labels, settings. Out: draws of log θ and of f from p(θ, f | y), as a state that can
be written to disk and continued to the bit.

    accept x' with probability min(1, p̃(y | θ') p(x') / (p̃(y | θ) p(x)))       x = log θ
    log p(x) = shape · x - rate · exp(x)      Gamma(shape, rate) of θ, times the Jacobian θ

p̃ of the current state is the one it was accepted with (Andrieu & Roberts 2009). Moves: a Gaussian random walk
whose scale is adapted to an acceptance of 25 % and whose covariance to the draws, both frozen after the
burn-in; or, after it, `INNER` random-walk steps on an emulator of the likelihood (`surrogate`), accepted
by p̃(x') s(x) / (p̃(x) s(x')), every `WALK_EVERY`-th move still a random walk.

Shapes: R chains, C classes, d sources, p = C·d, n scans, T steps, L kept draws of f of each chain.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch import Tensor

from ich_mil.multikernel.ancillary import Ancillary
from ich_mil.multikernel.marginal import Marginal, Method, Point
from ich_mil.multikernel.surrogate import Surrogate

Proposal = Literal["surrogate", "random_walk"]

TARGET = 0.25
"""Acceptance the random walk is adapted to; the paper wants 20-30 %."""
ADAPT_EVERY = 50
"""Steps between updates of the covariance."""
POINTS = 1000
"""Points the emulator is fitted to."""
INNER = 30
"""Steps on the emulator in one move."""
WALK_EVERY = 5
"""Every this many moves is a random walk, which reaches what the emulator does not know."""
LATENTS = 1000
"""Draws of f that are kept, over all chains."""


@dataclass(frozen=True)
class SamplerSettings:
    """Settings of the sampler of the posterior of θ.

    Attributes:
        method: pseudo_marginal, laplace or ancillary.
        proposal: surrogate, or random_walk as in the paper. `ancillary` always walks.
        chains: R, at least 2.
        burn_in: steps in which proposals are adapted, at least 100.
        draws: steps that are kept.
        importance: N_imp, draws behind an estimate.
        prior_shape: of the Gamma prior of each θ_ch.
        prior_rate: likewise.
        random_state: seed of everything random.
    """

    method: Method = "pseudo_marginal"
    proposal: Proposal = "surrogate"
    chains: int = 4
    burn_in: int = 1000
    draws: int = 1000
    importance: int = 40
    prior_shape: float = 1.0
    prior_rate: float = 1.0
    random_state: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (
            ("method", ("pseudo_marginal", "laplace", "ancillary")),
            ("proposal", ("surrogate", "random_walk")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        least = {"chains": 2, "burn_in": 100, "draws": 10, "importance": 1, "random_state": 0}
        for name, low in least.items():
            if not low <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be at least {low}, got {getattr(self, name)}")
        for name in ("prior_shape", "prior_rate"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}")

    @property
    def walks(self) -> bool:
        """No emulator is used."""
        return self.proposal == "random_walk" or self.method == "ancillary"


class Chains:
    """R chains, advanced together.

    Args:
        sources: S (d, n, n).
        labels: one-hot (C, n), or (R, C, n) for chains of different data.
        settings: `chains` is R.

    Attributes:
        state: tensors by name, all that is needed to go on. `draws` (R, T, p) holds log θ of each step,
            burn-in first; `f` (R, L, C, n) and `f_steps` (L,) the kept draws of f and their steps.
    """

    def __init__(self, sources: Tensor, labels: Tensor, settings: SamplerSettings) -> None:
        self.settings, self.sources = settings, sources
        labels = labels.expand(settings.chains, *labels.shape[-2:]).contiguous()
        self.R, self.C, self.n = labels.shape
        self.d = len(sources)
        self.p = self.C * self.d
        self.marginal = Marginal(sources, labels, method=settings.method, importance=settings.importance)
        self.ancillary = Ancillary(sources, labels)
        self.generator = torch.Generator(sources.device).manual_seed(settings.random_state)
        self.surrogate: Surrogate | None = None
        total = settings.burn_in + settings.draws
        kept = max(1, min(settings.draws, LATENTS // self.R))
        history = max(1, min(settings.burn_in // 2, POINTS // self.R))
        zeros = sources.new_zeros
        shape = torch.full((self.R, self.p), settings.prior_shape).to(sources)
        x = torch._standard_gamma(shape, generator=self.generator).clamp(min=1e-6).log() - float(
            torch.tensor(settings.prior_rate).log()
        )
        self.state: dict[str, Tensor] = {
            "step": torch.zeros(1, dtype=torch.int64),
            "x": x,
            "log_scale": zeros(self.R) + torch.tensor(2.38 / self.p**0.5).log().item(),
            "scale_sum": zeros(self.R),
            "covariance": torch.eye(self.p).to(sources),
            "accepted": zeros(2, self.R),  # after burn-in: by random walk, by surrogate
            "tried": zeros(2),
            "draws": zeros(self.R, total, self.p),
            "levels": zeros(self.R, total),
            "f": zeros(self.R, kept, self.C, self.n),
            "f_steps": torch.linspace(settings.burn_in, total - 1, kept).round().to(torch.int64),
            "history_x": zeros(history, self.R, self.p),
            "history_level": zeros(history, self.R) - torch.inf,
            "history_mode": zeros(history, self.R, self.C, self.n),
            "history_steps": torch.linspace(settings.burn_in // 2, settings.burn_in - 1, history)
            .round()
            .to(torch.int64),
        }
        if settings.method == "ancillary":
            self._set(self.ancillary.evaluate(self.theta(x), self.ancillary.normal(self.generator)))
        else:
            self._set(self.marginal.evaluate(self.theta(x), self.generator, zeros(self.R, self.C, self.n)))

    def theta(self, x: Tensor) -> Tensor:
        """θ (R, C, d) of log θ (R, p)."""
        return x.exp().reshape(len(x), self.C, self.d)

    def log_prior(self, x: Tensor) -> Tensor:
        """Log density (R,) of x = log θ (R, p), Jacobian included, up to a constant."""
        return (self.settings.prior_shape * x - self.settings.prior_rate * x.exp()).sum(-1)

    def _point(self) -> Point:
        return Point(self.state["level"], self.state["mode"], self.state["latent"])

    def _set(self, point: Point) -> None:
        self.state |= {"level": point.level, "mode": point.mode, "latent": point.f}

    def uniform(self) -> Tensor:
        """(R,) in [0, 1)."""
        return torch.rand(self.R, generator=self.generator, dtype=torch.float64, device=self.sources.device)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64, device=self.sources.device)

    def walk(self, x: Tensor, scale: Tensor) -> Tensor:
        """A Gaussian step from x (R, p)."""
        root = torch.linalg.cholesky(self.state["covariance"])
        return x + scale[:, None] * (self.normal(self.R, self.p) @ root.mT)

    def _inner(self, x: Tensor, surrogate: Surrogate) -> tuple[Tensor, Tensor]:
        """`INNER` Metropolis steps on the emulator, which leave exp(s(x)) p(x) as it is.

        Returns:
            The end x' (R, p), and s(x) - s(x') with the priors (R,).
        """
        scale = torch.full_like(x[:, 0], 2.38 / self.p**0.5)
        first = now = surrogate.level(x) + self.log_prior(x)
        for _ in range(INNER):
            new_x = self.walk(x, scale)
            new = surrogate.level(new_x) + self.log_prior(new_x)
            accept = self.uniform().log() < new - now
            x, now = torch.where(accept[:, None], new_x, x), torch.where(accept, new, now)
        return x, first - now

    def _move(self, step: int) -> None:
        """One Metropolis-Hastings move of each chain."""
        state, adapting = self.state, step < self.settings.burn_in
        x, far = state["x"], self.surrogate is not None and step % WALK_EVERY != 0
        if far and self.surrogate is not None:
            new_x, correction = self._inner(x, self.surrogate)
        else:
            new_x = self.walk(x, state["log_scale"].exp())
            correction = torch.zeros_like(x[:, 0])
        if self.settings.method == "ancillary":
            self._set(self.ancillary.redraw(self.theta(x), self._point(), self.generator))
            new = self.ancillary.evaluate(self.theta(new_x), state["mode"])
        elif self.surrogate is None:
            new = self.marginal.evaluate(self.theta(new_x), self.generator, state["mode"])
        else:
            start = self.surrogate.start(new_x)
            new = self.marginal.evaluate(
                self.theta(new_x), self.generator, start, curvature_at_mode=self.settings.method == "laplace"
            )
        ratio = new.level - state["level"] + self.log_prior(new_x) - self.log_prior(x) + correction
        accept = self.uniform().log() < ratio  # NaN: refused
        if adapting:
            slot = (state["history_steps"] == step).nonzero()
            if len(slot):
                k = int(slot[0])
                state["history_x"][k], state["history_level"][k] = new_x, new.level
                state["history_mode"][k] = new.mode
            chance = ratio.nan_to_num(nan=-torch.inf).clamp(max=0).exp()
            state["log_scale"] += (chance - TARGET) * (step + 1) ** -0.6
        else:
            state["accepted"][int(far)] += accept
            state["tried"][int(far)] += 1
        state["x"] = torch.where(accept[:, None], new_x, x)
        self._set(new.where(accept, self._point()))

    def _adapt(self, step: int) -> None:
        """Covariance of the walk from the later half of the draws so far; the scale's mean at the end."""
        state, settings = self.state, self.settings
        if (step + 1) % ADAPT_EVERY == 0:
            seen = state["draws"][:, (step + 1) // 2 : step + 1].flatten(0, 1)
            state["covariance"] = torch.cov(seen.mT).reshape(self.p, self.p) + 1e-4 * torch.eye(self.p).to(
                seen
            )
        if step >= settings.burn_in // 2:
            state["scale_sum"] += state["log_scale"]
        if step == settings.burn_in - 1:
            state["log_scale"] = state["scale_sum"] / (settings.burn_in - settings.burn_in // 2)

    def _emulate(self) -> None:
        """Fit the emulator to the points of the burn-in."""
        state = self.state
        if not self.settings.walks:
            self.surrogate = Surrogate.fit(
                state["history_x"].flatten(0, 1),
                state["history_level"].flatten(),
                state["history_mode"].flatten(0, 1),
            )

    @property
    def step(self) -> int:
        """Steps made, burn-in included."""
        return int(self.state["step"])

    @torch.no_grad()
    def run(self, *, steps: int | None = None, each: Callable[[int], None] | None = None) -> None:
        """Advance to the end, or by `steps`; `each` is called with the steps made so far."""
        burn_in, total = self.settings.burn_in, self.settings.burn_in + self.settings.draws
        end = total if steps is None else min(total, self.step + steps)
        for step in range(self.step, end):
            if step >= burn_in and self.surrogate is None:
                self._emulate()
            self._move(step)
            state = self.state
            state["draws"][:, step], state["levels"][:, step] = state["x"], state["level"]
            if step < burn_in:
                self._adapt(step)
            for k in (state["f_steps"] == step).nonzero()[:, 0].tolist():
                state["f"][:, k] = state["latent"]
            state["step"] += 1
            if each is not None:
                each(step + 1)

    def checkpoint(self) -> dict[str, Tensor]:
        """All that is needed to go on, as tensors."""
        return {**self.state, "generator": self.generator.get_state()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go on from what `checkpoint` gave for the same data and settings."""
        tensors = dict(tensors)
        self.generator.set_state(tensors.pop("generator"))
        where = {name: value.device for name, value in self.state.items()}
        self.state = {name: value.to(where[name]) for name, value in tensors.items()}

    @property
    def log_theta(self) -> Tensor:
        """The draws after burn-in (R, draws, C, d)."""
        return self.state["draws"][:, self.settings.burn_in : self.step].unflatten(-1, (self.C, self.d))

    @property
    def acceptance(self) -> dict[str, float]:
        """Share of moves accepted after burn-in, by kind of move."""
        rates = (self.state["accepted"].mean(1) / self.state["tried"]).tolist()
        names = ("random_walk", "surrogate")
        return {name: rate for name, rate in zip(names, rates, strict=True) if rate == rate}

    def described(self) -> dict[str, object]:
        """Settings, for a check that a checkpoint belongs to this run."""
        return asdict(self.settings)
