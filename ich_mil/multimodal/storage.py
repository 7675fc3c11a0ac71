"""A fitted model on disk: `multimodal.safetensors` (tensors) and `multimodal.json`, nothing that runs code.

In: posterior, standardisation and parameters of `MultimodalMIL`. Out: a folder; and back, to the bit.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ich_mil import __version__
from ich_mil.errors import ModelError
from ich_mil.files import whole_file, write_json
from ich_mil.multimodal.inputs import Scaling
from ich_mil.multimodal.posterior import Posterior

FORMAT = "ich_mil.multimodal.1"
TENSORS, DESCRIPTION = "multimodal.safetensors", "multimodal.json"


def save_posterior(
    folder: Path, posterior: Posterior, scalings: Sequence[Scaling], parameters: dict[str, Any]
) -> None:
    """Write to `folder`, which is made if it is not there."""
    tensors = {"outer": posterior.outer, "summary": posterior.summary}
    for m, (inner, scaling) in enumerate(zip(posterior.inner, scalings, strict=True)):
        tensors |= {f"inner.{m}": inner, f"mean.{m}": scaling.mean, f"deviation.{m}": scaling.deviation}
    with whole_file(folder / TENSORS) as temporary:
        save_file({name: one.detach().cpu().contiguous() for name, one in tensors.items()}, temporary)
    description = {
        "format": FORMAT,
        "ich_mil": __version__,
        "names": [None if one.names is None else list(one.names) for one in scalings],
        "parameters": parameters,
    }
    write_json(folder / DESCRIPTION, description)  # last: a folder with a description holds a whole model


def load_posterior(
    folder: Path, parameters: Sequence[str]
) -> tuple[Posterior, list[Scaling], dict[str, Any]]:
    """Read what `save_posterior` wrote.

    Args:
        folder: that holds the two files.
        parameters: names that the description must have.

    Raises:
        ModelError: a file is missing, damaged or of another format.
    """
    path = folder / DESCRIPTION
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(description, dict) or description.get("format") != FORMAT:
            raise ModelError(f"{path}: is not of format {FORMAT!r}; fit the model again")
        settings = {name: description["parameters"][name] for name in parameters}
        names = [None if one is None else tuple(map(str, one)) for one in description["names"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{path}: cannot be read as the description of a model ({error}); fit it again"
        ) from error
    path = folder / TENSORS
    try:
        tensors = load_file(path)
        if not all(bool(torch.isfinite(one).all()) for one in tensors.values()):
            raise ModelError(f"{path}: holds NaN or infinite values; fit the model again")
        inner = [tensors[f"inner.{m}"] for m in range(len(names))]
        scalings = [
            Scaling(tensors[f"mean.{m}"], tensors[f"deviation.{m}"], one) for m, one in enumerate(names)
        ]
        return Posterior(inner, tensors["outer"], tensors["summary"]), scalings, settings
    except (OSError, SafetensorError, KeyError) as error:
        raise ModelError(
            f"{path}: does not hold the model that {DESCRIPTION} beside it describes ({error}); fit it again"
        ) from error
