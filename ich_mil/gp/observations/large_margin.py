"""Observation model of LM-VGPMIL (large margin): slice labels and margin switches, for R replicates.

In: μ and σ² of the latent values. Out: precisions Θ and targets r of a sweep, and an objective that never
decreases. The model (Haußmann et al. 2017, supplement section 2) adds a binary latent variable g to each
slice: whether its latent value lies beyond a margin on the side of its label y,

    p(g | f, y) = sigmoid((2g - 1) C ((2y - 1) f - V))        p(y | f, g) = sigmoid((2y - 1) g f)

The scan labels depend on y as in VGPMIL. Within the margin (g = 0) the label does not depend on f. Both
sigmoids are replaced by Jaakkola's bound, at ξ for C((2y - 1) f - V) and at φ for g f. With q(y) = Ber(π),
q(g) = Ber(τ), t = π - ½, e = μ² + σ² and θ(c) = tanh(c/2)/(2c), which is 2λ(c) of the paper, each of these
updates maximises `bound`:

    ξ² = C²(e - 4 t μ V + V²)                  φ² = τ e
    Θ = C² θ(ξ) + τ θ(φ)                       r = t s,    s = 2C(τ - ½) + 2 C² V θ(ξ) + τ
    π_n = sigmoid(μ_n s_n + log H · (2T_b - 1) · Π_{j∈b, j≠n} (1 - π_j))
    τ = sigmoid(C(2 t μ - V) + t μ - ½ θ(φ) e)

These are the updates of the supplement, with three readings. Its m has an index n on the left, and no sum
over n. In its τ, ⟨(2y - 1) f⟩ under q is (2π - 1) μ. Its φ² = τ e belongs to the bound at g f, as above; for
the bound at f, with exponent g, φ² would be e and τ would have more terms in φ. For V → -∞ at fixed C every g
becomes 1, and the model is VGPMIL.

All arrays over slices are in the order of `Turns`.

Shapes: R replicates, B bags (scans), N instances (slices).
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ich_mil.gp.observations.densities import Logistic
from ich_mil.gp.settings import VARIANTS
from ich_mil.kernels.leave_one_out import Turns, gauss_seidel
from ich_mil.kernels.segments import bag_sum

C, V = 0.5, 0.5
"""Steepness and width of the margin."""

_LOGISTIC = Logistic()


class MarginObservation:
    """Local variational posteriors of LM-VGPMIL.

    π starts at 1 / (1 + H) in negative scans and at ½ in positive scans, as in ψ-VGPMIL. τ starts at 1: from
    τ = ½ the first sweep changes f little, and a large C then excludes most slices permanently.

    Attributes:
        logits: (R, N) logits of π.
        margins: (R, N) logits of τ.
    """

    def __init__(
        self,
        replicates: int,
        labels: Tensor,
        turns: Turns,
        *,
        c: float = C,
        v: float = V,
        log_h: float = VARIANTS["default"].log_h,
    ) -> None:
        """Initialise π and τ.

        Args:
            replicates: R.
            labels: (B,) in {0, 1}, in the order of `turns.bag_order`.
            turns: order of the slices.
            c: C, above 0.
            v: V.
            log_h: log H.
        """
        self._labels, self._turns = labels, turns
        self._c, self._v, self._log_h = torch.tensor([c, v, log_h], dtype=torch.float64, device=labels.device)
        sign = torch.where(labels == 1, 1.0, -1.0).to(self._log_h)
        self._pull = (self._log_h * sign).repeat(replicates, 1)  # (R, B)
        self.logits = self._pull.clamp(max=0.0)[:, turns.bags]  # (R, N)
        self.margins = torch.full_like(self.logits, torch.inf)
        self._target = torch.zeros_like(self.logits)

    @property
    def bounded(self) -> list[bool]:
        """True for all: both sigmoids are at most 1, so F is bounded above, and the prior bounds |μ|."""
        return [True] * len(self.logits)

    def _parts(self, mu: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Optimal ξ and φ for these moments, and e = E f², each (R, N)."""
        e = torch.addcmul(variance, mu, mu)
        t = torch.tanh(self.logits / 2) / 2
        # ξ² = C²(e - 4tμV + V²), as a sum of non-negative terms to avoid cancellation near the margin.
        xi = self._c * torch.sqrt(
            variance + (mu - 2 * t * self._v).square() + self._v.square() * (1 - 4 * t * t)
        )
        return xi, torch.sqrt(torch.sigmoid(self.margins) * e), e

    def _slope(self, theta_xi: Tensor) -> Tensor:
        """Factor s = 2C(τ - ½) + 2 C² V θ(ξ) + τ (R, N) of t in r, and of μ in the logit of π."""
        lean = torch.tanh(self.margins / 2)  # 2τ - 1
        return self._c * lean + 2 * self._c.square() * self._v * theta_xi + torch.sigmoid(self.margins)

    def precision(self, mu: Tensor, variance: Tensor) -> Tensor:
        """Θ = C² θ(ξ) + τ θ(φ) (R, N)."""
        xi, phi, _ = self._parts(mu, variance)
        theta_xi = _LOGISTIC.theta(xi)
        self._target = torch.tanh(self.logits / 2) / 2 * self._slope(theta_xi)
        return self._c.square() * theta_xi + torch.sigmoid(self.margins) * _LOGISTIC.theta(phi)

    def target(self) -> Tensor:
        """Targets r = t s (R, N), at the ξ of the last `precision`."""
        return self._target

    def update(self, mu: Tensor, variance: Tensor) -> None:
        """Update ξ and φ from the new moments, then π, then τ."""
        xi, phi, e = self._parts(mu, variance)
        field = mu * self._slope(_LOGISTIC.theta(xi))
        self.logits, _ = gauss_seidel(logsigmoid(-self.logits), field, self._pull, self._turns)
        t = torch.tanh(self.logits / 2) / 2
        self.margins = self._c * (2 * t * mu - self._v) + t * mu - _LOGISTIC.theta(phi) * e / 2

    def bound(self, mu: Tensor, variance: Tensor) -> Tensor:
        """Objective F (R,) at the optimal ξ and φ, without its term KL(q(w) ‖ p(w)).

            Σ_n [log ψ(ξ) + C(τ - ½)(2 t μ - V) + log ψ(φ) + τ t μ + H(π) + H(τ)]
            + Σ_b [log H · E G_b - log(1 + H)]        log ψ(c) = log sigmoid(c) - c/2

        Every update maximises F - KL over one block, so F - KL never decreases. It bounds
        the log of the integral over all factors. This integral is no evidence: g and y are each conditioned
        on the other, and the product of the two factors does not sum to 1. The paper therefore claims no
        guarantee.
        """
        xi, phi, _ = self._parts(mu, variance)
        pi, tau = torch.sigmoid(self.logits), torch.sigmoid(self.margins)
        t, log_not = torch.tanh(self.logits / 2) / 2, logsigmoid(-self.logits)
        slices = _LOGISTIC.log_psi(xi) + self._c * torch.tanh(self.margins / 2) / 2 * (2 * t * mu - self._v)
        slices = slices + _LOGISTIC.log_psi(phi) + tau * t * mu
        # The entropy of π = sigmoid(a) is -log(1 - π) - π a.
        slices = slices - log_not - pi * self.logits - logsigmoid(-self.margins) - tau * self.margins
        none = bag_sum(log_not, self._turns.bags, len(self._labels)).exp()  # (R, B)
        agree = torch.where(self._labels == 1, 1 - none, none)  # E G_b
        return slices.sum(1) + (self._log_h * agree + logsigmoid(-self._log_h)).sum(1)

    def keep(self, alive: Tensor) -> None:
        """Drop all replicates except those at the indices `alive`."""
        for name in ("_pull", "logits", "margins"):
            setattr(self, name, getattr(self, name)[alive])
