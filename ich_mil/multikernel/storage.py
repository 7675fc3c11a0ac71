"""Fitted models and checkpoints of chains as safetensors files: tensors and JSON, nothing executable."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from ich_mil import __version__
from ich_mil.errors import ModelError
from ich_mil.model_files import parse_json, read_tensors, write_tensors


def write(path: Path, kind: str, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Write tensors and their description, whole or not at all."""
    words = {"kind": kind, "ich_mil": __version__, "description": json.dumps(description)}
    write_tensors(path, tensors, words)


def read(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write` wrote. `ModelError`: the file is missing, damaged, or of another kind."""
    tensors, metadata = read_tensors(path, finite=False)  # levels of chains start at -inf
    if (stored := metadata.get("kind")) != kind:
        raise ModelError(f"{path}: is of kind {stored!r}, expected {kind!r}")
    try:
        return tensors, parse_json(metadata["description"])
    except (KeyError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read ({error})") from error
