"""Encoder and sparse Gaussian process trained together on the evidence lower bound of ψ-VGPMIL.

    loss = -(B / B_batch · E_batch - KL(q(w) ‖ N(0, I))) / N + 0.1 · (1 - correlation of distances)

E_batch is the bound of the bags of a step with π and θ(c) at their optimum (`PsiObservation.bound`). q(w) is
not learned by gradients: each step moves its natural parameters towards their closed form (Castro-Macías et
al. 2024, Eq. 24 and 28), by a share ρ, as in stochastic variational inference. The gradient of the features
is that of the bound, since the local parameters are at their optimum.

Features collapse where a flexible encoder maps all slices of a label to a point, and the Gaussian process
then knows no distance. Spectral normalisation and the penalty on distances (in a batch, between inputs and
features) hold them apart; `effective_rank` watches.

Shapes: B bags, N instances, K inputs, D features, M inducing points.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import gpytorch
import lightning.pytorch as pl
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.variational import NaturalVariationalDistribution, VariationalStrategy
from torch import Tensor

from ich_mil.gp.inference.inducing import choose_inducing
from ich_mil.gp.observations.densities import Density, Logistic
from ich_mil.gp.observations.vgpmil import PsiObservation
from ich_mil.gp.settings import VARIANTS
from ich_mil.kernels.leave_one_out import Turns
from research.benchmarks.through_gp.encoders import Encoder, parameter_groups

INDUCING = 50
RATE, WEIGHT_DECAY = 3e-3, 1e-3
STEP = 0.3
"""Share ρ by which a step moves q(w) to its closed form."""
HOLD = 0.1
"""Weight of the penalty on distances."""
SWEEPS = 30
"""Sweeps over all bags before and after the training."""


class Bags(NamedTuple):
    """Packed bags: inputs (N, K), offsets (B + 1,), labels (B,) in {0, 1}, numbers (B,) in their set."""

    x: Tensor
    offsets: Tensor
    labels: Tensor
    rows: Tensor


def pack(x: Tensor, offsets: Tensor, labels: Tensor, bags: Sequence[int]) -> Bags:
    """The chosen bags. `ValueError` for an empty bag or no bag."""
    parts = [x[offsets[b] : offsets[b + 1]] for b in bags]
    if not parts or not all(map(len, parts)):
        raise ValueError("a bag without instances, or no bag at all, cannot be learned from")
    ends = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0)
    return Bags(torch.cat(parts), ends, labels[list(bags)], torch.tensor(list(bags)))


class PsiGp(gpytorch.models.ApproximateGP):
    """Whitened sparse Gaussian process over features, q(w) by its natural parameters."""

    def __init__(self, inducing: Tensor) -> None:
        """Start with q(w) = N(0, I) at the inducing points (M, D)."""
        q = NaturalVariationalDistribution(len(inducing))
        super().__init__(VariationalStrategy(self, inducing, q, learn_inducing_locations=True))
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
        self.covar_module.base_kernel.lengthscale = math.sqrt(inducing.shape[1])
        self.double()
        self.natural.requires_grad_(False)

    @property
    def natural(self) -> NaturalVariationalDistribution:
        """q(w)."""
        q: NaturalVariationalDistribution = self.variational_strategy._variational_distribution
        return q

    def forward(self, x: Tensor) -> MultivariateNormal:
        """Prior of f at features (n, D)."""
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def marginals(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance (N,) of f under q(w)."""
        q = self(features)
        return q.mean, q.variance.clamp(min=1e-10)

    def projection(self, features: Tensor) -> Tensor:
        """Φ = L⁻¹ K_ZX (M, N)."""
        Z = self.variational_strategy.inducing_points
        jitter = self.variational_strategy.jitter_val * torch.eye(len(Z), dtype=Z.dtype)
        L = torch.linalg.cholesky(self.covar_module(Z).to_dense() + jitter)
        return torch.linalg.solve_triangular(L, self.covar_module(Z, features).to_dense(), upper=False)

    @torch.no_grad()
    def step(self, phi: Tensor, theta: Tensor, target: Tensor, *, scale: float, share: float) -> None:
        """Move q(w) by `share` to S⁻¹ = I + scale Φ Θ Φᵀ, S⁻¹ m = scale Φ (π - ½)."""
        q = self.natural
        precision = torch.eye(len(phi), dtype=phi.dtype) + scale * (phi * theta) @ phi.T
        q.natural_mat.lerp_(-precision / 2, share)
        q.natural_vec.lerp_(scale * phi @ target, share)
        self.variational_strategy._clear_cache()  # in evaluation mode it keeps the first q(w)


def effective_rank(features: Tensor) -> float:
    """Exponential of the entropy of the normalised singular values of centred features: 1 after collapse."""
    s = torch.linalg.svdvals(features - features.mean(0))
    p = s / s.sum().clamp(min=1e-12)
    return float(torch.exp(-(p * p.clamp(min=1e-12).log()).sum()))


