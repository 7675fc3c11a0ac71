"""A fitted model on disk: tensors in safetensors and a description in JSON, nothing that runs code.

In: posterior, standardisation and parameters of `MultimodalMIL`. Out: tensors and a description that a file
pair holds; and back, to the bit.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ich_mil import __version__
from ich_mil.errors import ConfigError, ModelError
from ich_mil.files import write_json
from ich_mil.model_files import read_json, read_tensors, write_tensors
from ich_mil.multimodal.inputs import Scaling
from ich_mil.multimodal.layout import Columns
from ich_mil.multimodal.posterior import Posterior
from ich_mil.multimodal.settings import check_parameters


class Stored(NamedTuple):
    """Content of a file pair: tensors by name, and the description."""

    tensors: dict[str, Tensor]
    metadata: dict[str, Any]


def write_pair(folder: Path, name: str, stored: Stored, form: str) -> None:
    """Write `name`.safetensors and `name`.json of format `form` to `folder`, which is created if missing."""
    write_tensors(folder / f"{name}.safetensors", stored.tensors)
    metadata = {"format": form, "ich_mil": __version__, **stored.metadata}
    write_json(folder / f"{name}.json", metadata)  # last: a folder with a description holds a whole model


def read_pair(folder: Path, name: str, form: str) -> Stored:
    """Read what `write_pair` wrote. `ModelError`: a file is missing, damaged or of another format."""
    metadata = read_json(folder / f"{name}.json", form)
    return Stored(read_tensors(folder / f"{name}.safetensors")[0], metadata)


def stored_model(posterior: Posterior, scalings: Sequence[Scaling], parameters: dict[str, Any]) -> Stored:
    """Tensors and description of a model."""
    tensors = {"outer": posterior.outer, "summary": posterior.summary}
    for m, (inner, scaling) in enumerate(zip(posterior.inner, scalings, strict=True)):
        tensors |= {f"inner.{m}": inner, f"mean.{m}": scaling.mean, f"deviation.{m}": scaling.deviation}
    names = [None if scaling.names is None else list(scaling.names) for scaling in scalings]
    return Stored(tensors, {"names": names, "parameters": parameters})


def model_parts(
    stored: Stored, parameters: Sequence[str], where: Path
) -> tuple[Posterior, list[Scaling], dict[str, Any]]:
    """Posterior, standardisation and the named parameters of `stored_model`.

    `ModelError`, naming `where`: a part is missing or of a wrong shape.
    """
    tensors, metadata = stored
    try:
        settings = {name: metadata["parameters"][name] for name in parameters}
        names = [None if columns is None else tuple(map(str, columns)) for columns in metadata["names"]]
        inner = [tensors[f"inner.{m}"] for m in range(len(names))]
        scalings = [
            Scaling(tensors[f"mean.{m}"], tensors[f"deviation.{m}"], names[m]) for m in range(len(names))
        ]
        posterior = Posterior(inner, tensors["outer"], tensors["summary"])
        check_parameters(settings)
        widths = [int(scaling.varies.sum()) for scaling in scalings]
        size, draws = Columns.of(widths).size, len(posterior.outer)
        shapes: list[tuple[int, ...]] = [*((draws, 1 + width) for width in widths), (draws, size)]
        shapes += [(sum(widths) + len(widths) + size, 4), *((len(scaling.mean),) for scaling in scalings)]
        checked = (*inner, posterior.outer, posterior.summary, *(scaling.deviation for scaling in scalings))
        if not inner or [tuple(tensor.shape) for tensor in checked] != shapes:
            raise ConfigError("its tensors are of shapes that do not belong together")
        return posterior, scalings, settings
    except ConfigError as error:
        raise ModelError(f"{where}: {error}; fit it again") from error
    except (KeyError, TypeError) as error:
        raise ModelError(
            f"{where}: does not hold a whole model ({error} is missing); fit it again"
        ) from error
