"""Smoothing along z as part of the model: the slices of one scan share the latent values of their neighbours.

In: where slices lie, in mm along the scan, and a width s. Out: the weights W of each scan; rows sum to 1,

    W_nm = exp(-(z_n - z_m)² / (2 s²)) / Σ_m' exp(-(z_n - z_m')² / (2 s²))        f~ = W f

The labels are then those of f~, which is a Gaussian process again. With S and Φ of q(w),

    Φ~ = Φ Wᵀ        residual~ = diag(W (K_XX + εI - ΦᵀΦ) Wᵀ)        cov q(f~) = W cov q(f) Wᵀ

so that Φ~ and residual~ stand for Φ and the residual in every equation of the family, and a bound that never
falls still never falls. The inducing points stay values u of f itself (inter-domain: Lázaro-Gredilla and
Figueiras-Vidal 2009), so a head learns what a slice looks like by itself. As s → 0, W → I.

A kernel over (features, z) that all scans share would be another model: it learns where in the head bleeds
are common, and does not tie the slices of one scan to each other more than those of two.

Shapes: B scans, N slices of all, n slices of one scan.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ich_mil.errors import DataError
from ich_mil.gp.settings import HeadSettings


def smoothing_weights(positions: Tensor, width: float) -> Tensor:
    """W of one scan.

    Args:
        positions: (n,) mm along the scan, in any order, from any origin.
        width: s, mm.

    Returns:
        (n, n) float64.
    """
    z = positions.double()
    return torch.softmax(-((z[:, None] - z) / width).square() / 2, dim=1)


def blocks_of(offsets: Tensor) -> list[slice]:
    """The rows of each scan, from offsets (B + 1,)."""
    ends = offsets.tolist()
    return [slice(start, end) for start, end in pairwise(ends)]


@dataclass(frozen=True)
class Smoother:
    """W of B scans, made block by block when it is asked for.

    Attributes:
        positions: (N,) mm.
        offsets: (B + 1,).
        width: s, mm.
    """

    positions: Tensor
    offsets: Tensor
    width: float

    def weights(self, rows: slice) -> Tensor:
        """W (n, n) of the scan that owns these rows."""
        return smoothing_weights(self.positions[rows], self.width)


def make_smoother(
    settings: HeadSettings,
    positions: Tensor | None,
    offsets: Tensor,
    *,
    scans: Sequence[str] | None = None,
    what: str = "these scans",
) -> Smoother | None:
    """The smoother the settings ask for; None where they ask for none.

    Args:
        settings: of the head.
        positions: (N,) mm, or None where they are not known.
        offsets: (B + 1,).
        scans: B ids, for the message.
        what: whose positions they are, for the message.

    Raises:
        DataError: smoothing is asked for, and a position is not known; or one too many or too few is given.
    """
    if settings.smooth_mm == 0:
        return None
    remedy = "give positions in mm (prepared scans have them), or use a head with smooth_mm 0"
    asked = f"head.smooth_mm is {settings.smooth_mm:g}, but"
    if positions is None:
        raise DataError(f"{what}: {asked} where the slices lie is not known; {remedy}")
    if positions.shape != (int(offsets[-1]),):
        raise DataError(
            f"{what}: there are {int(offsets[-1])} slices, but positions of shape {tuple(positions.shape)}"
        )
    bad = (~torch.isfinite(positions)).nonzero()[:, 0]
    if len(bad):
        first = int(bad[0])
        b = int((offsets <= first).sum()) - 1
        scan = f"scan {b}" if scans is None else f"scan {scans[b]!r}"
        raise DataError(
            f"{what}: {asked} where slice {first - int(offsets[b])} of {scan} lies is not known; {remedy}"
        )
    return Smoother(positions, offsets, settings.smooth_mm)
