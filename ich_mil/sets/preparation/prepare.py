"""Preparation of a collection: DICOM files to a prepared set. The first step of the pipeline.

`index` reads the headers, then `scan` prepares each scan, in parallel over the cores or, under
`joblib.parallel_config(backend="dask")`, over a cluster that shares the folders. A second run prepares only
new and changed scans. A killed run leaves complete scans only. Memory does not grow with the collection.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed

from ich_mil.errors import DataError
from ich_mil.files import CsvRows, alone, digest, remove_leftovers, whole_file, write_json
from ich_mil.ledger import PASSING, Code, LedgerEntry, LedgerWriter
from ich_mil.progress import progress, say
from ich_mil.sets.labels import UNKNOWN, name_some
from ich_mil.sets.layouts.collection import Collection
from ich_mil.sets.layouts.cq500 import Cq500Collection
from ich_mil.sets.layouts.folder import FolderCollection
from ich_mil.sets.layouts.names import Layout
from ich_mil.sets.layouts.rsna import RsnaCollection
from ich_mil.sets.layouts.slice_pictures import Window
from ich_mil.sets.layouts.slices import SliceCollection, prepare_slices
from ich_mil.sets.preparation.estimate import Todo, estimate
from ich_mil.sets.preparation.index import HeaderIndex, IndexedScan
from ich_mil.sets.preparation.record import ScanRecord, read_record, scan_fingerprint, write_record
from ich_mil.sets.preparation.scan import ScanTask, prepare_scans
from ich_mil.sets.scan_labels import ScanLabels
from ich_mil.sets.scan_names import folder_of
from ich_mil.sets.splits import content_of
from ich_mil.sets.store import COLUMNS, FORMAT, UNFINISHED, PreparedSet, open_prepared, scan_file
from ich_mil.study.contrast import SitePhrases, read_site_phrases
from ich_mil.study.files.archive import is_zip, unpacked
from ich_mil.study.series import AVERAGE_TO_MM

BATCH = 8
"""Largest number of scans per worker task; fewer where there are few scans for each worker."""
MANY = 200
"""Number of scans above which the workers are processes. For fewer scans they are threads: these start at
once, and most of the work releases the GIL, but many threads would wait for each other."""


def open_collection(
    layout: Layout, root: Path, *, window: Window | None = None, labels: ScanLabels | None = None
) -> Collection:
    """Open the collection below `root`. `DataError` if the folder or its label file cannot be used."""
    match layout:
        case "rsna":
            return RsnaCollection(root)
        case "cq500":
            return Cq500Collection(root)
        case "slices":
            return SliceCollection(root, window=window)
        case "folder" | "unlabelled":
            return FolderCollection(root, labelled=layout == "folder", labels=labels)


def prepare(
    layout: Layout,
    root: Path,
    out: Path,
    *,
    jobs: int,
    thickness_mm: float = AVERAGE_TO_MM,
    window: Window | None = None,
    contrast_words: Path | None = None,
    labels: ScanLabels | None = None,
) -> PreparedSet:
    """Prepare every scan below `root` into the folder `out`.

    An earlier result for the same root is completed. A finished set in a read-only folder, as on a cluster,
    is used without checks.

    Args:
        layout: layout of files and labels.
        root: the folder to read, a ZIP file of it, or one DICOM or NIfTI file.
        out: the folder to write.
        jobs: number of parallel workers.
        thickness_mm: thin slices are averaged to about this thickness in mm; 0 leaves them unchanged.
        window: (level, width) in HU of the 8-bit pictures of layout `slices`.
        contrast_words: a CSV file with contrast words of the site (`ich_mil.study.contrast`).
        labels: table of labels of the layout `folder`; None: that in the folder.

    Raises:
        ConfigError: the contrast words cannot be used.
        DataError: labels that do not match, no usable slice at all, a picture that cannot be used, a disk
            that is full or too small, or `out` prepared from another root, thickness or window, or in use by
            another process.
    """
    single = root.is_file() and not is_zip(root)
    metadata: dict[str, Any] = {
        "format": FORMAT,
        "layout": layout,
        "root": str((root.parent if single else root).resolve()),
        "thickness_mm": float(thickness_mm),
    }
    if single:
        metadata["file"] = root.name
    if layout == "slices":
        metadata["window"] = None if window is None else list(window)
    site = read_site_phrases(contrast_words)
    if _check_target(out, metadata) and not os.access(out, os.W_OK):
        say(f"{out}: is read-only; used as it is, without a check of its files")
        return open_prepared(out)
    with alone(out, doing="preparing"), unpacked(root) as source:
        collection = open_collection(layout, source, window=window, labels=labels)
        _prepare(collection, root, out, metadata, jobs, site)
    return open_prepared(out)


def _prepare(
    collection: Collection, root: Path, out: Path, metadata: dict[str, Any], jobs: int, site: SitePhrases
) -> None:
    """Prepare a collection; `root` is the name of its folder for users. Arguments as in `prepare`."""
    path, layout = out / "index.sqlite", metadata["layout"]
    with HeaderIndex(path, collection, layout=layout, leave_out=out) as index:
        remove_leftovers(out, out / "scans")
        n_files = index.update(jobs=jobs)
        if next(index.scans(), None) is None:
            (out / "prepared.json").unlink(missing_ok=True)  # left by an earlier run that found slices
            _write_tables(index, out)
            reason = f"none of its {n_files} files is a CT slice; {out / 'ledger.csv'} says why; the first"
            raise DataError(f"{root}: {reason}: {next(index.refused()).detail}")
        scans = ((scan.scan, scan.sources) for scan in index.scans())
        collection.check(scans, index.refused(), index.series())
        n_new = _prepare_scans(index, out, metadata, jobs, site)
        files, totals, codes = _write_tables(index, out)
        write_json(out / "prepared.json", {**metadata, "files": files})
    if not totals["slices"]:
        raise DataError(f"{root}: no scan has a usable slice; {out / 'ledger.csv'} says why for each file")
    scans_made = f"{totals['scans']} scans"
    if totals["labelled"]:
        scans_made += f" ({totals['positive']} positive of {totals['labelled']} labelled)"
    say(f"{out}: {scans_made}, {totals['slices']} slices from {n_files} files, {n_new} scans prepared now")
    if codes:
        say("  ledger: " + ", ".join(f"{code} {n}" for code, n in codes.most_common()))


def _check_target(out: Path, metadata: dict[str, Any]) -> bool:
    """Refuse an output folder with another prepared set. Returns whether `out` holds this set, finished."""
    if Path(metadata["root"]).is_relative_to(out.resolve()):  # its files would be taken for files of the set
        what = f"is or holds the folder to read ({metadata['root']})"
        raise DataError(f"{out}: {what}; choose another folder for the prepared set")
    path = out / "prepared.json"
    if not path.is_file():
        return False
    try:
        old = {**json.loads(path.read_text(encoding="utf-8"))}
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: is damaged ({error}); delete it and run the same command again") from error
    if old.get("format") != FORMAT:
        return False  # another version: everything is prepared again
    for name in ("root", "file", "layout", "thickness_mm", "window"):
        if old.get(name) != metadata.get(name):
            what = f"{name.removesuffix('_mm')} {old.get(name)}, not {metadata.get(name)}"
            raise DataError(f"{out}: was prepared with {what}; choose another folder for the prepared set")
    return bool(old.get("files", UNFINISHED) != UNFINISHED)


def _prepare_scans(
    index: HeaderIndex, out: Path, metadata: dict[str, Any], jobs: int, site: SitePhrases
) -> int:
    """Prepare new and changed scans, and scans with a temporary refusal (`PASSING`). Returns their number."""
    thickness_mm = metadata["thickness_mm"]
    window = tuple(metadata["window"]) if metadata.get("window") else None
    work_on = partial(prepare_slices, window=window) if metadata["layout"] == "slices" else prepare_scans
    root, out = index.collection.root.absolute(), out.absolute()
    todo: list[Todo] = []
    for scan in index.scans():
        fingerprint, record = (
            scan_fingerprint(scan.fingerprint, thickness_mm, window, site),
            read_record(out, scan.scan),
        )
        passing = record is not None and any(entry.code in PASSING for entry in record.entries)
        if record is None or passing or record.fingerprint != fingerprint:
            todo.append(Todo(scan.scan, fingerprint, len(scan.sources)))

    def tasks(batch: Sequence[Todo]) -> list[ScanTask]:
        return [
            ScanTask(item.scan, index.headers(item.scan), thickness_mm, root, site, item.fingerprint)
            for item in batch
        ]

    if todo:
        write_json(out / "prepared.json", {**metadata, "files": UNFINISHED})  # until the tables are written
        left = estimate(todo, out, lambda batch: work_on(tasks(batch), out), jobs=jobs)
        at_once = max(1, min(BATCH, len(left) // (2 * jobs)))
        batches = (tasks(left[first : first + at_once]) for first in range(0, len(left), at_once))
        kind = "processes" if len(left) > MANY else "threads"
        work = Parallel(n_jobs=min(jobs, len(left)), prefer=kind, return_as="generator_unordered")(
            delayed(work_on)(batch, out) for batch in batches
        )
        for _ in progress(work, total=len(left), what="prepare", weight=int):
            pass
        for name in index.changed() & {item.scan for item in todo}:  # the headers are not those of the pixels
            detail = "its files have changed while they were read; run the same command again"
            entries = [LedgerEntry(name, "", code, detail) for code in (Code.NOT_OPENED, Code.SCAN_EMPTY)]
            scan_file(out, name).unlink(missing_ok=True)
            write_record(out, name, ScanRecord("", 0, name, (0.0, 0.0), [], entries))
    return len(todo)


def _write_tables(index: HeaderIndex, out: Path) -> tuple[str, Counter[str], Counter[str]]:
    """Write `slices.csv` and `ledger.csv` from the records of the scans, and the current labels.

    Returns a digest of all files that the scans were made from, their totals, and the ledger lines by code.
    """
    totals: Counter[str] = Counter()
    fingerprints = []
    collection = index.collection
    refused = index.refused_sources()
    kept: set[str] = set()
    shown: dict[str, str] = {}
    elsewhere: list[str] = []
    with (
        whole_file(out / "ledger.csv") as ledger_path,
        whole_file(out / "slices.csv") as table_path,
        LedgerWriter(ledger_path) as ledger,
        table_path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as table_file,
    ):
        table = CsvRows(table_file, COLUMNS)
        ledger.write(index.refused())
        ledger.write(index.lost_slices())
        ledger.write(index.empty_scans())
        for scan in index.scans():
            record = read_record(out, scan.scan)
            assert record is not None, scan.scan  # written by _prepare_scans
            label = collection.scan_label(scan.scan, [*scan.sources, *refused.get(scan.scan, [])])
            used = {name for item in record.slices for name in item["sources"]}
            if label != UNKNOWN and 0 < len(used) < len(scan.sources):
                headers = partial(index.headers, scan.scan)
                if name := collection.named_elsewhere(scan.scan, used, headers):
                    elsewhere.append(f"{name} (used: {folder_of(min(used)) or min(used)})")
                    label = UNKNOWN
            for row in _rows(scan, record, label, collection):
                table.write([row[name] for name in COLUMNS])
            pixels = scan_file(out, scan.scan)
            kept |= {pixels.name, pixels.with_suffix(".json").name}
            ledger.write(record.entries)
            content = content_of((item["content"] for item in record.slices), least=1)
            if content and (other := shown.setdefault(content, scan.scan)) != scan.scan:
                collection.check_twins(scan.scan, other)
                detail = f"it has the slices of {other}; both count as of one patient"
                ledger.write([LedgerEntry(scan.scan, "", Code.SAME_SLICES, detail)])
            fingerprints.append(record.fingerprint.encode())
            if record.slices:
                counts = {"scans": 1, "slices": len(record.slices)}
                totals.update(counts, labelled=label != UNKNOWN, positive=label == 1)
        ledger.write(collection.entries)
    if elsewhere:
        raise DataError(
            f"{collection.root}: labels of series or folders that are not used: {name_some(elsewhere)} "
            f"({out / 'ledger.csv'} says why); name the study if its label is of all, or move the others away"
        )
    for path in (out / "scans").glob("*"):
        if path.name not in kept:
            path.unlink()  # of a scan that is no longer in the collection, or of another version
    return digest(*fingerprints), totals, ledger.codes


def _rows(
    scan: IndexedScan, record: ScanRecord, label: int, collection: Collection
) -> Iterator[dict[str, object]]:
    """Rows of one scan in `slices.csv`."""
    heights = [item["position_mm"] for item in record.slices]
    span = (max(heights) - min(heights)) if heights else 0.0
    for index, item in enumerate(record.slices):
        yield {
            "scan": scan.scan,
            "index": index,
            "patient": collection.patient(scan.scan) or record.patient,
            "position_mm": round(item["position_mm"], 3),
            "position": round((item["position_mm"] - heights[0]) / span, 5) if span else 0.5,
            "scan_label": label,
            "slice_label": max(collection.slice_label(sop, scan=scan.scan) for sop in item["sops"]),
            "sop": item["sop"],
            "source": "|".join(item["sources"]),
            "corrections": "|".join(item["corrections"]),
            "content": item["content"],
        }
