"""Gaussian smoothing of latent values along z within each scan, as part of the model.

In: slice positions z in mm along the scan, and a width s. Out: the weights W of each scan; rows sum to 1,

    W_nm = exp(-(z_n - z_m)² / (2 s²)) / Σ_m' exp(-(z_n - z_m')² / (2 s²))        f~ = W f

The slice labels depend on f~, which is a Gaussian process again. With Φ of the unsmoothed f,

    Φ~ = Φ Wᵀ        residual~ = diag(W (K_XX + εI - ΦᵀΦ) Wᵀ)        cov q(f~) = W cov q(f) Wᵀ

Φ~ and residual~ replace Φ and the residual in every equation of the models, and a bound that never decreases
keeps this property. The inducing variables u remain values of f itself (inter-domain: Lázaro-Gredilla and
Figueiras-Vidal 2009), so the head learns the appearance of single slices. As s → 0, W → I.

A kernel over (features, z) shared by all scans would be a different model: it learns where in the head bleeds
are common, but correlates slices of one scan no more than slices of two scans.

Shapes: B scans, N slices of all, n slices of one scan.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ich_mil.errors import DataError
from ich_mil.gp.bags import Bags
from ich_mil.gp.settings import HeadSettings


def smoothing_weights(positions: Tensor, width: float) -> Tensor:
    """Smoothing weights W of one scan.

    Args:
        positions: (n,) mm along the scan, in any order, from any origin.
        width: s in mm.

    Returns:
        (n, n) float64.
    """
    z = positions.double()
    return torch.softmax(-((z[:, None] - z) / width).square() / 2, dim=1)


def blocks_of(offsets: Tensor) -> list[slice]:
    """Row slices of the scans, from offsets (B + 1,)."""
    ends = offsets.tolist()
    return [slice(start, end) for start, end in pairwise(ends)]


@dataclass(frozen=True)
class Smoother:
    """Smoothing weights W of B scans, computed scan by scan on demand.

    Attributes:
        positions: (N,) mm along the scan.
        offsets: (B + 1,).
        width: s in mm.
    """

    positions: Tensor
    offsets: Tensor
    width: float

    def weights(self, rows: slice) -> Tensor:
        """Smoothing weights W (n, n) of the scan with these rows."""
        return smoothing_weights(self.positions[rows], self.width)


def make_smoother(settings: HeadSettings, bags: Bags, what: str = "these scans") -> Smoother | None:
    """Build the smoother of the settings; None if `smooth_mm` is 0.

    Args:
        settings: settings of the head.
        bags: the scans, with positions.
        what: name of these scans in error messages.

    Raises:
        DataError: `smooth_mm` is not 0, and a position is unknown or the number of positions is not N.
    """
    if settings.smooth_mm == 0:
        return None
    remedy = "give positions in mm (prepared scans have them), or use a head with smooth_mm 0"
    asked = f"head.smooth_mm is {settings.smooth_mm:g}, but"
    positions, offsets = bags.positions, bags.offsets
    if positions is None:
        raise DataError(f"{what}: {asked} the positions of the slices are unknown; {remedy}")
    if positions.shape != (int(offsets[-1]),):
        raise DataError(
            f"{what}: there are {int(offsets[-1])} slices, but positions of shape {tuple(positions.shape)}"
        )
    bad = (~torch.isfinite(positions)).nonzero()[:, 0]
    if len(bad):
        first = int(bad[0])
        b = int((offsets <= first).sum()) - 1
        scan = f"scan {b}" if bags.ids is None else f"scan {bags.ids[b]!r}"
        place = first - int(offsets[b])
        raise DataError(f"{what}: {asked} the position of slice {place} of {scan} is unknown; {remedy}")
    return Smoother(positions, offsets, settings.smooth_mm)
