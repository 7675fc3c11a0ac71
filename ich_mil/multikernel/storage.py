"""Fitted models and checkpoints of chains as safetensors files: tensors and JSON, nothing executable."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ich_mil import __version__
from ich_mil.errors import ModelError
from ich_mil.files import whole_file
from ich_mil.model_files import check_regular, parse_json


def write(path: Path, kind: str, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Write tensors and their description, whole or not at all."""
    words = {"kind": kind, "ich_mil": __version__, "description": json.dumps(description)}
    # copies: safetensors refuses tensors that share memory
    plain = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    with whole_file(path) as temporary:
        save_file(plain, temporary, metadata=words)


def read(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write` wrote.

    Raises:
        ModelError: the file is missing, damaged, or of another kind.
    """
    check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            words = file.metadata() or {}
            found = words.get("kind")
            if found != kind:
                raise ModelError(f"{path}: is of kind {found!r}, expected {kind!r}")
            description = parse_json(words["description"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read ({error})") from error
    return tensors, description
