"""Files of a trained model: regular files, finite numbers, and fields of the right types.

In: a JSON or safetensors file, which may be damaged or hostile. Out: its content; `record` checks its fields
against the dataclass that describes them. Neither format can execute code.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ich_mil.errors import ModelError
from ich_mil.files import whole_file
from ich_mil.settings import build

if TYPE_CHECKING:
    from torch import Tensor

C = TypeVar("C")
JSON_BYTES, TENSOR_BYTES = 2**24, 2**33
"""Largest JSON and safetensors files that are read."""


def check_regular(path: Path, most: int = TENSOR_BYTES) -> None:
    """Raise `ModelError` unless `path` is a regular file, or a link to one, of at most `most` bytes."""
    if not path.is_file():  # reading a pipe or device may never end
        reason = "it is no regular file" if os.path.lexists(path) else "it does not exist"
    elif path.stat().st_size > most:
        reason = f"it has more than {most:,} bytes"
    else:
        return
    raise ModelError(f"{path}: cannot be read ({reason}); train again, or name another model")


def read_json(path: Path, form: str | None = None) -> dict[str, Any]:
    """Read a JSON object; `form` is its required `format`. `ModelError`: not such an object, or damaged."""
    check_regular(path, JSON_BYTES)
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read ({error}); train again") from error
    version = content.get("format")
    if form not in (None, version):
        raise ModelError(f"{path}: is of another version ({version!r:.40}, this one: {form}); train again")
    return content


def parse_json(text: str) -> Any:
    """Parse JSON. `ValueError` for NaN, numbers beyond float64, and too deep a nesting."""
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text:.20} is no finite number")
    return value


def read_tensors(path: Path, *, finite: bool = True) -> tuple[dict[str, "Tensor"], dict[str, str]]:
    """Read tensors and metadata of a safetensors file.

    Raises:
        ModelError: a file that is missing, damaged or of another kind; with `finite`, NaN or infinite values.
    """
    from safetensors import SafetensorError, safe_open

    check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping
        # bounds of parameters are infinite where GPyTorch sets none; `load_head` compares them
        bad = [n for n, t in tensors.items() if not n.endswith("_bound") and not bool(t.isfinite().all())]
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{path}: cannot be read ({error}); train again") from error
    if bad and finite:
        raise ModelError(f"{path}: {', '.join(bad)} holds NaN or infinite values; train again")
    return tensors, metadata


def write_tensors(
    path: Path, tensors: Mapping[str, "Tensor"], metadata: dict[str, str] | None = None
) -> None:
    """Write tensors and metadata as a whole safetensors file."""
    import torch
    from safetensors.torch import save_file

    # cloned: safetensors refuses tensors that share memory, such as `active_dims` of GPyTorch kernels
    form = torch.contiguous_format
    plain = {name: value.detach().cpu().clone(memory_format=form) for name, value in tensors.items()}
    with whole_file(path) as temporary:
        save_file(plain, temporary, metadata)


def record(kind: type[C], values: Mapping[str, Any], path: Path) -> C:
    """Build the dataclass `kind` from the JSON values of the file `path` (`settings.build`).

    Raises:
        ModelError: a field is missing, unknown, of another type, or refused by its dataclass.
    """
    try:
        return build(kind, values)
    except ValueError as error:
        raise ModelError(f"{path}: cannot be read ({error}); train again") from error
