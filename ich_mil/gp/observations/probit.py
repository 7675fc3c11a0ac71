"""Observation model of MIL-GP-Probit by variational inference: one margin per slice, for R replicates.

In: μ and σ² of the latent values. Out: precisions 1 and targets E[m], and the ELBO (Wang & Pinar 2021,
supplement section 1). Each slice has a margin m_i ~ N(f_i, 1). A scan is positive if and only if at least one
of its margins is ≥ 0; a slice is positive with probability Φ(f). The optimal Q(m) given Q(f) is N(μ, I)
truncated to the margins that the scan labels allow. With Z the normalising constant of a scan, its mean is
μ + ∇ log Z:

    P₀ = Π_{j∈b} Φ(-μ_j)            h(μ) = φ(μ) / Φ(-μ)
    negative scan    Z = P₀         E[m_i] = μ_i - h(μ_i)
    positive scan    Z = 1 - P₀     E[m_i] = μ_i + h(μ_i) · P₀ / (1 - P₀)

because ∂P₀/∂μ_i = -φ(μ_i) Π_{j≠i} Φ(-μ_j) = -h(μ_i) P₀. Here φ and Φ are the standard normal density and CDF.
All arrays over slices are in the order of `Turns`.

Shapes: R replicates, B bags (scans), N instances (slices).
"""

import math

import torch
from torch import Tensor
from torch.special import erfcx, log_ndtr

from ich_mil.kernels.leave_one_out import Turns
from ich_mil.kernels.segments import bag_max, bag_sum

_LOG_ROOT_2PI = math.log(2 * math.pi) / 2

_TINY = 1e-290
"""Below this -log P₀, 1 - P₀ equals Σ Φ(μ_j) to all digits, and log P₀ itself may underflow."""


def log_hazard(mu: Tensor) -> Tensor:
    """Log hazard log h(μ) = log(φ(μ) / Φ(-μ)) of the standard normal, elementwise, exact in both tails."""
    # Φ(-μ) = φ(μ) erfcx(μ/√2) √(π/2) avoids the cancellation of two exponentials for μ > 0.
    above = math.log(2 / math.pi) / 2 - erfcx(mu.clamp(min=0.0) / math.sqrt(2)).log()
    return torch.where(mu > 0, above, -mu.square() / 2 - _LOG_ROOT_2PI - log_ndtr(-mu))


def log_none_and_some(mu: Tensor, bags: Tensor, n_bags: int) -> tuple[Tensor, Tensor]:
    """Log P₀ and log(1 - P₀) of each scan, both exact for P₀ near 0 and near 1.

    Args:
        mu: (..., N).
        bags: (N,) the bag of each instance.
        n_bags: B.

    Returns:
        (..., B) and (..., B).
    """
    none = bag_sum(log_ndtr(-mu), bags, n_bags)
    some = torch.where(none > -math.log(2), torch.log(-torch.expm1(none)), torch.log1p(-none.exp()))
    log_p = log_ndtr(mu)
    peak = bag_max(log_p, bags, n_bags)
    total = bag_sum(torch.exp(log_p - peak[..., bags]), bags, n_bags)
    return none, torch.where(none > -_TINY, peak + total.log(), some)


def log_evidence(mu: Tensor, labels: Tensor, bags: Tensor) -> Tensor:
    """Log-probability Σ_b log Z_b (...,) of the scan labels (B,) given latent values mu (..., N)."""
    none, some = log_none_and_some(mu, bags, len(labels))
    return torch.where(labels == 1, some, none).sum(-1)


def margin_mean(mu: Tensor, labels: Tensor, bags: Tensor) -> Tensor:
    """E[m] under the optimal Q(m).

    Args:
        mu: (..., N) mean of q(f).
        labels: (B,) in {0, 1}.
        bags: (N,) the bag of each instance.

    Returns:
        (..., N).
    """
    none, some = log_none_and_some(mu, bags, len(labels))
    log_odds = torch.where(labels == 1, none - some, 0.0)  # (..., B)
    sign = torch.where(labels == 1, 1.0, -1.0).to(mu)
    return mu + sign[bags] * torch.exp(log_hazard(mu) + log_odds[..., bags])


class ProbitObservation:
    """Margins of MIL-GP-Probit, initialised at the optimal Q(m) for μ = 0, the prior mean."""

    def __init__(self, replicates: int, labels: Tensor, turns: Turns) -> None:
        """Initialise the margins.

        Args:
            replicates: R.
            labels: (B,) in {0, 1}, in the order of `turns.bag_order`.
            turns: order of the slices.
        """
        self._labels, self._bags = labels, turns.bags
        zero = torch.zeros(replicates, len(turns.bags), dtype=torch.float64, device=labels.device)
        self._mean = margin_mean(zero, labels, turns.bags)

    @property
    def bounded(self) -> list[bool]:
        """True for all: log Z ≤ 0 and the ELBO never decreases, which bounds KL(q(w) ‖ p(w)) and so |μ|."""
        return [True] * len(self._mean)

    def precision(self, mu: Tensor, variance: Tensor) -> Tensor:
        """Θ = 1 (R, N), the precision of a margin."""
        return torch.ones_like(mu)

    def target(self) -> Tensor:
        """Targets E[m] (R, N)."""
        return self._mean

    def update(self, mu: Tensor, variance: Tensor) -> None:
        """Set Q(m) to its optimum for the new μ."""
        self._mean = margin_mean(mu, self._labels, self._bags)

    def bound(self, mu: Tensor, variance: Tensor) -> Tensor:
        """ELBO (R,) with Q(m) at its optimum, without its term KL(q(w) ‖ p(w)).

            E log N(m; f, I) - E log Q(m) = Σ_b log Z_b - ½ Σ_n σ²_n

        because E log N(m; f, I) = E log N(m; μ, I) - ½ Σ σ², and Q(m) = N(m; μ, I) / Z on its support. σ²
        includes the residual variance of the sparse approximation. The ELBO is exact: no term is left out.
        """
        return log_evidence(mu, self._labels, self._bags) - variance.sum(1) / 2

    def keep(self, alive: Tensor) -> None:
        """Drop all replicates except those at the indices `alive`."""
        self._mean = self._mean[alive]
