"""What RSNA 2019 whole takes: index, prepared set, features, head, by the scans given and copies of them.

    python -m research.benchmarks.rsna_size scale --root RSNA_FOLDER --folder $D --copies 1 4 16
    python -m research.benchmarks.rsna_size read --root RSNA_FOLDER --folder $D
    python -m research.benchmarks.rsna_size kills --root RSNA_FOLDER --folder $D --copies 5
    python -m research.benchmarks.rsna_size features --root RSNA_FOLDER --folder $D
    python -m research.benchmarks.rsna_size heads --folder $D --scans 1000 4000 16000

A copy has new names of patient, study, series and slices, of the same length, and the same pixels. `scale`
times index and preparation of some copies; `read` reads a prepared set back and, by pydicom and by
`read_slice`, the DICOM files; `kills` kills a preparation twice with SIGKILL, completes it, and compares its
files with those of an uninterrupted one. Seconds are of processors, of children too; the clock is that of
a shared machine.
"""

import argparse
import hashlib
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from joblib.externals.loky import get_reusable_executor
from pydicom import dcmread
from pydicom.config import disable_value_validation

from ich_mil.gp.head import Head
from ich_mil.model.storage import load_model
from ich_mil.network.frozen import extract_features
from ich_mil.sets.layouts.rsna import RsnaCollection
from ich_mil.sets.layouts.rsna_labels import COLUMNS
from ich_mil.sets.preparation.index import HeaderIndex
from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.store import PreparedSet
from ich_mil.study.files.header import read_headers
from ich_mil.study.pixels.read import read_slice
from research.benchmarks.record import command_line, record, table

SCANS, SLICES = 21_744, 752_803
NAME = re.compile(rb"ID_[0-9a-f]{8,10}")


def measured(work: Callable[[], object]) -> tuple[float, float]:
    """Wall-clock seconds and seconds of processors, of this process and its ended children."""

    def used() -> float:
        both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(one.ru_utime + one.ru_stime for one in both)

    wall, cpu = time.perf_counter(), used()
    work()
    get_reusable_executor().shutdown(wait=True)  # joblib's processes count once they have ended
    return time.perf_counter() - wall, used() - cpu


def renamed(content: bytes, copy: int) -> bytes:
    """Content with every name replaced by another of the same length; copy 0 keeps the names."""

    def new(name: re.Match[bytes]) -> bytes:
        return b"ID_" + hashlib.sha256(b"%d/%s" % (copy, name[0])).hexdigest()[: len(name[0]) - 3].encode()

    return content if copy == 0 else NAME.sub(new, content)


def write_copies(root: Path, out: Path, copies: int) -> None:
    """Write an RSNA folder with copies of the scans of `root`."""
    (out / "stage_2_train").mkdir(parents=True)
    labels = (root / "stage_2_train.csv").read_bytes().split(b"\n", 1)[1].strip() + b"\n"
    with (out / "stage_2_train.csv").open("wb") as file:
        file.write(",".join(COLUMNS).encode() + b"\n")
        for copy in range(copies):
            file.write(renamed(labels, copy))
    for path in sorted((root / "stage_2_train").iterdir()):
        content = path.read_bytes()
        for copy in range(copies):
            name = renamed(path.name.encode(), copy).decode()
            (out / "stage_2_train" / name).write_bytes(renamed(content, copy))


