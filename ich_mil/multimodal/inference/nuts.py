"""No-U-turn sampling of the exact posterior by nutpie: the reference.

In: a `Target` and short chains (`hmc`). Out: draws of positions. Chains run on threads, from ends of the
short chains and whitened by their approximation, so that nutpie's own adaptation starts near its end.

Shapes: R chains, L kept draws of each, X positions.
"""

from collections.abc import Callable
from itertools import cycle

import numpy as np
import torch
from torch import Tensor

from ich_mil.errors import check_installed
from ich_mil.multimodal.inference.hmc import Chains
from ich_mil.multimodal.inference.target import Target

TUNE = 200
"""Draws of a chain before the first that is kept."""


def sample_nuts(target: Target, short: Chains, *, chains: int, draws: int, seed: int) -> Tensor:
    """Draws (R, L, X) of R = `chains` chains from those of `short`.

    Raises:
        ConfigError: nutpie is not installed.
    """
    check_installed("nutpie", "sampling", "method 'nuts'")
    import nutpie

    q, like, size = short.q, short.q.mean, len(short.q.mean)
    ends = torch.linalg.solve_triangular(q.root, (short.draws[:, -1] - q.mean).mT, upper=False).mT  # (R, X)
    starts = cycle(ends.cpu().numpy())

    def density() -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
        def value(y: np.ndarray) -> tuple[float, np.ndarray]:
            x = q.mean + q.root @ torch.from_numpy(y.copy()).to(like)
            log_density, slope = target(x[None])
            return float(log_density), (q.root.mT @ slope[0]).cpu().numpy()

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
        make_initial_point_fn=lambda _: next(starts),
    )
    trace = nutpie.sample(
        compiled, draws=draws, tune=TUNE, chains=chains, cores=chains, seed=seed, progress_bar=False
    )
    return q.mean + torch.from_numpy(np.array(trace.posterior["y"])).to(like) @ q.root.mT
