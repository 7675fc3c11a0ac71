"""Speed and memory of the preparation of DICOM files.

    python -m research.benchmarks.prepare [--root RSNA_FOLDER] [--studies 16] [--rounds 5] [--write]

Slices per second on one core, by methods that run in turn in one process:

* (a) plain code: `pydicom.dcmread`, rescale in float64 and three windows by `np.clip`;
* (b) pydicom's pixel read alone, the lower bound of the time;
* ours, the whole of `prepare`: headers, pixels, HU, order, anatomy, ledger, write and fsync;
* ours plus the three windows of every slice; ours with one worker per core.

Files are in the page cache. Without `--root` phantom studies of 512 x 512 pixels are written.
"""

import argparse
import statistics
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from joblib import cpu_count
from pydicom import dcmread
from pydicom.config import disable_value_validation
from pydicom.pixels import pixel_array

from ich_mil.network.windows import apply_windows
from ich_mil.phantoms.data_sets import write_rsna
from ich_mil.sets.preparation.prepare import prepare
from ich_mil.study.window_presets import PRESETS
from research.benchmarks.record import command_line, record, seconds, table

WINDOWS = PRESETS["winners"]


def plain(path: Path) -> list[np.ndarray]:
    """Read a slice by method (a), the code of most scripts: float64 HU, three windows."""
    ds = dcmread(path)
    hu = ds.pixel_array.astype(np.float64) * float(ds.RescaleSlope) + float(ds.RescaleIntercept)
    return [
        (np.clip(hu, level - width / 2, level + width / 2) - (level - width / 2)) / width
        for level, width in WINDOWS
    ]


def ours(root: Path, jobs: int, *, windows: bool) -> None:
    """`prepare` into a new folder; with `windows` also windows of every slice."""
    with tempfile.TemporaryDirectory(dir=root.parent) as out:
        prepared = prepare("rsna", root, Path(out) / "set", jobs=jobs)
        if windows:
            for scan in prepared.scans.index:
                for hu in prepared.hu(scan):
                    apply_windows(torch.from_numpy(hu[None].copy()), WINDOWS)


def each(work: Callable[[Path], object], paths: list[Path]) -> None:
    """Call `work` on all files."""
    for path in paths:
        work(path)


def speed(arguments: argparse.Namespace) -> None:
    """Measure and record milliseconds per slice."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = arguments.root
        if root is None:
            root = Path(folder) / "set"
            write_rsna(root, n_studies=arguments.studies, seed=0, size=512)
        paths = sorted((root / "stage_2_train").iterdir())
        ways = {
            "(a) plain": lambda: each(plain, paths),
            "(b) pydicom pixel read": lambda: each(pixel_array, paths),
            "ours": lambda: ours(root, 1, windows=False),
            "ours and three windows": lambda: ours(root, 1, windows=True),
            f"ours, {cpu_count()} workers": lambda: ours(root, cpu_count(), windows=False),
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for round_ in range(arguments.rounds + 1):
            for name, work in ways.items():
                (took,) = seconds(work, rounds=1)
                if round_:  # the first round is the warm-up
                    taken[name].append(took / len(paths))
    medians = {name: statistics.median(values) for name, values in taken.items()}
    rows = [
        (
            name,
            f"{1e3 * medians[name]:.2f} ({1e3 * min(values):.2f}-{1e3 * max(values):.2f})",
            f"{1 / medians[name]:.0f}",
            f"{medians['(a) plain'] / medians[name]:.1f} x",
            f"{100 * medians['(b) pydicom pixel read'] / medians[name]:.0f} %",
        )
        for name, values in taken.items()
    ]
    text = f"{len(paths)} slices of {root if arguments.root else 'phantoms'}, {arguments.rounds} rounds.\n\n"
    text += table(("way", "ms a slice", "slices a second", "against (a)", "of (b)"), rows)
    record("Preparing: speed", text)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--studies", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with disable_value_validation():
        speed(arguments)


if __name__ == "__main__":
    main()
