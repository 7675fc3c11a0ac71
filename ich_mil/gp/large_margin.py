"""The local side of LM-VGPMIL: labels and margins of slices, R replicates at once.

In: μ and σ² of the latent values. Out: precisions and targets of a sweep, and an objective that never
falls. The model (Haußmann et al. 2017, supplement section 2) has a second hidden switch g of each slice:
whether its latent value lies beyond a margin, on the side of its label y,

    p(g | f, y) = sigmoid((2g - 1) C ((2y - 1) f - V))        p(y | f, g) = sigmoid((2y - 1) g f)

with the scan labels on the y as in VGPMIL. Within the margin (g = 0) the label is free. Both sigmoids get
Jaakkola's bound, at ξ for C((2y - 1) f - V) and at φ for g f. With q(y) = Ber(π), q(g) = Ber(τ), t = π - ½,
e = μ² + σ² and θ(c) = tanh(c/2)/(2c), which is 2λ(c) of the paper, each of these is the optimum of `bound`:

    ξ² = C²(e - 4 t μ V + V²)                  φ² = τ e
    Θ = C² θ(ξ) + τ θ(φ)                       r = t s,    s = 2C(τ - ½) + 2 C² V θ(ξ) + τ
    π_n = sigmoid(μ_n s_n + log H · (2T_b - 1) · Π_{j∈b, j≠n} (1 - π_j))
    τ = sigmoid(C(2 t μ - V) + t μ - ½ θ(φ) e)

These are the supplement's updates, read as follows: its m has an index n on the left and no sum over n; in
its τ, ⟨(2y - 1) f⟩ is (2π - 1) μ, as q makes it; its φ² = τ e belongs to the bound at g f as above (at f,
under an exponent g, φ² would be e, and τ would need more terms in φ). As V tends to -∞ at a fixed C, every
g becomes 1 and VGPMIL is left.

Everything is in the order of `Turns`.

Shapes: R replicates, B bags (scans), N instances (slices).
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ich_mil.gp.densities import Logistic
from ich_mil.gp.settings import HeadSettings
from ich_mil.kernels.leave_one_out import Turns, gauss_seidel, jacobi
from ich_mil.kernels.segments import bag_sum

_LOGISTIC = Logistic()


class MarginObservation:
    """Local posteriors of LM-VGPMIL.

    π starts at 1 / (1 + H) in negative scans and at ½ in positive ones, as in ψ-VGPMIL. τ starts at 1: from
    τ = ½ the first sweep moves f little, and a large C then shuts most slices out for good.

    Attributes:
        logits: (R, N) of π.
        margins: (R, N) logits of τ.
    """

    def __init__(self, settings: Sequence[HeadSettings], labels: Tensor, turns: Turns) -> None:
        """Start π and τ.

        Args:
            settings: R; of each C = `margin_c`, V = `margin_v` and log H; of the first the order of updates.
            labels: (B,) in {0, 1}, in the order of `turns.bag_order`.
            turns: the order.
        """

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=labels.device)[:, None]

        self._c = column([one.margin_c for one in settings])  # (R, 1)
        self._v = column([one.margin_v for one in settings])
        self._log_h = column([one.variant.log_h for one in settings])
        self._update, self._labels, self._turns = settings[0].variant.update, labels, turns
        self._pull = self._log_h * torch.where(labels == 1, 1.0, -1.0).to(self._log_h)  # (R, B)
        self.logits = self._pull.clamp(max=0.0)[:, turns.bags]  # (R, N)
        self.margins = torch.full_like(self.logits, torch.inf)
        self._target = torch.zeros_like(self.logits)

    @property
    def bounded(self) -> list[bool]:
        """All are: both sigmoids are at most 1, so F is bounded above, and the prior holds |μ|."""
        return [True] * len(self.logits)

    def _parts(self, mu: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The best ξ and φ for these moments, and e = E f², each (R, N)."""
        e = torch.addcmul(variance, mu, mu)
        t = torch.tanh(self.logits / 2) / 2
        # ξ² = C²(e - 4tμV + V²), as a sum of terms that are at least 0: nothing cancels near the margin.
        xi = self._c * torch.sqrt(
            variance + (mu - 2 * t * self._v).square() + self._v.square() * (1 - 4 * t * t)
        )
        return xi, torch.sqrt(torch.sigmoid(self.margins) * e), e

    def _slope(self, theta_xi: Tensor) -> Tensor:
        """What multiplies t in r, and μ in the logit of π: 2C(τ - ½) + 2 C² V θ(ξ) + τ (R, N)."""
        lean = torch.tanh(self.margins / 2)  # 2τ - 1
        return self._c * lean + 2 * self._c.square() * self._v * theta_xi + torch.sigmoid(self.margins)

    def precision(self, mu: Tensor, variance: Tensor) -> Tensor:
        """Θ = C² θ(ξ) + τ θ(φ) (R, N)."""
        xi, phi, _ = self._parts(mu, variance)
        theta_xi = _LOGISTIC.theta(xi)
        self._target = torch.tanh(self.logits / 2) / 2 * self._slope(theta_xi)
        return self._c.square() * theta_xi + torch.sigmoid(self.margins) * _LOGISTIC.theta(phi)

    def target(self) -> Tensor:
        """The targets t s (R, N), at the ξ of `precision`."""
        return self._target

    def update(self, mu: Tensor, variance: Tensor) -> None:
        """New ξ and φ from new moments, then new π, then new τ."""
        xi, phi, e = self._parts(mu, variance)
        field = mu * self._slope(_LOGISTIC.theta(xi))
        step = gauss_seidel if self._update == "gauss_seidel" else jacobi
        self.logits, _ = step(logsigmoid(-self.logits), field, self._pull, self._turns)
        t = torch.tanh(self.logits / 2) / 2
        self.margins = self._c * (2 * t * mu - self._v) + t * mu - _LOGISTIC.theta(phi) * e / 2

    def bound(self, mu: Tensor, variance: Tensor) -> Tensor:
        """The objective F (R,) at its best ξ and φ, without KL(q(w) ‖ p(w)).

            Σ_n [log ψ(ξ) + C(τ - ½)(2 t μ - V) + log ψ(φ) + τ t μ + H(π) + H(τ)]
            + Σ_b [log H · E G_b - log(1 + H)]        log ψ(c) = log sigmoid(c) - c/2

        Every update with `gauss_seidel` maximises F - KL over one block, so it never falls. It bounds the
        log of the integral of all factors. That is no evidence: g and y are each conditioned on the other,
        and the product of the two does not sum to 1, for which reason the paper claims no guarantee.
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
        """Go on with these replicates only."""
        for name in ("_c", "_v", "_log_h", "_pull", "logits", "margins"):
            setattr(self, name, getattr(self, name)[alive])
