"""Exact likelihood of bags, primary instances summed out, with its gradient.

Given the coefficients, the score of a bag is S = α + Σ_j δ_j c_j with independent δ_j ~ Bernoulli(p_j),
p_j = Φ(h_j b), c_j = x_j β. The characteristic function of S + ε, ε ~ N(0, 1), is

    φ(t) = exp(iαt - t²/2) Π_j (1 + p_j (exp(i c_j t) - 1))

and by the inversion of Gil-Pelaez (Biometrika 38, 1951)

    P(y = 1) = P(S + ε > 0) = ½ + (1/π) ∫₀^∞ Im φ(t) / t dt

The midpoint rule with K nodes at spacing h misses at most P(|S + ε| > 2π/h) by aliasing and
exp(-T²/2) / (π T²) beyond T = hK. The first is bounded by the sub-Gaussian constants of the δ_j, so each bag
has a K of its own that holds the error of P below a tolerance (`reach`). Bags of like K run together,
and so are the R sets of coefficients of a call: many small calls cost more than the arithmetic.

In: instances, labels, coefficients. Out: log-likelihood and gradient in float64. The cost is linear in
instances.

Shapes: R sets of coefficients, B bags, N instances of all modalities, b and n of a group of bags and sets, K
nodes, C coefficients (b of each modality, then θ = (α, β of each modality)).
"""

import math
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ich_mil.kernels.leave_one_out import Turns
from ich_mil.multimodal.layout import Columns, Rows, value_order

TOLERANCE = 1e-8
"""Largest error of a probability, and the least probability of a label."""
MOST_NODES = 256
"""Scores that need more are shrunk to what these nodes reach, ±297: ε has a larger deviation there."""
GROUP_NUMBERS, LEAST_GROUPS = 120_000, 2
"""Complex numbers n K of a group, and least number of groups; more groups cost more calls than they save."""
MOST_NUMBERS = 500_000
"""Instances times sets of coefficients at once."""
SCORE_ROWS = 20_000
"""Instances of which the gradients are added to those of their bags at once."""


class Sensitivities(NamedTuple):
    """Log-probabilities of labels and their derivatives, bags and instances in the order of a `Likelihood`.

    Attributes:
        values: (B, R) log-probabilities.
        alpha: (B, R) derivatives with respect to α.
        probits: (N, R) derivatives of the bag's value with respect to h_j b.
        effects: (N, R) derivatives with respect to x_j β.
    """

    values: Tensor
    alpha: Tensor
    probits: Tensor
    effects: Tensor


