"""Copy of a trained model, without features and results."""

from pathlib import Path

from ich_mil.evaluate.baselines import CNN_SIGMOID
from ich_mil.evaluate.deployment.out_of_distribution import LIKENESS
from ich_mil.files import copy_files
from ich_mil.runs.folder import REFERENCE


def copy_run(run: Path, to: Path) -> None:
    """Copy the model of a finished run; the last file, `head.json`, marks the copy as finished."""
    names = [
        "config.yaml",
        "splits.csv",
        "cnn.json",
        "cnn.safetensors",
        CNN_SIGMOID,
        "head_fit.json",
        LIKENESS,
    ]
    copy_files(run, to, *names, REFERENCE, "run.json", "head.safetensors", "head.json")
