"""Initial weights of an encoder: loaded from a file, an installed package or the Hugging Face hub.

No code is unpickled. Tensors are matched by name, or by their order if the file is from another library with
other names.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ich_mil.errors import ModelError

ENDS = (".safetensors", ".pth", ".pt", ".bin")
"""Suffixes of weight files."""
CLASSIFIER = 2
"""Number of tensors of a classifier (weight and bias) that a file may have in addition to the encoder."""


def load_weights(model: nn.Module, name: str) -> None:
    """Load the weights `name` (`EncoderSettings.weights`) into `model`, with or without its classifier.

    Raises:
        ModelError: no such file, package or repository, a failed download, or weights of another
            architecture.
    """
    expected, given = _parameters(model.state_dict()), _parameters(_read(name))
    extra = len(given) - len(expected)
    if not expected.keys() <= given.keys():
        given = dict(zip(expected, given.values(), strict=False))
    wrong = [key for key in expected if key not in given or given[key].shape != expected[key].shape]
    if wrong or extra > CLASSIFIER:
        reason = (
            f"{wrong[0]} is missing or of another shape" if wrong else f"it holds {extra} tensors too many"
        )
        raise ModelError(
            f"{name}: is no state dict of the encoder as configured ({reason}); name weights of this "
            "encoder, or leave encoder.weights empty"
        )
    model.load_state_dict({**model.state_dict(), **{key: given[key] for key in expected}})


def adapt_channels(
    state: Mapping[str, Tensor], first: str | tuple[str, ...] | None, channels: int
) -> dict[str, Tensor]:
    """Convert the state dict of a network for three input channels to `channels` input channels.

    The weights of the layers `first` are repeated over the channels and scaled, as in timm.
    """
    from timm.models import adapt_input_conv

    keys = {f"{layer}.weight" for layer in ((first,) if isinstance(first, str) else first or ())}
    return {k: adapt_input_conv(channels, v) if k in keys else v for k, v in state.items()}


def _parameters(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")}


def _read(name: str) -> dict[str, Tensor]:
    """Read a state dict from a file, a package or the hub. `ModelError` if there is none."""
    from safetensors.torch import load_file

    file = Path(name).expanduser()
    path = file if file.is_file() else None if file.suffix in ENDS else _in_package(name)
    if path is None and file.suffix not in ENDS and name.count("/") == 1:
        return _from_hub(name)
    if path is None:
        raise ModelError(
            f"{name}: no such weight file, nor an installed package or a hub repository owner/name; correct "
            "encoder.weights"
        )
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, weights_only=True, map_location="cpu")  # may be saved from a GPU
        return {str(key): value for key, value in state.items() if isinstance(value, Tensor)}
    except Exception as error:  # torch has no exception class for files that hold no state dict
        raise ModelError(
            f"{path}: cannot be read as weights; name a safetensors file, or a state dict that torch loads "
            "with weights_only=True"
        ) from error


def _in_package(name: str) -> Path | None:
    """Path of the only weight file in an installed package; None if there is no such package."""
    module = name.replace("-", "_")
    spec = importlib.util.find_spec(module) if module.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        return None
    folders = map(Path, spec.submodule_search_locations)
    files = [file for folder in folders for file in folder.rglob("*") if file.suffix in ENDS]
    if len(files) != 1:
        raise ModelError(
            f"{name}: the package holds {len(files)} weight files, one is needed; name the file itself"
        )
    return files[0]


def _from_hub(name: str) -> dict[str, Tensor]:
    from timm.models import load_state_dict_from_hf

    try:
        state: dict[str, Tensor] = load_state_dict_from_hf(name, weights_only=True)
    except Exception as error:  # the hub client raises many exception classes
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(
            f"{name}: is no file or installed package, and cannot be fetched from the Hugging Face hub "
            f"({reason:.200}); download the weights where there is a network and name the file"
        ) from error
    return state
