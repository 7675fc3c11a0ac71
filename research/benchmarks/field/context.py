"""Context across slices for our head: a kernel over feature and position, and smoothed features.

* Product kernel: k(x, x') k(z, z') + bias on (feature, position in mm from the middle of the scan), both RBF.
  The inducing points lie in (feature, position), so a slice learns from slices of all scans that look alike
  at a like height. A covariance of the slices of one scan alone (δ of the scan times k(z, z')) would need
  inducing points for each scan and is not what this does.
* Smooth operator: the features of a scan are smoothed by (I + γ L)⁻¹, L the Laplacian of the chain of slices
  (Castro-Macías et al. 2024, exact mode), before the head is fitted.

Shapes: B scans, N slices, n slices of one scan, D features.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import gpytorch
import torch
from torch import Tensor

from ich_mil.evaluate.baselines import position_score
from ich_mil.gp.settings import HeadSettings
from ich_mil.sets.features import FeatureSet
from research.benchmarks.field.heads import DEFAULT, head
from research.benchmarks.field.networks import check_positions
from research.benchmarks.field.tuning import Method, Scored

GAMMA = 1.0
"""γ of the smooth operator: a slice has about half of the weight of its smoothed features."""

HEIGHT = 1.0
"""Length scale of the position, in standard deviations of the positions."""


def heights(features: FeatureSet) -> Tensor:
    """Position (N,) of each slice in mm from the middle of its scan."""
    check_positions(features)
    assert features.positions_mm is not None
    mm, first, last = features.positions_mm, features.offsets[:-1], features.offsets[1:] - 1
    return mm - ((mm[first] + mm[last]) / 2).repeat_interleave(features.offsets.diff())


def with_heights(features: FeatureSet) -> FeatureSet:
    """The features with the position as last column."""
    return replace(features, x=torch.cat([features.x, heights(features)[:, None].float()], 1))


def product_kernel(n_columns: int, settings: HeadSettings) -> gpytorch.kernels.Kernel:
    """Product of the kernel of the settings on all columns but the last, and an RBF on the last."""
    n_features = n_columns - 1
    of_features = gpytorch.kernels.RBFKernel(active_dims=tuple(range(n_features)))
    of_height = gpytorch.kernels.RBFKernel(active_dims=(n_features,))
    of_features.lengthscale = (settings.lengthscale_squared or 1.0) ** 0.5
    of_height.lengthscale = HEIGHT
    scaled = gpytorch.kernels.ScaleKernel(of_features * of_height)
    scaled.outputscale = settings.variant.variance
    constant = gpytorch.kernels.ConstantKernel()
    constant.constant = torch.tensor(max(settings.variant.bias, 1e-6))
    return (scaled + constant).double()


def smoothed(features: FeatureSet) -> FeatureSet:
    """The features after the smooth operator."""
    check_positions(features)
    parts = []
    for x in features.x.double().split(features.offsets.diff().tolist()):
        chain = torch.diag(torch.ones(len(x) - 1, dtype=torch.float64), 1)
        A = chain + chain.T
        parts.append(torch.linalg.solve(torch.eye(len(x)) + GAMMA * (torch.diag(A.sum(1)) - A), x))
    return replace(features, x=torch.cat(parts).float())


def after(change: Callable[[FeatureSet], FeatureSet], method: Method) -> Method:
    """A method on changed features."""

    def changed(train: FeatureSet, test: FeatureSet, seeds: Sequence[int]) -> list[Scored]:
        return method(change(train), change(test), seeds)

    return changed


def position_alone(train: FeatureSet, test: FeatureSet, seeds: Sequence[int]) -> list[Scored]:
    """Baseline without pictures: a Gaussian at mid-scan, and the prevalence of the training scans."""
    share = train.labels.double().mean().expand(test.n_scans).clone()
    return [Scored(share, torch.from_numpy(position_score(test.positions.numpy())).double())] * len(seeds)


ON_HEADS = {
    "VGPMIL, kernel of (feature, position)": after(
        with_heights, head(HeadSettings(), make_kernel=product_kernel)
    ),
    "VGPMIL on smoothed features": after(smoothed, head(HeadSettings(), choose=False)),
    "position alone": position_alone,
}
"""Methods by name."""

BASES = dict.fromkeys(ON_HEADS, DEFAULT) | {
    "SmABMIL": "ABMIL",
    "PatchGCN, chain of slices": "ABMIL",
    "ABMIL, bidirectional GRU": "ABMIL",
    "ABMIL, transformer with mm": "ABMIL",
}
"""The method without context, for each with it."""
