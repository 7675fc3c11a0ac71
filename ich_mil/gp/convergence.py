"""Convergence of Markov chains: rank-normalised split R-hat and bulk effective sample size, by ArviZ.

Source: Vehtari, Gelman, Simpson, Carpenter & Bürkner 2021, "Rank-normalization, folding, and localization".

Shapes: R chains, L draws of each, Q quantities.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor


def r_hat(draws: Tensor) -> Tensor:
    """R-hat (Q,) of draws (R, L, Q), L at least 4; 1 where no draw varies."""
    return _of_each("rhat", draws, constant=1.0)


def bulk_ess(draws: Tensor) -> Tensor:
    """Bulk effective sample size (Q,) of draws (R, L, Q), L at least 4; R·L where no draw varies."""
    return _of_each("ess", draws, constant=float(draws.shape[0] * draws.shape[1]), method="bulk")


def _of_each(name: str, draws: Tensor, *, constant: float, **options: Any) -> Tensor:
    from arviz_stats.base import array_stats  # seconds to import, and needed after sampling alone

    x = draws.detach().cpu().numpy()
    with np.errstate(divide="ignore", invalid="ignore"):  # chains that stand still in different places
        values = getattr(array_stats, name)(x, chain_axis=0, draw_axis=1, **options)
    return torch.from_numpy(np.where(np.ptp(x, axis=(0, 1)) == 0, constant, values))
