"""A fitted model on disk: tensors in safetensors and a description in JSON, nothing that runs code.

In: posterior, standardisation and parameters of `MultimodalMIL`. Out: tensors and a description that a file
pair holds; and back, to the bit.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ich_mil import __version__
from ich_mil.errors import ModelError
from ich_mil.files import whole_file, write_json
from ich_mil.multimodal.inputs import Scaling
from ich_mil.multimodal.posterior import Posterior


class Stored(NamedTuple):
    """Content of a file pair: tensors by name, and the description."""

    tensors: dict[str, Tensor]
    about: dict[str, Any]


def write_pair(folder: Path, name: str, stored: Stored, form: str) -> None:
    """Write `name`.safetensors and `name`.json of format `form` to `folder`, which is created if missing."""
    with whole_file(folder / f"{name}.safetensors") as temporary:
        save_file({key: one.detach().cpu().contiguous() for key, one in stored.tensors.items()}, temporary)
    about = {"format": form, "ich_mil": __version__, **stored.about}
    write_json(folder / f"{name}.json", about)  # last: a folder with a description holds a whole model


def read_pair(folder: Path, name: str, form: str) -> Stored:
    """Read what `write_pair` wrote.

    Raises:
        ModelError: a file is missing, damaged or of another format.
    """
    path = folder / f"{name}.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        found = about.get("format") if isinstance(about, dict) else None
        if found != form:
            raise ModelError(f"{path}: is of format {found!r}, this version reads {form!r}; fit it again")
        path = folder / f"{name}.safetensors"
        tensors = load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(f"{path}: cannot be read as a part of a model ({error}); fit it again") from error
    bad = [key for key, one in tensors.items() if not bool(torch.isfinite(one).all())]
    if bad:
        raise ModelError(f"{path}: {', '.join(bad)} holds NaN or infinite values; fit the model again")
    return Stored(tensors, about)


def stored_model(posterior: Posterior, scalings: Sequence[Scaling], parameters: dict[str, Any]) -> Stored:
    """Tensors and description of a model."""
    tensors = {"outer": posterior.outer, "summary": posterior.summary}
    for m, (inner, scaling) in enumerate(zip(posterior.inner, scalings, strict=True)):
        tensors |= {f"inner.{m}": inner, f"mean.{m}": scaling.mean, f"deviation.{m}": scaling.deviation}
    names = [None if one.names is None else list(one.names) for one in scalings]
    return Stored(tensors, {"names": names, "parameters": parameters})


def model_parts(
    stored: Stored, parameters: Sequence[str], where: Path
) -> tuple[Posterior, list[Scaling], dict[str, Any]]:
    """Posterior, standardisation and the named parameters of `stored_model`.

    Raises:
        ModelError: a part is missing; the message names `where`.
    """
    tensors, about = stored
    try:
        settings = {name: about["parameters"][name] for name in parameters}
        names = [None if one is None else tuple(map(str, one)) for one in about["names"]]
        inner = [tensors[f"inner.{m}"] for m in range(len(names))]
        scalings = [
            Scaling(tensors[f"mean.{m}"], tensors[f"deviation.{m}"], one) for m, one in enumerate(names)
        ]
        return Posterior(inner, tensors["outer"], tensors["summary"]), scalings, settings
    except (KeyError, TypeError) as error:
        raise ModelError(
            f"{where}: does not hold a whole model ({error} is missing); fit it again"
        ) from error
