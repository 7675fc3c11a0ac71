"""Save and load a fitted head: tensors in `head.safetensors`, settings in `head.json`.

In: a head. Out: a folder; and back, bit for bit. Neither file format can execute code.
"""

import copy
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ich_mil import __version__
from ich_mil.errors import ModelError
from ich_mil.files import whole_file, write_json
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.sparse_gp import SparseGP

FORMAT = "ich_mil.head.2"
TENSORS, SETTINGS = "head.safetensors", "head.json"


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
    description = {
        "format": FORMAT,
        "ich_mil": __version__,
        "n_features": n_features,
        "n_inducing": n_inducing,
        "n_draws": 0 if model.draws is None else len(model.draws),
        "given": list(model.given),
        "jitter": model.variational_strategy.jitter_val,
        "settings": asdict(model.settings),
        "calibration": None if model.calibration is None else asdict(model.calibration),
    }
    if model.feature_names is not None:
        description["feature_names"] = list(model.feature_names)
    if "kernel" in model.given:
        description["kernel_values"] = _kernel_values(model)
    # Cloned because safetensors refuses tensors that share memory, such as `active_dims` of GPyTorch kernels.
    state = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in model.state_dict().items()
    }
    with whole_file(folder / TENSORS) as temporary:
        save_file(state, temporary)
    write_json(folder / SETTINGS, description)  # written last: a folder with head.json is complete


def _read_description(path: Path) -> dict[str, Any]:
    """Parse `head.json`; `ModelError` if it is unreadable or of another format."""
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path}: cannot be read as a head's description ({error}); train it again"
        ) from error
    found = description.get("format") if isinstance(description, dict) else None
    if found != FORMAT:
        raise ModelError(
            f"{path}: is of format {found!r}, ich_mil {__version__} reads {FORMAT!r}; train "
            "the head again, or use the version that wrote it"
        )
    return description


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
    description = _read_description(path)
    try:
        width, n_inducing = int(description["n_features"]), int(description["n_inducing"])
        n_draws, given = int(description["n_draws"]), tuple(description["given"])
        names = description.get("feature_names")
        settings = HeadSettings(**description["settings"])
        values = [float(value) for value in description["kernel_values"]] if "kernel" in given else []
        stored = description["calibration"]
        calibration = None if stored is None else Calibration(**stored)
        jitter = float(description["jitter"])
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: is not the description of a head ({error}); train it again") from error
    if n_features is not None and n_features != width:
        raise ModelError(
            f"{path}: the head was trained on {width} features a slice, these have {n_features}; use the "
            "features of the network it was trained with, or train the head again"
        )
    if ("kernel" in given) != (kernel is not None):
        asked = "with a kernel object of its own: load it with kernel=" if kernel is None else "without one"
        raise ModelError(f"{path}: the head was fitted {asked}")
    described, path = path, folder / TENSORS
    try:
        state = load_file(path)
        zeros = torch.zeros(width, dtype=torch.float64)
        model = SparseGP(
            zeros.expand(n_inducing, -1),
            zeros,
            torch.ones_like(zeros),
            settings,
            kernel=copy.deepcopy(kernel),
        )
        if n_draws:
            model.draws = zeros.new_empty(n_draws, n_inducing)
        model.load_state_dict(state)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ModelError(
            f"{path}: does not hold the head that {SETTINGS} beside it describes ({error}); train it again"
        ) from error
    if kernel is not None and not np.allclose(_kernel_values(model), values, rtol=1e-6):
        raise ModelError(f"{described}: the head was fitted with a kernel unlike kernel=; give one like it")
    held = {"x_mean": model.x_mean, "x_std": model.x_std, "m": model.q_mean, "S": model.q_root}
    held |= {"Z": model.inducing, **dict(model.covar_module.named_parameters())}
    held |= {} if model.draws is None else {"draws": model.draws}
    bad = [name for name, value in held.items() if not bool(value.isfinite().all())]
    if bad:
        raise ModelError(f"{path}: {', '.join(bad)} holds NaN or infinite values; train the head again")
    model.variational_strategy.jitter_val = jitter
    model.calibration, model.given, model.feature_names = calibration, given, names and tuple(names)
    return model.eval()