def size_of(folder: Path) -> int:
    """Bytes of the files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def scale(chosen: argparse.Namespace) -> None:
    """Index and preparation of growing numbers of copies."""
    rows = []
    for copies in sorted({*chosen.copies, *chosen.index_copies}):
        root, out = chosen.folder / f"copies_{copies}", chosen.folder / f"set_{copies}"
        write_copies(chosen.root, root, copies)
        n_files = sum(1 for _ in (root / "stage_2_train").iterdir())
        n_bytes = size_of(root / "stage_2_train")
        with HeaderIndex(out / "index.sqlite", RsnaCollection(root), layout="rsna", leave_out=out) as index:
            wall, cpu = measured(lambda index=index: index.update(jobs=chosen.jobs))  # type: ignore[misc]
        row = [20 * copies, n_files, f"{n_files / wall:.0f}", f"{1e3 * cpu / n_files:.2f}"]
        if copies in chosen.copies:
            wall, cpu = measured(
                lambda root=root, out=out: prepare("rsna", root, out, jobs=chosen.jobs)  # type: ignore[misc]
            )
            own = size_of(out)
            row += [f"{n_files / wall:.0f}", f"{1e3 * cpu / n_files:.1f}", f"{own / n_files / 1e3:.1f}"]
            row += [f"{n_bytes / n_files / 1e3:.1f}", f"{own / n_bytes:.3f}"]
        else:
            row += ["-"] * 5
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rows.append([*row, f"{peak:.0f}"])
        print(rows[-1], flush=True)
        shutil.rmtree(root)
        shutil.rmtree(out)
    head = ["scans", "files", "headers a second", "ms of a processor a header", "prepared files a second"]
    head += ["ms of a processor a file", "kB a file prepared", "kB a file DICOM", "ratio", "peak MiB so far"]
    record(f"The size of RSNA: index and preparation, {chosen.jobs} workers", table(head, rows))


def by_pydicom(path: Path) -> np.ndarray:
    """HU as most scripts read them."""
    ds = dcmread(path)
    return np.asarray(
        ds.pixel_array.astype(np.int16) * np.int16(ds.RescaleSlope) + np.int16(ds.RescaleIntercept)
    )


def read(chosen: argparse.Namespace) -> None:
    """Reading the prepared set back, beside decoding the DICOM files; once to fill the page cache."""
    out = chosen.folder / "set_read"
    prepared = prepare("rsna", chosen.root, out, jobs=chosen.jobs)
    scans = list(prepared.scans.index)[: chosen.scans[0]]
    paths = [chosen.root / name for scan in scans for name in prepared.slices(scan).source]
    headers = [read_headers(path)[0] for path in paths]
    ways: dict[str, Callable[[], object]] = {
        "prepared set": lambda: [prepared.hu(scan) for scan in scans],
        "pydicom, rescaled": lambda: [by_pydicom(path) for path in paths],
        "`read_slice`, headers known": lambda: [read_slice(header) for header in headers],
    }
    rows = []
    for name, work in ways.items():
        taken = [measured(work) for _ in range(1 + chosen.rounds)][1:]
        wall, cpu = (sorted(1e3 * one[k] / len(paths) for one in taken) for k in (0, 1))
        rows.append([name, f"{cpu[len(cpu) // 2]:.2f} ({cpu[0]:.2f}-{cpu[-1]:.2f})", f"{wall[0]:.2f}"])
    sizes = size_of(out), sum(path.stat().st_size for path in (chosen.root / "stage_2_train").iterdir())
    text = f"{len(paths)} slices of {chosen.root.name}. Prepared set {sizes[0] / 1e6:.1f} MB, DICOM files "
    text += f"{sizes[1] / 1e6:.1f} MB: {sizes[0] / sizes[1]:.3f}.\n\n"
    head = ["", "ms of a processor a slice (range)", "least wall"]
    record("The size of RSNA: reading back", text + table(head, rows))
    shutil.rmtree(out)


RUN = "import sys; from pathlib import Path; from ich_mil.sets.preparation.prepare import prepare\n"
RUN += "prepare('rsna', Path(sys.argv[1]), Path(sys.argv[2]), jobs=int(sys.argv[3]))"


def contents(out: Path) -> dict[str, bytes]:
    """Digest of each file of a set but the index, whose pages may be in another order."""
    paths = (path for path in out.rglob("*") if path.is_file())
    named = {path.relative_to(out).as_posix(): path for path in paths}
    return {
        name: hashlib.sha256(path.read_bytes()).digest()
        for name, path in named.items()
        if not name.startswith(("index.sqlite", "."))
    }


def kills(chosen: argparse.Namespace) -> None:
    """Kill a preparation twice at random times; complete it; compare with an uninterrupted one."""
    root, out = chosen.folder / "copies_kills", chosen.folder / "set_kills"
    write_copies(chosen.root, root, chosen.copies[0])
    words = [sys.executable, "-W", "ignore", "-c", RUN, str(root), str(out), str(chosen.jobs)]
    started = time.perf_counter()
    subprocess.run(words, check=True)
    whole, expected = time.perf_counter() - started, contents(out)
    shutil.rmtree(out)
    generator, text = random.Random(0), []
    for _ in range(2):
        process = subprocess.Popen(words, start_new_session=True)
        time.sleep(generator.uniform(0.1, 0.6) * whole)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        text.append(f"killed with {len(list((out / 'scans').glob('*.zip')))} scans written")
    subprocess.run(words, check=True)
    found = contents(out)
    text.append(f"{len(found)} files, equal to those of an uninterrupted run: {found == expected}")
    record("The size of RSNA: killed twice", f"{20 * chosen.copies[0]} scans: " + "; ".join(text) + ".")
    shutil.rmtree(root)
    shutil.rmtree(out)


def features(chosen: argparse.Namespace) -> None:
    """Features of some scans by each network of the bundled model."""
    out = chosen.folder / "set_features"
    prepared: PreparedSet = prepare("rsna", chosen.root, out, jobs=chosen.jobs)
    scans = list(prepared.scans.index)[: chosen.scans[0]]
    n, rows = int(prepared.scans.slices[scans].sum()), []
    for number, member in enumerate(load_model("headct-base").members):
        assert member.cnn is not None
        cnn = member.cnn
        wall, cpu = measured(lambda cnn=cnn: extract_features(cnn, prepared, scans))  # type: ignore[misc]
        rows.append([number, cnn.encoder_settings.size, f"{1e3 * cpu / n:.1f}", f"{1e3 * wall / n:.1f}"])
    head = ["network", "pixels", "ms of a processor a slice", "wall"]
    record("The size of RSNA: features", f"{n} slices of {len(scans)} scans.\n\n{table(head, rows)}")
    shutil.rmtree(out)


def fit_head(scans: int, result: Path) -> None:
    """Fit a head of 32 features on drawn scans of 35 slices; write seconds and memory above the data."""
    generator = np.random.default_rng(0)
    offsets, labels = np.arange(scans + 1) * 35, (generator.random(scans) < 0.43).astype(int)
    x = generator.normal(size=(35 * scans, 32)).astype(np.float32)
    x[:, 0] += np.repeat(labels, 35) * (generator.random(35 * scans) < 0.3) * 3
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = measured(lambda: Head().fit(x, offsets, labels))
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    result.write_text(f"{cpu:.1f} {wall:.1f} {peak:.0f}")


def heads(chosen: argparse.Namespace) -> None:
    """A head, each size in a process of its own."""
    rows = []
    for scans in chosen.scans:
        result = chosen.folder / f"head_{scans}"
        if (child := os.fork()) == 0:
            fit_head(scans, result)
            os._exit(0)
        os.waitpid(child, 0)
        rows.append([scans, 35 * scans, *result.read_text().split()])
        print(rows[-1], flush=True)
    head = ["scans", "slices", "s of a processor", "wall", "MiB above the data"]
    record("The size of RSNA: a head with its calibration", table(head, rows))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("step", choices=["scale", "read", "kills", "features", "heads"])
    parser.add_argument("--root", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--copies", type=int, nargs="+", default=[1])
    parser.add_argument("--index-copies", type=int, nargs="*", default=[])
    parser.add_argument("--scans", type=int, nargs="+", default=[10])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen.folder.mkdir(parents=True, exist_ok=True)
    with disable_value_validation():
        globals()[chosen.step](chosen)


if __name__ == "__main__":
    main()
