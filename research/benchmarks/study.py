"""Time of a prediction from DICOM files to all outputs, for one study.

    python -m research.benchmarks.study [--rounds 5] [--write]

`ich-mil predict --dicom` runs on a synthetic study of 40 slices of 512 x 512 pixels, each time in a new
process and a new folder: reading, the default CNN at 256 x 256, the head (M = 100, 1,000 samples), heatmaps
of 8 slices, page, worklist, and all DICOM results. The CNN is trained for one epoch on 16 studies, since
timing does not depend on its weights.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from pydicom.uid import CTImageStorage, generate_uid

from ich_mil.cli import train_main
from ich_mil.output.prediction import predict_folder
from ich_mil.output.study_pages import Shown, show_folder
from ich_mil.phantoms.data_sets import SITE_A, make_phantom, write_rsna
from ich_mil.phantoms.encoding import ENCODINGS, make_image, save_image
from ich_mil.prediction import load_model
from research.benchmarks.record import command_line, record, seconds, spread, table

SLICES, SIZE = 40, 512
BAR_S, BAR_MB = 20, 5


def write_study(folder: Path) -> None:
    """Write a positive study in the form of a scanner's export."""
    phantom = make_phantom(
        np.random.default_rng(0), bleeds=["subdural"], site=SITE_A, size=SIZE, n_slices=SLICES
    )
    folder.mkdir()
    study, series, frame = (generate_uid(entropy_srcs=["benchmark", name]) for name in "abc")
    for n in range(SLICES):
        sop = generate_uid(entropy_srcs=["benchmark", str(n)])
        image = make_image(phantom, n, ENCODINGS[1], sop=sop, study=study, series=series)
        image.SOPClassUID, image.InstanceNumber = CTImageStorage, n + 1
        image.file_meta.MediaStorageSOPInstanceUID = sop
        image.PatientID, image.StudyID, image.FrameOfReferenceUID = "BENCHMARK", "", frame
        save_image(image, folder / f"CT{n:06d}.dcm")


def train(folder: Path) -> Path:
    """Train a run with the default CNN at 256 x 256; its folder."""
    write_rsna(folder / "site", n_studies=16, seed=0, size=64)
    config = folder / "config.yaml"
    config.write_text(
        f"out: {folder / 'run'}\nprepared: {folder / 'prepared'}\n"
        f"train: {{layout: rsna, root: {folder / 'site'}}}\nsplit: {{validation: 0.25}}\n"
        "encoder: {size: 256}\ntraining: {max_epochs: 1}\nhead: {density: gamma}\n"
    )
    assert train_main(["--config", str(config)]) == 0
    return folder / "run"


def stages(root: Path, model: Path, out: Path) -> list[tuple[str, float]]:
    """Seconds of each stage within one process, without imports."""
    times = [perf_counter()]
    trained = load_model(model)
    times.append(perf_counter())
    predict_folder(trained, root, out, shown=Shown())
    times.append(perf_counter())
    for shown in (Shown(), Shown(dicom=True)):
        show_folder(out, shown)
        times.append(perf_counter())
    names = (
        "load the model",
        "read, CNN, head, heatmaps, page",
        "page again",
        "page again, with DICOM results",
    )
    return list(zip(names, np.diff(times).tolist(), strict=True))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_study(folder / "study")
        run = train(folder)
        program = [str(Path(sys.executable).with_name("ich-mil")), "predict", f"{folder / 'study'}"]
        program += ["--model", str(run), "--dicom"]
        outs = iter(folder / f"out{k}" for k in range(chosen.rounds))
        whole = seconds(
            lambda: subprocess.run([*program, "--out", next(outs)], check=True, stdout=subprocess.DEVNULL),
            rounds=chosen.rounds,
        )
        parts = stages(folder / "study", run, folder / "stages")
        page = next((folder / "out0").glob("scan-*.html")).stat().st_size / 1e6
        objects = sorted((folder / "out0" / "dicom").rglob("*.dcm"))
        size = sum(path.stat().st_size for path in objects) / 1e6
    rows = [
        ["whole command, new process", spread(whole), f"≤ {BAR_S} s"],
        *([f"in one process: {what}", f"{taken:.2f} s", ""] for what, taken in parts),
        ["study page", f"{page:.2f} MB", f"< {BAR_MB} MB"],
        ["DICOM results", f"{len(objects)} objects, {size:.1f} MB", ""],
    ]
    text = table(["", f"{torch.get_num_threads()} threads", "bar"], rows)
    record(f"One study of {SLICES} slices to all outputs", text)


if __name__ == "__main__":
    main()
