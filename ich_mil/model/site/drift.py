"""Reference scans of the drift alarm (`ich_mil.evaluate.deployment.drift`), stored with a run.

The reference is written at the end of training, as `reference.safetensors` in the folder of the run. It holds
feature summaries of scans that the network was not trained on, and the network's probabilities of these
scans, which serve as scores. An ensemble is represented by its first member.
"""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from ich_mil.errors import ModelError
from ich_mil.evaluate.deployment.drift import LEAST_BATCH, DriftAlarm, column_names, summarise
from ich_mil.files import whole_file
from ich_mil.model.folder import REFERENCE
from ich_mil.model_files import read_tensors
from ich_mil.sets.features import FeatureSet

FORMAT = "ich_mil.drift_reference.1"


def columns_of(features: FeatureSet) -> tuple[np.ndarray, np.ndarray]:
    """Feature summaries (B, 2D + 1) and scores (B,) of scans."""
    return summarise(features.x.numpy(), features.offsets.numpy()), features.cnn_scan.double().numpy()


def write_reference(features: FeatureSet, folder: Path) -> None:
    """Write reference scans, unseen by the network; fewer than `LEAST_BATCH` scans are not written."""
    if features.n_scans < LEAST_BATCH:
        return
    table, score = columns_of(features)
    arrays = {"table": table, "score": score, "patient": np.unique(features.patients, return_inverse=True)[1]}
    with whole_file(folder / REFERENCE) as temporary:
        save_file(arrays, temporary, metadata={"format": FORMAT})


def read_reference(folder: Path, *, rate: float, seed: int) -> DriftAlarm:
    """Fit the drift alarm to the reference scans of a run, with the false-alarm rate `rate`.

    Raises:
        ModelError: the run has no reference scans, or their file is damaged.
    """
    path = folder / REFERENCE
    if not path.is_file():
        raise ModelError(
            f"{folder}: keeps no reference scans: fewer than {LEAST_BATCH} scans of several slices are new "
            "to its network, or it has none; hold out more with split, or train with --from headct-base"
        )
    tensors, metadata = read_tensors(path)
    if metadata.get("format") != FORMAT:
        raise ModelError(f"{path}: is of another version; train again")
    table, score, patient = (tensors[name].numpy() for name in ("table", "score", "patient"))
    names = column_names((table.shape[1] - 1) // 2)
    return DriftAlarm.fit(table, score, patient, names=names, rate=rate, seed=seed)