class Likelihood:
    """Log-likelihood of labelled bags.

    Attributes:
        signs: (B,) labels, -1 or 1.
        columns: places of the modalities in θ.
        widths: number of inner coefficients of each modality.
        instances: N.
    """

    def __init__(self, rows: Sequence[Rows], signs: Tensor, columns: Columns) -> None:
        self.signs, self.columns = signs, columns
        self.widths = [1 + part.x.shape[1] for part in rows]
        sizes = torch.bincount(torch.cat([part.bags for part in rows]), minlength=len(signs)).cpu()
        turns = Turns(torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))
        order = torch.as_tensor(value_order(rows))[turns.order].to(signs.device)
        places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=signs.device))
        self._designs: list[tuple[Tensor, Tensor]] = []  # places (N_m,) and regressors (N_m, 1 + D_m)
        for part, place in zip(rows, places.split([len(part.x) for part in rows]), strict=True):
            place, index = place.sort()
            h = part.x.new_ones(len(index), 1 + part.x.shape[1])
            h[:, 1:] = part.x[index]
            self._designs.append((place, h))
        self._bag_order = turns.bag_order.to(signs.device)
        self._signs = signs[self._bag_order]
        self._lay_out(turns)

    def _lay_out(self, turns: Turns) -> None:
        """Bags by falling number of instances (their ranks); instances by turn, and by rank in a turn."""
        device = self.signs.device
        self._bags, self.instances = turns.bags.to(device), len(turns.bags)
        self._sizes, self._starts = turns.sizes.to(device), turns.starts.to(device)

    def some(self, number: int, generator: torch.Generator) -> "Likelihood":
        """Likelihood of `number` random bags; of all where there are no more."""
        if number >= len(self.signs):
            return self
        device = self.signs.device
        kept = torch.zeros(len(self.signs), dtype=torch.bool, device=device)
        kept[torch.randperm(len(self.signs), generator=generator, device=device)[:number]] = True
        kept = kept[self._bag_order]
        part = copy(self)
        part.signs = part._signs = self._signs[kept]
        part._bag_order = torch.arange(number, device=device)
        there = kept[self._bags]
        place_of = there.cumsum(0) - 1
        part._designs = [(place_of[place[there[place]]], h[there[place]]) for place, h in self._designs]
        sizes = self._sizes[kept].cpu()
        part._lay_out(Turns(torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])))
        return part

    @property
    def size(self) -> int:
        """C."""
        return sum(self.widths) + self.columns.size

    def __call__(self, theta: Tensor, *, tolerance: float = TOLERANCE) -> tuple[Tensor, Tensor]:
        """Log-likelihoods (R,) at coefficients `theta` (R, C), and their gradients (R, C).

        Args:
            theta: coefficients of each set.
            tolerance: largest error of the probability of a label, and its least value.
        """
        values, gradients = [], []
        for some in theta.split(max(1, MOST_NUMBERS // self.instances)):
            result = self._sensitivities(some, tolerance)
            inner = [result.probits[place].mT @ h for place, h in self._designs]
            outer = [result.effects[place].mT @ h[:, 1:] for place, h in self._designs]
            values.append(result.values.sum(0))
            gradients.append(torch.cat([*inner, result.alpha.sum(0)[:, None], *outer], dim=1))
        return torch.cat(values), torch.cat(gradients)

    def scores(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (B,) of the labels at coefficients `theta` (C,), and their gradients (B, C)."""
        result = self._sensitivities(theta[None], TOLERANCE)
        inner, outer = ([theta.new_zeros(len(self.signs), n) for n in self.widths] for _ in range(2))
        for m, (place, h) in enumerate(self._designs):
            for rows, regressors in zip(place.split(SCORE_ROWS), h.split(SCORE_ROWS), strict=True):
                for out, column in ((inner[m], result.probits), (outer[m], result.effects)):
                    out.index_add_(0, self._bags[rows], column[rows] * regressors)
        ordered = torch.cat([*inner, result.alpha, *(part[:, 1:] for part in outer)], dim=1)
        values, scores = torch.empty_like(self.signs), torch.empty_like(ordered)
        values[self._bag_order], scores[self._bag_order] = result.values[:, 0], ordered
        return values, scores

    def _sensitivities(self, theta: Tensor, tolerance: float) -> Sensitivities:
        """Bag and set together are called a bag below: (B, R) and (N, R) are flat, B R and N R."""
        *inner, alpha = theta[:, : 1 + sum(self.widths)].split([*self.widths, 1], dim=1)
        outer = theta[:, 1 + sum(self.widths) :].split([width - 1 for width in self.widths], dim=1)
        probit, effect = theta.new_empty(2, self.instances, len(theta)).unbind()
        for (place, h), of_probit, of_effect in zip(self._designs, inner, outer, strict=True):
            probit[place], effect[place] = h @ of_probit.mT, h[:, 1:] @ of_effect.mT
        probit, effect = probit.flatten(), effect.flatten()
        sets = torch.arange(len(theta), device=theta.device)
        bags = (len(theta) * self._bags[:, None] + sets).flatten()
        p, q = (torch.erfc(side * probit / math.sqrt(2)) / 2 for side in (-1, 1))
        signs, alpha = self._signs.repeat_interleave(len(theta)), alpha.flatten().repeat(len(self._signs))
        cut = _cut(tolerance)
        need = cut / (2 * math.pi) * reach(p, q, effect, bags, alpha, tolerance)  # (B R,) nodes
        shrink = (MOST_NODES / need).clamp(max=1)
        of_row = shrink[bags]
        effect, alpha = effect * of_row, alpha * shrink
        totals, by_alpha = torch.empty_like(signs), torch.empty_like(signs)  # P(y = 1) - ½, and ∂P / ∂α
        turned, by_effect = torch.empty_like(effect), torch.empty_like(effect)
        allowed = (need * shrink).nan_to_num(MOST_NODES)  # coefficients that overflow have values of NaN
        for group, rows, counts, nodes in self._groups(allowed.ceil().long()):
            sums = _inverted(alpha[group], p[rows], q[rows], effect[rows], counts, nodes, cut / nodes)
            totals[group], by_alpha[group], turned[rows], by_effect[rows] = sums
        values = (0.5 + signs * totals).clamp(min=tolerance)
        slope = signs / values
        # Σ Im φ = (1 - p) bare + p turned: ∂P/∂p = turned - bare = (turned - Σ Im φ) / (1 - p), and the
        # density over 1 - p is bounded by the probit
        density = torch.exp(-probit.square() / 2) / (math.sqrt(2 * math.pi) * q.clamp(min=1e-300))
        slopes = slope[bags]
        flat = (
            values.log(),
            slope * shrink * by_alpha,
            slopes * density * (turned - totals[bags]),
            slopes * of_row * p * by_effect,
        )
        return Sensitivities(*(part.view(-1, len(theta)) for part in flat))

    def _groups(self, nodes: Tensor) -> Iterator[tuple[Tensor, Tensor, list[int], int]]:
        """Groups of bags of like K, of all `nodes` (B R,): ranks (b,), rows (n,), bags of each turn, K."""
        sets = len(nodes) // len(self._sizes)
        nodes, order = nodes.sort(stable=True)
        all_sizes, starts = self._sizes.repeat_interleave(sets), sets * self._starts
        filled = (all_sizes[order] * nodes).cumsum(0)
        number = max(LEAST_GROUPS, math.ceil(int(filled[-1]) / GROUP_NUMBERS))
        ends = torch.arange(1, number, device=order.device) * filled[-1] / number
        stops = sorted({*torch.searchsorted(filled, ends.ceil().long()).tolist(), len(order)} - {0})
        for start, stop in pairwise([0, *stops]):
            ranks = order[start:stop].sort().values
            sizes = all_sizes[ranks]
            there = torch.arange(int(sizes[0]), device=order.device)[:, None] < sizes  # turns, b
            rows = (starts[: len(there), None] + ranks)[there]
            yield ranks, rows, there.sum(1).tolist(), int(nodes[stop - 1])


def _cut(tolerance: float) -> float:
    """T at which exp(-T²/2) / (π T²) is half the tolerance."""
    wanted, cut = math.log(2 / tolerance), 1.0
    for _ in range(50):
        cut = math.sqrt(2 * max(wanted - math.log(math.pi * cut**2), 0.5))
    return cut


def reach(p: Tensor, q: Tensor, c: Tensor, bags: Tensor, alpha: Tensor, tolerance: float) -> Tensor:
    """R (B,) with P(|S + ε| > R) at most half the tolerance.

    A δ - p is sub-Gaussian with constant (1 - 2p) / (2 log((1 - p) / p)) (Kearns and Saul 1998), so that
    P(|S + ε - mean| > r) < 2 exp(-r² / 2V), V the sum of constants times squared effects, and 1 for ε.

    Args:
        p: (N,) probabilities of primary instances.
        q: (N,) 1 - p.
        c: (N,) effects.
        bags: (N,) bag of each instance.
        alpha: (B,) scores without primary instances.
        tolerance: of the probability of a label.
    """
    odds = (q.clamp(min=1e-300) / p.clamp(min=1e-300)).log()
    constant = torch.where(odds.abs() < 1e-3, 0.25, (q - p) / (2 * odds))
    columns = torch.stack([p * c, constant * c.square(), c.clamp(min=0), c.clamp(max=0)], dim=1)
    mean, variance, high, low = columns.new_zeros(len(alpha), 4).index_add_(0, bags, columns).unbind(1)
    deviations = math.sqrt(2 * math.log(4 / tolerance))  # two tails are half the tolerance
    likely = (mean + alpha).abs() + deviations * (1 + variance).sqrt()
    possible = torch.maximum((high + alpha).abs(), (low + alpha).abs()) + deviations
    return torch.minimum(likely, possible)


def _inverted(
    alpha: Tensor, p: Tensor, q: Tensor, c: Tensor, counts: list[int], nodes: int, h: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inversion for a group of bags: P(y = 1) - ½ (b,), ∂P/∂α (b,), and two sums (n,) for each instance.

    They are of φ with the factor of the instance replaced by exp(i c_j t): Σ Im, and ∂P/∂c_j over p_j.
    """
    index = torch.arange(nodes, dtype=p.dtype, device=p.device) + 0.5
    t = h * index
    imaginary = torch.view_as_real(torch.complex(torch.zeros_like(t), torch.ones_like(t))).flatten()
    real = torch.view_as_real(torch.complex(h * index, torch.zeros_like(t))).flatten()
    weight = torch.exp(-t.square() / 2) / (math.pi * index)
    current = _turn(weight, t * alpha[:, None])  # (b, K) φ(t) h / (π t)
    z = _powers(h * c, nodes)  # (n, K)
    factor = z * p[:, None]
    factor.real += q[:, None]
    product = torch.empty_like(z)
    factors, products = factor.split(counts), product.split(counts)
    products[0].copy_(current)
    for turn, count in enumerate(counts[1:]):  # product: all factors before
        torch.mul(products[turn][:count], factors[turn][:count], out=products[turn + 1])
    rest = torch.ones_like(current)
    for count, turn_factors, before in zip(counts[::-1], factors[::-1], products[::-1], strict=True):
        before *= rest[:count]  # and all factors behind
        rest[:count] *= turn_factors
    product *= z
    total, turned = (torch.view_as_real(part).flatten(1) for part in (current * rest, product))
    return total @ imaginary, total @ real, turned @ imaginary, turned @ real


def _turn(size: Tensor, angle: Tensor) -> Tensor:
    """Size exp(i angle)."""
    return torch.complex(size * angle.cos(), size * angle.sin())


def _powers(angle: Tensor, number: int) -> Tensor:
    """exp(i angle (k + ½)) (n, K) of angles (n,), by doubling: one product a number."""
    out = angle.new_empty(len(angle), number, dtype=torch.complex128)
    out[:, 0] = _turn(torch.ones_like(angle), angle / 2)
    step, done = out[:, :1] * out[:, :1], 1
    while done < number:
        end = min(2 * done, number)
        torch.mul(out[:, : end - done], step, out=out[:, done:end])
        step, done = step * step, end
    return out
