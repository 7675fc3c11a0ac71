"""Write a finished run as the bundled model: model files only, large network weights in half precision.

    python -m research.benchmarks.headct.bundle checkpoints/headct_base checkpoints/headct-base

In: a finished run or ensemble. Out: a folder for `load_model`. Both models predict some of the run's own
scans. The largest differences of scan and slice probabilities are printed; above `MOST` the command fails.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file, save_file

from ich_mil.config import read_config
from ich_mil.files import copy_files
from ich_mil.model.copying import copy_run
from ich_mil.model.folder import ENSEMBLE
from ich_mil.model.model import TrainedModel
from ich_mil.model.storage import load_model
from ich_mil.model.training.training_sets import open_training
from ich_mil.network.frozen import extract_features
from ich_mil.sets.views import Views

MOST = 5e-3
"""Largest allowed difference of a probability between half and single precision."""
SINGLE = 8192
"""Largest number of values of a tensor kept in single precision: batch norms and the first layers, whose
rounding errors propagate through all later layers."""
SCANS = 10
"""Number of scans with several slices for the comparison."""


def write_bundle(run: Path, out: Path) -> None:
    """Copy the model of `run` to `out`, with the networks' weights as float16."""
    model = load_model(run)
    if len(model.members) > 1:
        copy_files(run, out, "config.yaml", "splits.csv", "run.json", "cnn_sigmoid.json")
    for member in model.members:
        to = out if member.folder == run else out / member.folder.name
        copy_run(member.folder, to)
        if to != out:
            (to / "splits.csv").unlink()  # the ensemble has its own
        weights = load_file(to / "cnn.safetensors")
        half = {k: v.half() if v.numel() > SINGLE else v for k, v in weights.items()}
        save_file(half, to / "cnn.safetensors")
    copy_files(run, out, ENSEMBLE)


def difference(one: TrainedModel, other: TrainedModel) -> tuple[float, float]:
    """Largest differences of scan and slice probabilities on some scans of the run `one`."""
    config = replace(read_config(["--config", str(one.folder / "config.yaml")]), out=one.folder)
    prepared = open_training(config)
    scans = list(prepared.scans.index[prepared.scans.slices > 1][:SCANS])
    found = []
    for model in (one, other):
        views = [extract_features(member.cnn, prepared, scans) for member in model.members if member.cnn]
        found.append(model.predict(Views.of(views)))
    first, second = found
    return (
        float((first.scan_mean - second.scan_mean).abs().max()),
        float((first.slice_mean - second.slice_mean).abs().max()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    chosen = parser.parse_args()
    write_bundle(chosen.run, chosen.out)
    size = sum(path.stat().st_size for path in chosen.out.rglob("*") if path.is_file()) / 2**20
    scan, slices = difference(load_model(chosen.run), load_model(chosen.out))
    print(
        f"{chosen.out}: {size:.1f} MB; half precision moves a scan by up to {scan:.1e}, a slice {slices:.1e}"
    )
    if max(scan, slices) > MOST:
        raise SystemExit(f"more than {MOST:g}: keep the weights in single precision")


if __name__ == "__main__":
    main()