def distance_loss(x: Tensor, features: Tensor) -> Tensor:
    """One minus the correlation of the distances between inputs and between features."""
    a, b = (torch.pdist(part) for part in (x[:256], features[:256]))
    return 1 - torch.corrcoef(torch.stack([a, b]))[0, 1] if len(a) > 2 else features.sum() * 0


class ThroughGp(pl.LightningModule):
    """Encoder and Gaussian process, trained together on packed bags.

    Attributes:
        density: ψ.
        hold: whether the distances of features are held.
        ranks: effective rank of the features of the last batch of each epoch.
    """

    def __init__(
        self, encoder: Encoder, every: Bags, *, density: Density | None = None, hold: bool = True, seed: int
    ) -> None:
        """Choose inducing points by k-means on the features of all training bags, and fit q(w) to them."""
        super().__init__()
        self.encoder, self.density, self.hold = encoder, density or Logistic(), hold
        self.ranks: list[float] = []
        self.every, self.pi = every, [torch.tensor([])] * (int(every.rows.max()) + 1)
        with torch.no_grad():
            features = encoder.eval()(every.x).double()
        zero, unit = torch.zeros_like(features[0]), torch.ones_like(features[0])
        self.gp = PsiGp(
            choose_inducing(
                features, every.offsets, every.labels, mean=zero, std=unit, n_inducing=INDUCING, seed=seed
            )
        )
        spread = torch.pdist(features[:: max(1, len(features) // 500)]).median().clamp(min=1e-3)
        self.gp.covar_module.base_kernel.lengthscale = spread
        self.settle()

    @torch.no_grad()
    def settle(self) -> None:
        """Sweeps of coordinate ascent over all bags, with the features as they are."""
        self.eval()
        self.pi = [torch.tensor([])] * len(self.pi)
        features = self.encoder(self.every.x).double()
        for _ in range(SWEEPS):
            self._local(features, self.every, share=1.0, scale=1.0)

    def _local(
        self, features: Tensor, bags: Bags, *, share: float, scale: float
    ) -> tuple[PsiObservation, Turns]:
        """Update π and q(w) for the features; returns the observation model at its optimum."""
        turns = Turns(bags.offsets)
        sizes = bags.offsets.diff().tolist()
        known = [self.pi[row] for row in bags.rows.tolist()]
        seen = all(len(part) == n for part, n in zip(known, sizes, strict=True))
        start = torch.cat(known)[turns.order] if seen else None
        log_h = torch.tensor([math.log(100.0)], dtype=torch.float64)
        labels = bags.labels[turns.bag_order]
        made = PsiObservation([self.density], log_h, labels, turns, VARIANTS["default"], start=start)
        with torch.no_grad():
            detached = features.detach()
            mu, variance = (part[turns.order][None] for part in self.gp.marginals(detached))
            phi = self.gp.projection(detached)[:, turns.order]
            # q(w) first: at μ = 0 the leave-one-out product over 30 slices takes the label out of π
            self.gp.step(phi, made.precision(mu, variance)[0], made.target()[0], scale=scale, share=share)
            made.update(*(part[turns.order][None] for part in self.gp.marginals(detached)))
            pi = turns.restore(made.logits.sigmoid())[0].clamp(1e-9, 1 - 1e-9)
        for row, part in zip(bags.rows.tolist(), pi.split(sizes), strict=True):
            self.pi[row] = part
        return made, turns

    def training_step(self, bags: Bags, _: int) -> Tensor:
        """Loss of a batch of bags."""
        features = self.encoder(bags.x).double()
        scale = len(self.every.labels) / len(bags.labels)
        made, turns = self._local(features, bags, share=STEP, scale=scale)
        mu, variance = (part[turns.order][None] for part in self.gp.marginals(features))
        kl = self.gp.variational_strategy.kl_divergence()
        loss = -(scale * made.bound(mu, variance)[0] - kl) / len(self.every.x)
        self.ranks.append(effective_rank(features.detach()))
        return loss + HOLD * distance_loss(bags.x, features) if self.hold else loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam for encoder, inducing points and kernel."""
        return torch.optim.AdamW(parameter_groups(self), lr=RATE, weight_decay=WEIGHT_DECAY)

    @torch.no_grad()
    def samples(self, bags: Bags, *, draws: int = 500, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Samples of slice probabilities (L, N), drawn jointly in each bag, and of their maxima (L, B)."""
        self.eval()
        features = self.encoder(bags.x).double()
        generator = torch.Generator().manual_seed(seed)
        parts = []
        for part in features.split(bags.offsets.diff().tolist()):
            q = self.gp(part)
            nugget = 1e-6 * torch.eye(len(part), dtype=torch.float64)
            root = torch.linalg.cholesky(q.covariance_matrix + nugget)
            noise = torch.randn(draws, len(part), generator=generator, dtype=torch.float64)
            parts.append(torch.sigmoid(q.mean + noise @ root.T))
        return torch.cat(parts, 1), torch.stack([part.amax(1) for part in parts], 1)

    def scan_probability(self, bags: Bags) -> Tensor:
        """Mean (B,) of the samples of a bag."""
        return self.samples(bags, draws=100)[1].mean(0)
