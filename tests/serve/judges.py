"""Fake judges, and the DICOM objects they read and write; a small module, for judging processes import it."""

import errno
import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydicom import dcmread
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

from ich_mil.errors import DataError, ModelError
from ich_mil.files import whole_file
from ich_mil.serve.judging import Judge, StudyFailedError

_HELD: list[bytes] = []


@dataclass(frozen=True)
class FakeJudge:
    """Judge that answers each study with one Secondary Capture, or obeys its StudyDescription (`judge`)."""

    seconds: float = 0.0
    calls: Path | None = None
    usable: bool = True

    def __call__(self) -> Judge:
        if not self.usable:
            raise ModelError("m: no finished run")
        return self.judge

    def judge(self, study: Path, out: Path, sent: Sequence[Path], /) -> list[Path]:
        images = [dcmread(path, force=True) for path in sorted(study.glob("*.dcm"))]
        print(images[0].get("PatientName"))  # a judge that says too much
        if self.calls is not None:
            with self.calls.open("a") as file:
                file.write(f"{images[0].StudyInstanceUID} {len(images)} {os.getpid()}\n")
        wish = str(images[0].get("StudyDescription", ""))
        if wish == "crash" or (wish == "once" and not (study.parent / "tried").exists()):
            (study.parent / "tried").touch()
            os._exit(7)
        if wish == "hang":
            time.sleep(1000)
        if wish == "hungry":
            _HELD.append(b"x" * 300_000_000)
            time.sleep(1000)
        if wish == "full" and not (out.parents[1] / "room").exists():
            with whole_file(out / "results.csv"):
                raise OSError(errno.ENOSPC, "No space left on device")
        if wish == "bug":
            raise KeyError("bug")
        if wish in ("idle", "boast"):
            return [out / "boasted.dcm"] if wish == "boast" else []
        images = [image for image in images if image.get("Modality") == "CT"]
        if not images:
            raise DataError("none of its files is a CT slice")
        time.sleep(self.seconds)
        return [capture(images[0], [image.SOPInstanceUID for image in images], out / "capture.dcm")]


class LocalProcess:
    """In place of a `JudgeProcess`: runs the judge in this process, which starts at once."""

    def __init__(self, factory, **_):
        self._factory, self.starts = factory, 0

    def start(self):
        self._judge, self.starts = self._factory(), 1

    def judge(self, study: Path, out: Path, sent: Sequence[Path]) -> list[Path]:
        try:
            return self._judge(study, out, sent)
        except DataError as error:
            raise StudyFailedError(str(error)) from error

    def end(self):
        pass


def plain_judge():
    """A judge that obeys the name of a study."""
    return _plain


def _plain(study: Path, out: Path, sent: Sequence[Path]) -> list[Path]:
    if study.name == "swell":
        _HELD.append(b"x" * 300_000_000)
    if study.name == "bug":
        raise KeyError("bug")
    if study.name == "grown":
        return [*sent]
    if study.name == "child":
        child = subprocess.Popen(["sleep", "1000"])
        (out / "child").write_text(str(child.pid))
        os._exit(7)
    return [out / str(os.getpid())]


def crash():
    """A judge whose process ends at the start."""
    os._exit(3)


def hang():
    """A judge whose process never starts."""
    time.sleep(1000)


def load_reader() -> Judge:
    """A judge that reads with the real reader; the UID of its result depends on the slices that it used."""
    from ich_mil.data.preparation.identifying_texts import source_files
    from ich_mil.data.preparation.prepare import prepare

    def read(study: Path, out: Path, sent: Sequence[Path], /) -> list[Path]:
        prepared = prepare("unlabelled", study, out / "prepared", jobs=1)
        first = dcmread(source_files(prepared, prepared.table.scan[0])[0], stop_before_pixels=True)
        return [capture(first, list(prepared.table.sop), out / "capture.dcm")]

    return read


def capture(first: Dataset, sops: Iterable[str], path: Path) -> Path:
    """A Secondary Capture in the study of `first`; its UID depends on all `sops`."""
    image = ct_slice(first.StudyInstanceUID, 0)
    image.SOPInstanceUID = generate_uid(entropy_srcs=["result", *sorted(sops)])
    image.SOPClassUID = image.file_meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    image.file_meta.MediaStorageSOPInstanceUID = image.SOPInstanceUID
    image.Modality, image.SeriesInstanceUID = "OT", generate_uid(entropy_srcs=["results", *sops])
    image.PatientID = first.get("PatientID", "")
    image.save_as(path, enforce_file_format=True)
    return path


def uid(*words: object) -> str:
    """A UID of these words, the same each time."""
    return generate_uid(entropy_srcs=[str(word) for word in words])


def ct_slice(study: str, index: int, **changes: object) -> Dataset:
    """A CT slice of 8 x 8 pixels."""
    image = Dataset()
    image.file_meta = FileMetaDataset()
    image.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    image.file_meta.MediaStorageSOPClassUID = image.SOPClassUID = CTImageStorage
    image.SOPInstanceUID = image.file_meta.MediaStorageSOPInstanceUID = uid(study, index)
    image.StudyInstanceUID, image.SeriesInstanceUID = study, uid(study, "series")
    image.Modality, image.PatientName, image.PatientID = "CT", "Secret^Name", f"P{study[-6:]}"
    image.InstanceNumber, image.Rows, image.Columns = index, 8, 8
    image.BitsAllocated = image.BitsStored = 16
    image.HighBit, image.PixelRepresentation, image.SamplesPerPixel = 15, 0, 1
    image.PhotometricInterpretation, image.PixelData = "MONOCHROME2", bytes(128)
    for keyword, value in changes.items():
        setattr(image, keyword, value)
    return image
