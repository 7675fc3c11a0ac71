"""A fake judge, and the DICOM objects it reads and writes; small, for a judging process imports it."""

import errno
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydicom import dcmread
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

from ich_mil.errors import DataError, ModelError
from ich_mil.files import whole_file
from ich_mil.serve.judging import Judge


@dataclass(frozen=True)
class FakeJudge:
    """Makes a judge that answers each study with one Secondary Capture, and obeys StudyDescription.

    `crash` ends its process, `hang` never ends, `hungry` takes 300 MB, `bug` raises a `KeyError`,
    `once` crashes in the first try only, `full` finds the disk full until the spool has a file `room`, `idle`
    makes nothing, `boast` names a file that it has not made.
    """

    seconds: float = 0.0
    calls: Path | None = None
    usable: bool = True

    def __call__(self) -> Judge:
        if not self.usable:
            raise ModelError("m: no finished run")
        return self.judge

    def judge(self, study: Path, out: Path, /) -> list[Path]:
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
            hold = bytearray(300_000_000)
            time.sleep(1000)
            del hold
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
