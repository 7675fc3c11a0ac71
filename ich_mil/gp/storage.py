"""Save and load a fitted head: tensors in `head.safetensors`, settings in `head.json`.

In: a head. Out: a folder; and back, bit for bit. Neither file format can execute code.
"""

import copy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import gpytorch
import numpy as np
import torch
from pydantic import Field

from ich_mil import __version__
from ich_mil.errors import ConfigError, ModelError
from ich_mil.files import write_json
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.model_files import read_json, read_tensors, record, write_tensors

FORMAT = "ich_mil.head.2"
TENSORS, SETTINGS = "head.safetensors", "head.json"


@dataclass(frozen=True)
class _HeadFile:
    """Content of `head.json`."""

    format: str
    ich_mil: str
    n_features: Annotated[int, Field(ge=1)]
    n_inducing: Annotated[int, Field(ge=1)]
    n_draws: Annotated[int, Field(ge=0)]
    given: list[str]
    jitter: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    settings: HeadSettings
    calibration: Calibration | None
    feature_names: list[str] | None = None
    kernel_values: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.calibration is not None:
            self.calibration.check(self.settings.variant.rule)


@torch.no_grad()
def _kernel_values(model: SparseGP) -> list[float]:
    """Fingerprint of the kernel: K between the origin and points on a line, where kernel classes differ."""
    line = torch.linspace(0.5, 1, len(model.x_mean)).to(model.x_mean)
    points = torch.logspace(-2, 1, 8).to(line)[:, None] * line  # (8, D)
    values: list[float] = model.covar_module(torch.zeros_like(line)[None], points).to_dense()[0].tolist()
    return values


def save_head(model: SparseGP, folder: Path) -> None:
    """Write the head, its settings and its calibration to `folder`, which is created if missing."""
    n_inducing, n_features = model.inducing.shape
    description = _HeadFile(
        FORMAT,
        __version__,
        n_features,
        n_inducing,
        0 if model.draws is None else len(model.draws),
        list(model.given),
        model.variational_strategy.jitter_val,
        model.settings,
        model.calibration,
        None if model.feature_names is None else list(model.feature_names),
        _kernel_values(model) if "kernel" in model.given else [],
    )
    write_tensors(folder / TENSORS, model.state_dict())
    write_json(folder / SETTINGS, asdict(description))  # written last: a folder with head.json is complete


def load_head(
    folder: Path, *, n_features: int | None = None, kernel: gpytorch.kernels.Kernel | None = None
) -> SparseGP:
    """Load a head written by `save_head`.

    Args:
        folder: folder with the two files.
        n_features: expected number of features D; None: not checked.
        kernel: a kernel of the same kind, for a head that was fitted with a kernel object.

    Returns:
        The head in eval mode, with its settings and calibration.

    Raises:
        ModelError: a file is missing, damaged, of another format, or for another number of features; the
            kernel is missing, not needed, or of another kind.
    """
    path = folder / SETTINGS
    stored = record(_HeadFile, read_json(path, FORMAT), path)
    width, n_inducing = stored.n_features, stored.n_inducing
    if n_features is not None and n_features != width:
        raise ModelError(
            f"{path}: the head was trained on {width} features a slice, these have {n_features}; use the "
            "features of the network it was trained with, or train the head again"
        )
    if ("kernel" in stored.given) != (kernel is not None):
        asked = "with a kernel object of its own: load it with kernel=" if kernel is None else "without one"
        raise ModelError(f"{path}: the head was fitted {asked}")
    described, path = path, folder / TENSORS
    state, _ = read_tensors(path)
    try:
        # compared first: a head as described could take more memory than its file
        if not {(n_inducing, width), (n_inducing, n_inducing)} <= {tuple(v.shape) for v in state.values()}:
            raise ValueError(f"{n_inducing} inducing points of {width} features")
        zeros = torch.zeros(width, dtype=torch.float64)
        model = SparseGP(
            zeros.expand(n_inducing, -1),
            zeros,
            torch.ones_like(zeros),
            stored.settings,
            kernel=copy.deepcopy(kernel),
        )
        if stored.n_draws:
            model.draws = zeros.new_empty(stored.n_draws, n_inducing)
        expected = model.state_dict()
        if not all(torch.equal(expected[name], state[name]) for name in expected if name.endswith("_bound")):
            raise ValueError("other bounds of parameters")
        model.load_state_dict(state)
        if not bool((model.x_std > 0).all()):
            raise ValueError("x_std must be above 0")
    except (ConfigError, KeyError, RuntimeError, ValueError) as error:
        raise ModelError(
            f"{path}: does not hold the head that {SETTINGS} beside it describes ({error}); train it again"
        ) from error
    if kernel is not None and not np.allclose(_kernel_values(model), stored.kernel_values, rtol=1e-6):
        raise ModelError(f"{described}: the head was fitted with a kernel unlike kernel=; give one like it")
    model.variational_strategy.jitter_val = stored.jitter
    model.calibration, model.given = stored.calibration, tuple(stored.given)
    names = stored.feature_names
    model.feature_names = None if names is None else tuple(names)
    return model.eval()
