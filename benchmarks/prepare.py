"""Speed and memory of the preparation of DICOM files.

    python -m benchmarks.prepare speed [--root RSNA_FOLDER] [--studies 16] [--rounds 5] [--write]
    python -m benchmarks.prepare scale [--scans 100 1000 10000] [--write]

`speed`: slices per second on one core, by methods that run in turn in one process:

* (a) plain code: `pydicom.dcmread`, rescale in float64 and three windows by `np.clip`;
* (b) pydicom's pixel read alone, the lower bound of the time;
* ours, the whole of `prepare`: headers, pixels, HU, order, anatomy, ledger, write and fsync;
* ours plus the three windows of every slice; ours with one worker per core.

Files are in the page cache. Without `--root` phantom studies of 512 x 512 pixels are written.

`scale`: hard-linked copies of a few small phantom studies, one process per size. Reports peak memory of the
main process and of the largest worker, and seconds of the first run and of a second run without changes.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
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

from benchmarks.record import command_line, record, seconds, table
from ich_mil.data.preparation.prepare import prepare
from ich_mil.synthetic.data_sets import write_cq500, write_rsna
from ich_mil.window_presets import PRESETS
from ich_mil.windows import apply_windows

WINDOWS = PRESETS["winners"]
COPIED = 5
"""Number of phantom studies to copy by hard links."""
# a separate program that imports prepare only: the process of the benchmark also holds torch
_ONCE = """
import sys, time
from pathlib import Path
import psutil
from ich_mil.data.preparation.prepare import prepare
started = time.perf_counter()
prepare("cq500", Path(sys.argv[1]), Path(sys.argv[2]), jobs=int(sys.argv[3]))
seconds = time.perf_counter() - started
def peak(process):
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
own = psutil.Process()
print(seconds, peak(own), max(map(peak, own.children(recursive=True)), default=0))
"""


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


def link_copies(root: Path, n_scans: int) -> None:
    """Write a CQ500 layout of `n_scans` scans, as hard links to the files of a few phantom studies."""
    base = root.parent / "base"
    write_cq500(base, n_studies=COPIED, seed=0, size=64)
    studies = sorted(base.glob("CQ500CT*"))
    votes = (base / "reads.csv").read_text().splitlines()
    rest = [line.split(",", 1)[1] for line in votes[1:]]
    lines = votes[:1]
    for i in range(n_scans):
        every = (studies[i % len(studies)] / "Unknown Study").iterdir()
        series = min(every, key=lambda one: len(list(one.iterdir())))
        place = root / f"CQ500CT{i} CQ500CT{i}" / "Unknown Study" / series.name
        shutil.copytree(series, place, copy_function=os.link)
        lines.append(f"CQ500-CT-{i},{rest[i % len(rest)]}")
    (root / "reads.csv").write_text("\n".join(lines) + "\n")


def scale(arguments: argparse.Namespace) -> None:
    """Measure and record memory and seconds of first and second runs."""
    rows = []
    for n_scans in arguments.scans:
        with tempfile.TemporaryDirectory() as folder:
            root, out = Path(folder) / "set", Path(folder) / "out"
            root.mkdir()
            link_copies(root, n_scans)
            n_files = sum(len(names) for _, _, names in os.walk(root)) - 1
            first, second = (_measure_run(root, out) for _ in range(2))
        sizes = [f"{peak / 1024:.0f}" for peak in (first[1], first[2], second[1])]
        rows.append((n_scans, n_files, f"{first[0]:.1f}", *sizes[:2], f"{second[0]:.1f}", sizes[2]))
        print(rows[-1], flush=True)
    head = ("scans", "files", "first run, s", "peak MB", "of a worker", "second run, s", "peak MB")
    record("Preparing: scale", table(head, rows))


def _measure_run(root: Path, out: Path) -> list[float]:
    """Seconds of a run, peak kilobytes of its process, and peak kilobytes of its largest worker."""
    words = [sys.executable, "-c", _ONCE, str(root), str(out), str(cpu_count())]
    told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return [float(word) for word in told.splitlines()[-1].split()]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("part", choices=["speed", "scale"])
    parser.add_argument("--root", type=Path)
    parser.add_argument("--studies", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scans", type=int, nargs="+", default=[100, 1000, 10_000])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with disable_value_validation():
        {"speed": speed, "scale": scale}[arguments.part](arguments)


if __name__ == "__main__":
    main()
