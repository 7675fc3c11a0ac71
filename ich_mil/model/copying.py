"""Copy of a trained model, without features and results."""

from pathlib import Path

from ich_mil.files import copy_files
from ich_mil.model.folder import MODEL_FILES


def copy_run(run: Path, to: Path) -> None:
    """Copy the model of a finished run; the last file, `head.json`, marks the copy as finished."""
    copy_files(run, to, *MODEL_FILES)
