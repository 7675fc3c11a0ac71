"""Estimate log p(y | θ) at the θ of each chain: by importance sampling, or as Laplace's evidence.

In: θ (R, C, d). Out: a `Point`: the estimate, the mode f̂ and one draw of f | y, θ. The draw is one of the
importance samples, chosen by its weight: along a pseudo-marginal chain it is an exact draw of p(f, θ | y)
(Andrieu & Roberts 2009), for which the estimate of the current state must be kept, never computed again.

Shapes: R chains, C classes, d sources, n scans, S importance samples.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Literal

import torch
from torch import Tensor

from ich_mil.multikernel.laplace import covariance, draw, laplace, log_weights, noise_rows

Method = Literal["pseudo_marginal", "laplace", "ancillary"]

CHUNK = 32
"""Importance samples drawn at a time, which bounds the memory."""
PARTS = 2
"""Groups of chains computed side by side, each on a thread and with a generator of its own."""


@dataclass(frozen=True)
class Point:
    """Estimates at the current θ of each chain.

    Attributes:
        level: log of the estimate of p(y | θ) (R,); -inf where it could not be computed.
        mode: f̂ (R, C, n).
        f: a draw (R, C, n).
    """

    level: Tensor
    mode: Tensor
    f: Tensor

    def where(self, chosen: Tensor, other: "Point") -> "Point":
        """Values of this point in the chains `chosen` (R,), of `other` elsewhere."""
        wide = chosen[:, None, None]
        return Point(
            torch.where(chosen, self.level, other.level),
            torch.where(wide, self.mode, other.mode),
            torch.where(wide, self.f, other.f),
        )


def square_roots(sources: Tensor) -> Tensor:
    """Lower triangular A_h (d, n, n) with A_h A_hᵀ = S_h.

    Raises:
        torch.linalg.LinAlgError: S_h is not positive definite.
    """
    return torch.linalg.cholesky(sources)


class Marginal:
    """The likelihood of θ with f integrated out.

    Args:
        sources: S (d, n, n).
        labels: one-hot (R, C, n); chains may have labels of their own.
        method: "pseudo_marginal", or "laplace" for Laplace's evidence instead of the estimate.
        importance: S, N_imp of the paper.
    """

    def __init__(self, sources: Tensor, labels: Tensor, *, method: Method, importance: int) -> None:
        self.sources, self.labels, self.method, self.importance = sources, labels, method, importance
        self.roots = square_roots(sources)
        # matrices are too small for threads within an operation
        self._pool = ThreadPoolExecutor(PARTS, initializer=lambda: torch.set_num_threads(1))

    def evaluate(
        self, theta: Tensor, generator: torch.Generator, start: Tensor, *, curvature_at_mode: bool = True
    ) -> Point:
        """Estimate the likelihood of θ (R, C, d) with new noise.

        Args:
            theta: positive.
            generator: of the noise.
            start: f (R, C, n) from which the mode is searched.
            curvature_at_mode: as in `laplace`. Where it is False `start` must be a function of θ alone,
                so that q is one too.
        """
        if theta.is_cuda:
            return self._evaluate(theta, self.labels, generator, start, curvature_at_mode)
        seeds = torch.randint(2**62, (PARTS,), generator=generator).tolist()
        noises = [torch.Generator().manual_seed(seed) for seed in seeds]
        inputs = theta.chunk(PARTS), self.labels.chunk(PARTS), noises, start.chunk(PARTS)
        points = self._pool.map(self._evaluate, *inputs, repeat(curvature_at_mode))
        columns = zip(*(vars(point).values() for point in points), strict=True)
        return Point(*map(torch.cat, columns))

    @torch.no_grad()  # the mode of autograd is a thread's own
    def _evaluate(
        self,
        theta: Tensor,
        labels: Tensor,
        generator: torch.Generator,
        start: Tensor,
        curvature_at_mode: bool,
    ) -> Point:
        """`evaluate` for some of the chains."""
        q = laplace(covariance(theta, self.sources), labels, start, curvature_at_mode=curvature_at_mode)
        like = q.mode
        rows = noise_rows(like.shape[1], len(self.sources), like.shape[2])
        left = 1 if self.method == "laplace" else self.importance
        f = like
        level = best = torch.full_like(q.log_evidence, -torch.inf)
        while left:
            size = min(left, CHUNK)
            left -= size
            # single precision is six times as fast to draw; weights are exact for the values that came
            noise = torch.randn(rows, len(like), size, generator=generator, device=like.device).to(like)
            delta = draw(q, theta, self.roots, noise)
            weights = log_weights(q, delta)  # (R, S)
            level = torch.logaddexp(level, weights.logsumexp(1))
            # the largest of log weight + Gumbel noise is a draw by weight
            score = weights - torch.empty_like(weights).exponential_(generator=generator).log_()
            largest, index = score.max(1)
            picked = delta.gather(3, index[:, None, None, None].expand(*like.shape, 1))[..., 0]
            f = torch.where((largest > best)[:, None, None], q.mode + picked, f)
            best = torch.maximum(best, largest)
        level = q.log_evidence if self.method == "laplace" else level - math.log(self.importance)
        failed = q.log_evidence.isnan() | level.isnan()
        return Point(torch.where(failed, -torch.inf, level), q.mode, f)
