"""Convergence diagnostics of Markov chains: rank-normalised split R-hat and bulk ESS, computed by ArviZ.

In: draws (R, L, Q). Out: one value per quantity (Q,). Source: Vehtari, Gelman, Simpson, Carpenter & Bürkner
2021, "Rank-normalization, folding, and localization".

Shapes: R chains, L draws of each, Q quantities.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ich_mil.errors import check_installed


def r_hat(draws: Tensor) -> Tensor:
    """R-hat (Q,) of draws (R, L, Q) with L ≥ 4; 1 for a quantity that is constant over all draws."""
    return _of_each("rhat", draws, constant=1.0)


def bulk_ess(draws: Tensor) -> Tensor:
    """Bulk effective sample size (Q,) of draws (R, L, Q) with L ≥ 4; R·L for a constant quantity."""
    return _of_each("ess", draws, constant=float(draws.shape[0] * draws.shape[1]), method="bulk")


def _of_each(name: str, draws: Tensor, *, constant: float, **options: Any) -> Tensor:
    check_installed("arviz_stats", "sampling", "diagnostics of sampling")
    from arviz_stats.base import array_stats  # imported here because it takes seconds; only sampling needs it

    x = draws.detach().cpu().numpy()
    with np.errstate(divide="ignore", invalid="ignore"):  # chains that are constant at different values
        values = getattr(array_stats, name)(x, chain_axis=0, draw_axis=1, **options)
    return torch.from_numpy(np.where(np.ptp(x, axis=(0, 1)) == 0, constant, values))
