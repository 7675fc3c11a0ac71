"""No-U-turn sampling of the exact posterior by nutpie: the reference.

In: a `Target` and its `Normal`. Out: draws of positions. Chains run on threads, in positions whitened by the
normal approximation, so that nutpie's own adaptation starts near its end.

Shapes: R chains, L kept draws of each, X positions.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ich_mil.errors import check_installed
from ich_mil.multimodal.inference.gaussian import Normal
from ich_mil.multimodal.inference.target import Target

TUNE = 200
"""Draws of a chain before the first that is kept."""


def sample_nuts(target: Target, q: Normal, *, chains: int, draws: int, seed: int) -> Tensor:
    """Draws (R, L, X) of R = `chains` chains.

    Raises:
        ConfigError: nutpie is not installed.
    """
    check_installed("nutpie", "sampling", "method 'nuts'")
    import nutpie

    size, like = len(q.mean), q.mean

    def density() -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
        own = target.copy()  # the likelihood works in buffers of its own: one for each chain

        def value(y: np.ndarray) -> tuple[float, np.ndarray]:
            log_density, slope = own(q.mean + q.root @ torch.from_numpy(y.copy()).to(like))
            return log_density, (q.root.mT @ slope).cpu().numpy()

        return value

    def expand(*_: object) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
        return lambda y: {"y": np.array(y)}

    compiled = nutpie.compiled_pyfunc.from_pyfunc(
        size,
        density,
        expand,
        [np.dtype(np.float64)],
        [(size,)],
        ["y"],
        make_initial_point_fn=lambda number: np.random.default_rng(number).standard_normal(size),
    )
    trace = nutpie.sample(
        compiled, draws=draws, tune=TUNE, chains=chains, cores=chains, seed=seed, progress_bar=False
    )
    return q.mean + torch.from_numpy(np.array(trace.posterior["y"])).to(like) @ q.root.mT
