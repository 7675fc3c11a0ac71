"""Small studies, prepared, and made-up results of them, for tests of the DICOM results."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from pydicom import dcmread
from pydicom.config import disable_value_validation
from pydicom.dataset import Dataset
from pydicom.uid import EnhancedCTImageStorage

from ich_mil.dicom_results.context import StudyContext
from ich_mil.dicom_results.identity import Identity, identify
from ich_mil.dicom_results.write import write_dicom_results
from ich_mil.ledger import BY_INTERVAL, POSITIVE
from ich_mil.model.maps import ScanMaps
from ich_mil.model.predictions import Provenance, Results, Run, ScanPrediction, SliceResult
from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.preparation.record import prepared_study
from ich_mil.sets.store import PreparedSet
from ich_mil.study.study import Study
from tests import phantoms

MODEL = Provenance(
    "G-VGPMIL α=1 β=2.5, M=100",
    "0.1.0",
    "3f9a01c2d4e5",
    "a1b2c3",
    "Platt scaling",
    "synthetic heads: 40 scans, 20 positive",
)


@dataclass(frozen=True)
class Made:
    """A prepared scan, what a model might have said of it, and the DICOM files written."""

    root: Path
    prepared: PreparedSet
    scan: ScanPrediction
    results: Results
    maps: ScanMaps | None
    paths: list[Path]

    def named(self, kind: str) -> list[Path]:
        return [path for path in self.paths if path.name.startswith(kind)]

    def read(self, kind: str) -> list[Dataset]:
        return [dcmread(path) for path in self.named(kind)]

    def again(self, folder: Path, **changes: object) -> list[Path]:
        """Write results once more, with other values of the scan."""
        scan = replace(self.scan, **changes)  # type: ignore[arg-type]
        return write_dicom_results(scan, self.results, self.study, self.maps, folder)

    @property
    def study(self) -> Study:
        return prepared_study(self.prepared, self.scan.scan)


def result_of(prepared: PreparedSet, scan: str, *, seed: int = 0) -> ScanPrediction:
    """Random probabilities of every slice, with a run in the middle."""
    rng = np.random.default_rng(seed)
    table = prepared.slices(scan)
    n = len(table)
    middle = range(n // 3, n // 3 + 2) if n > 3 else range(0)
    slices = []
    for i, (sop, position) in enumerate(zip(table["sop"], table.position_mm, strict=True)):
        p = round(float(rng.uniform(0.5, 1) if i in middle else rng.uniform(0, 0.5)), 6)
        spread = round(float(rng.uniform(1e-6, 0.2)), 6)
        low, high = round(max(p - spread, 0), 6), round(min(p + spread, 1), 6)
        without = round(float(rng.random()), 6) if n > 1 else None
        slices.append(
            SliceResult(i, sop, round(float(position), 3), p, spread, (low, high), without, None, ())
        )
    return ScanPrediction(
        scan=scan,
        patient="P",
        probability=0.812346,
        std=0.000012,
        interval_95=(0.701, 0.912345),
        decision=POSITIVE,
        label=None,
        runs=tuple([Run(middle[0], middle[-1], 0.213)] if middle else []),
        slices=tuple(slices),
        ledger=(),
        pixels="",
    )


def maps_of(n_slices: int, *, most: int = 2, seed: int = 0) -> ScanMaps:
    """Random maps, also below 0, of some slices."""
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(n_slices)[:most]).astype(np.int64)
    shape = (len(chosen), 6, 6)
    return ScanMaps(chosen, rng.random(shape, dtype=np.float32), rng.random(shape, dtype=np.float32))


def write(root: Path, out: Path, *, thickness_mm: float = 5.0, most: int = 2) -> Made:
    """Prepare the largest scan below `root` and write its results, with maps of so many slices."""
    prepared = prepare("unlabelled", root, out / "set", jobs=1, thickness_mm=thickness_mm)
    name = str(prepared.scans["slices"].idxmax())
    scan = result_of(prepared, name)
    results = Results("new", MODEL, BY_INTERVAL, (scan,), ())
    maps = maps_of(len(scan.slices), most=most) if most else None
    paths = write_dicom_results(scan, results, prepared_study(prepared, name), maps, out / "dicom")
    return Made(root, prepared, scan, results, maps, paths)


@cache
def _rsna() -> list[tuple[str, bytes]]:
    """Names and contents of the files of an RSNA-like phantom, lowest first."""
    with TemporaryDirectory() as folder:
        files = phantoms.rsna(Path(folder) / "rsna", studies=1).rglob("*.dcm")
        ordered = sorted(files, key=lambda path: float(_quiet(path).ImagePositionPatient[2]))
        return [(path.name, path.read_bytes()) for path in ordered]


def few_slices(folder: Path, *, n: int = 6, change: Callable[[Path], None] | None = None) -> Path:
    """Neighbouring slices from the middle of an RSNA-like phantom, each changed by `change`."""
    root = folder / "few"
    root.mkdir()
    files = _rsna()
    start = (len(files) - n) // 2
    for name, content in files[start : start + n]:
        target = root / name
        target.write_bytes(content)
        if change is not None:
            change(target)
    return root


def one_file(root: Path, folder: Path) -> Path:
    """The slices of `root` as the frames of one Enhanced CT, from above, with valid UIDs."""
    images = sorted(
        (_quiet(path) for path in root.glob("*.dcm")), key=lambda ds: -float(ds.ImagePositionPatient[2])
    )
    whole = images[0]
    with disable_value_validation():
        whole.SOPClassUID = whole.file_meta.MediaStorageSOPClassUID = EnhancedCTImageStorage
        whole.SOPInstanceUID = whole.file_meta.MediaStorageSOPInstanceUID = "1.2.3.1"
        whole.StudyInstanceUID, whole.SeriesInstanceUID = "1.2.3", "1.2.3.4"
        whole.FrameOfReferenceUID = "1.2.3.5"
        whole.NumberOfFrames = len(images)
        whole.SharedFunctionalGroupsSequence = [Dataset()]
        items = [_groups(image) for image in images]
        whole.PixelData = b"".join(image.PixelData for image in images)
        for keyword in ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing"):
            delattr(whole, keyword)
        whole.PerFrameFunctionalGroupsSequence = items
        folder.mkdir()
        whole.save_as(folder / "enhanced.dcm")
    return folder


def referenced(item: Dataset) -> tuple[str, list[int]]:
    """UID and frames that an item refers to."""
    frames = item.get("ReferencedFrameNumber")
    return item.ReferencedSOPInstanceUID, [] if frames is None else list(np.atleast_1d(frames))


def sources(context: StudyContext, place: int) -> list[tuple[str, list[int]]]:
    """UID and frames of the images of one slice, each UID once."""
    found: dict[str, list[int]] = {}
    for image in context.slices[place].images:
        found.setdefault(image.sop_uid, []).extend([] if image.frame is None else [image.frame])
    return list(found.items())


def identity_of(made: Made, context: StudyContext) -> Identity:
    """Of these results, at some moment."""
    return identify(made.scan, made.results, context, made.maps, datetime(2026, 11, 21))


def _groups(image: Dataset) -> Dataset:
    """The functional groups of one frame."""
    item = Dataset()
    for sequence, keywords in {
        "PlanePositionSequence": ("ImagePositionPatient",),
        "PlaneOrientationSequence": ("ImageOrientationPatient",),
        "PixelMeasuresSequence": ("PixelSpacing",),
        "PixelValueTransformationSequence": ("RescaleSlope", "RescaleIntercept"),
    }.items():
        group = Dataset()
        for keyword in keywords:
            setattr(group, keyword, image.get(keyword))
        setattr(item, sequence, [group])
    return item


def _quiet(path: Path) -> Dataset:
    with disable_value_validation():
        return dcmread(path)
