"""Observation model of ψ-VGPMIL: slice labels and augmentation variables, for R replicates.

In: μ and σ² of the latent values. Out: the precisions θ(c) and targets π - ½ of a sweep, and the ELBO
(Castro-Macías et al. 2024, Eq. 25 and 28):

    Θ = diag θ(c)             c = √(μ² + σ²)
    π_n = sigmoid(μ_n + log H · (2T_b - 1) · Π_{j∈b, j≠n} (1 - π_j))

All arrays over slices are in the order of `Turns`.

Shapes: R replicates, B bags (scans), N instances (slices).
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ich_mil.gp.observations.densities import Density
from ich_mil.gp.settings import Variant
from ich_mil.kernels.leave_one_out import Turns, gauss_seidel, jacobi, leave_one_out_max
from ich_mil.kernels.segments import bag_sum


class PsiObservation:
    """Local variational posteriors of ψ-VGPMIL.

    π starts at 1 / (1 + H) in negative scans, where it is almost certain, and at ½ in positive scans. Random
    π as in the paper carries no label information in the first sweep, and the product over 30 slices of ½
    suppresses the label in every later sweep.

    Attributes:
        logits: (R, N) logits of π.
    """

    def __init__(
        self,
        densities: Sequence[Density],
        log_h: Tensor,
        labels: Tensor,
        turns: Turns,
        variant: Variant,
        *,
        start: Tensor | None = None,
    ) -> None:
        """Initialise π.

        Args:
            densities: densities ψ of the R replicates.
            log_h: (R,) float64.
            labels: (B,) in {0, 1}, in the order of `turns.bag_order`.
            turns: order of the slices.
            variant: choices of the updates; its H and tail are replaced by `log_h` and `densities`.
            start: (N,) initial π in the order of `turns`, in place of the values above.
        """
        self._densities, self._turns, self._variant = list(densities), turns, variant
        self._log_h, self._labels = log_h, labels
        self._pull = log_h[:, None] * torch.where(labels == 1, 1.0, -1.0).to(log_h)  # (R, B)
        if start is None:
            self.logits = self._pull.clamp(max=0.0)[:, turns.bags]
        else:
            self.logits = torch.logit(start).repeat(len(log_h), 1)
        self._log_not = logsigmoid(-self.logits)  # log(1 - π)

    @property
    def bounded(self) -> list[bool]:
        """For each replicate, whether c·θ(c) tends to at least ½."""
        return [density.bounded for density in self._densities]

    def _c(self, mu: Tensor, variance: Tensor) -> Tensor:
        return torch.addcmul(variance, mu, mu).sqrt_()

    def precision(self, mu: Tensor, variance: Tensor) -> Tensor:
        """Precisions θ(c) (R, N), with c clipped at `variant.clip`."""
        c = self._c(mu, variance).clamp_(max=self._variant.clip)
        return torch.stack([density.theta(row) for density, row in zip(self._densities, c, strict=True)])

    def target(self) -> Tensor:
        """Targets π - ½ (R, N), as ½ tanh(a/2) with a = logit π, which is exact near π = ½."""
        return torch.tanh(self.logits / 2) / 2

    def update(self, mu: Tensor, variance: Tensor) -> None:
        """Update π for the new μ."""
        bags, n_bags = self._turns.bags, len(self._labels)
        if self._variant.leave_one_out == "max":
            self.logits = mu + self._pull[:, bags] * leave_one_out_max(self.logits.sigmoid(), bags, n_bags)
            self._log_not = logsigmoid(-self.logits)
            return
        step = jacobi if self._variant.update == "jacobi" else gauss_seidel
        self.logits, self._log_not = step(self._log_not, mu, self._pull, self._turns)

    def bound(self, mu: Tensor, variance: Tensor) -> Tensor:
        """ELBO (R,) with Θ at its optimum, without its term KL(q(w) ‖ p(w)).

            Σ_n [log ψ(c_n) + (π_n - ½) μ_n + H(π_n)] + Σ_b [log H · E G_b - log(1 + H)]
            E G_b = T_b E max + (1 - T_b)(1 - E max)        E max = 1 - Π(1 - π)

        H(π) is the entropy of Ber(π). Exact for the logistic density. For other densities log Z (Eq. 20),
        which is constant while the kernel is fixed, and the constant of log ψ are left out.
        """
        c = self._c(mu, variance)
        log_psi = torch.stack([d.log_psi(row).sum() for d, row in zip(self._densities, c, strict=True)])
        # The entropy of π = sigmoid(a) is -log(1 - π) - π a.
        slices = torch.sigmoid(self.logits) * (mu - self.logits) - self._log_not - mu / 2
        none = bag_sum(self._log_not, self._turns.bags, len(self._labels)).exp()  # (R, B)
        agree = torch.where(self._labels == 1, 1 - none, none).sum(1)  # Σ E G_b
        scans = self._log_h * agree + len(self._labels) * logsigmoid(-self._log_h)
        return log_psi + slices.sum(1) + scans

    def keep(self, alive: Tensor) -> None:
        """Drop all replicates except those at the indices `alive`."""
        self._densities = [self._densities[i] for i in alive.tolist()]
        self._log_h, self._pull = self._log_h[alive], self._pull[alive]
        self.logits, self._log_not = self.logits[alive], self._log_not[alive]
