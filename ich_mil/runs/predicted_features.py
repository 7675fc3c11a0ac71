"""Features of predicted scans, for commands that go on from a folder of `predict` or `validate`."""

from pathlib import Path

from ich_mil.data.features import read_features
from ich_mil.data.views import Views
from ich_mil.errors import DataError
from ich_mil.runs.model import TrainedModel
from ich_mil.runs.predictions import read_results


def predicted_views(folder: Path, model: TrainedModel) -> Views:
    """Features by each member of a model, of the scans it has predicted.

    Args:
        folder: folder of `predict` or `validate`.
        model: the model of the predictions.

    Raises:
        DataError: predictions of another model, or predictions or features that cannot be read.
    """
    if read_results(folder).model.weights != model.provenance.weights:
        raise DataError(f"{folder}: was predicted by another model than {model.folder}; predict again")
    names = ["features", *(f"features_{k}" for k in range(1, len(model.members)))]
    paths = [folder / f"{name}.safetensors" for name in names]
    return Views.of([read_features(path) for path in paths], paths)
