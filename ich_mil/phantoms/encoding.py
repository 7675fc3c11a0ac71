"""DICOM data set for one slice of a phantom.

In: a `Phantom`, the index of a slice, an `Encoding` and three UIDs. Out: a pydicom `Dataset` with the
elements of RSNA 2019; the caller adds the elements of its layout.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.filewriter import dcmwrite
from pydicom.uid import UID, CTImageStorage, ExplicitVRLittleEndian, ImplicitVRLittleEndian, generate_uid

from ich_mil.phantoms.study import Phantom


class Encoding(NamedTuple):
    """Encoding of HU as stored values."""

    name: str
    bits: int  # BitsStored
    signed: bool  # PixelRepresentation 1
    intercept: str  # RescaleIntercept as text, HU
    padding: int | None  # stored value outside the circular field of view
    explicit: bool  # Explicit VR Little Endian, otherwise Implicit VR
    weight: float  # relative frequency in a data set


ENCODINGS = (
    Encoding("padded", 16, True, "-1024", -2000, True, 0.40),
    Encoding("plain", 16, True, "-1024.000000", None, True, 0.18),
    Encoding("unsigned", 12, False, "-1024", None, False, 0.22),
    Encoding("wrong-intercept", 12, False, "1", None, True, 0.10),
    Encoding("lost-sign", 16, True, "-1024", 30768, True, 0.05),
    Encoding("already-hu", 16, True, "0", -3024, True, 0.05),
)
"""Encodings found in RSNA 2019.

"wrong-intercept" stores HU modulo 4096. "lost-sign" has the padding -2000 without its sign bit. "already-hu"
needs no intercept. The CQ500 layout uses the second and third.
"""


def stored_values(hu: NDArray[np.int16], encoding: Encoding) -> bytes:
    """Little endian stored values of one slice; HU must lie within -1000..3000, as in a `Phantom`."""
    wide = hu.astype(np.int32)
    stored = wide & 0xFFF if encoding.name == "wrong-intercept" else wide - int(float(encoding.intercept))
    if encoding.padding is not None:
        middle = (np.array(hu.shape) - 1) / 2
        row, column = np.ogrid[: hu.shape[0], : hu.shape[1]]
        stored[np.hypot(row - middle[0], column - middle[1]) > max(hu.shape) / 2] = encoding.padding
    return stored.astype("<i2" if encoding.signed else "<u2").tobytes()


def _decimal(*values: float) -> list[str]:
    """Format DS values with six decimals, as in RSNA 2019 (at most 16 characters, PS3.5 6.2)."""
    return [f"{value:.6f}" for value in values]


def make_image(
    phantom: Phantom, index: int, encoding: Encoding, *, sop: str, study: str, series: str
) -> Dataset:
    """Create the data set of one slice, with the elements common to both layouts.

    Position and orientation follow DICOM PS3.3 C.7.6.2.1.1. `sop`, `study` and `series` are instance UIDs.
    """
    image = Dataset()
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = CTImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=[sop])
    meta.TransferSyntaxUID = ExplicitVRLittleEndian if encoding.explicit else ImplicitVRLittleEndian
    meta.ImplementationClassUID = UID("1.2.826.0.1.3680043.8.498.1")
    image.file_meta = meta
    image.SOPInstanceUID, image.StudyInstanceUID, image.SeriesInstanceUID = sop, study, series
    image.Modality = "CT"
    tilt = np.deg2rad(phantom.tilt)
    rows, columns = phantom.hu.shape[1:]
    height = phantom.origin_z + index * phantom.spacing / np.cos(tilt)
    left, front = (columns - 1) / 2 * phantom.pixel, (rows - 1) / 2 * phantom.pixel
    image.ImagePositionPatient = _decimal(-left, -front * np.cos(tilt), height + front * np.sin(tilt))
    image.ImageOrientationPatient = _decimal(1, 0, 0, 0, np.cos(tilt), -np.sin(tilt))
    image.SamplesPerPixel, image.PhotometricInterpretation = 1, "MONOCHROME2"
    image.Rows, image.Columns = rows, columns
    image.PixelSpacing = _decimal(phantom.pixel, phantom.pixel)
    image.BitsAllocated, image.BitsStored, image.HighBit = 16, encoding.bits, encoding.bits - 1
    image.PixelRepresentation = int(encoding.signed)
    image.RescaleIntercept, image.RescaleSlope = encoding.intercept, "1"
    image.PixelData = stored_values(phantom.hu[index], encoding)
    image["PixelData"].VR = "OW"
    return image


def save_image(image: Dataset, path: Path) -> None:
    """Write `image` as a DICOM file with preamble and file meta information."""
    dcmwrite(path, image, enforce_file_format=True)
