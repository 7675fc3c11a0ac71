"""The pixels of one CT slice as HU.

In: a `SliceHeader` as `read_headers` gives it. Out: int16 HU (H, W) with the repairs that were made. The
header says where the pixels lie, so nothing is parsed twice: pixels that are not compressed are one read of
the file.

Source: DICOM PS3.5 8 (pixel data); PS3.3 C.7.6.3 (image pixel).
Legend: `H, W` pixels.
"""

import io
from pathlib import Path

import numpy as np
from pydicom.encaps import get_frame
from pydicom.uid import UID, DeflatedExplicitVRLittleEndian, ExplicitVRBigEndian

from ich_mil.dicom.codec import CodecError, NoDecoderError, decode
from ich_mil.dicom.elements import NATIVE, inflate
from ich_mil.dicom.grey import grey_notes
from ich_mil.dicom.header import SliceHeader
from ich_mil.dicom.hounsfield import NoHounsfieldError, to_hu
from ich_mil.dicom.noise import noise_rows
from ich_mil.dicom.refusal import refusal, refusal_of
from ich_mil.ledger import Code

# Zeros from some row to the end are a copy that failed if they are as many rows as of a noisy picture, and
# pixels that are not zero end with a row that is full of them: a round field of view ends with few, a
# picture that is padded with zeros begins with them too.
ZERO_FRACTION = 1 / 16
FULL_ROW = 1 / 2


def read_slice(
    header: SliceHeader, *, root: Path = Path()
) -> tuple[np.ndarray, tuple[tuple[Code, str], ...]]:
    """The HU of one CT slice.

    Args:
        header: of the slice.
        root: the folder that the header's path is relative to, where it is.

    Returns:
        int16 HU (H, W) within -1024..3095, and one (code, detail) pair for each repair (`hounsfield.to_hu`)
        and note (`grey.grey_notes`).

    Raises:
        DicomError: the file is refused, with code
            `no-hu-scale` (an intercept of about 0 and no air, or a picture in the bits above BitsStored),
            `not-opened` (the system says no),
            `no-decoder` (a package is missing; it is named),
            `unreadable` (cut off, zeros from some row on, or not what the header says),
            `flat` (all pixels equal),
            `noise` (rows whose neighbouring pixels are unrelated).
    """
    path = root / header.path
    try:
        stored = _stored_values(path, header)  # (H, W)
    except NoDecoderError as error:
        raise refusal(path, Code.NO_DECODER, str(error)) from error
    except Exception as error:  # decoders raise anything; they have no common base class
        failed = f"pixels ({UID(header.pixels.syntax).name}) cannot be decoded"
        raise refusal_of(path, error, failed=failed) from error
    pixels = header.pixels
    try:
        hu, notes = to_hu(
            stored,
            slope=pixels.slope,
            intercept=pixels.intercept,
            bits_stored=pixels.bits_stored,
            signed=pixels.signed,
            padding=pixels.padding,
        )
    except NoHounsfieldError as error:
        raise refusal(path, error.code, str(error)) from error
    rows = noise_rows(hu)
    if rows.size:
        reason = f"{rows.size} rows from {rows[0]} to {rows[-1]} are noise"
        raise refusal(path, Code.NOISE, reason)
    return hu, (*notes, *grey_notes(hu, pixels))


class _BoundedFile(io.FileIO):
    """A file that never asks for more memory than it has bytes, whatever length a damaged item claims."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._end = self.seek(0, io.SEEK_END)

    def read(self, size: int | None = -1, /) -> bytes:
        """At most `size` bytes, -1 for the rest."""
        return super().read(-1 if size is None else min(size, self._end - self.tell()))


def _stored_values(path: Path, header: SliceHeader) -> np.ndarray:
    """Stored values (H, W) of one frame, bits above BitsStored still as in the file."""
    pixels = header.pixels
    if pixels.syntax not in NATIVE:
        with _BoundedFile(path) as file:
            file.seek(pixels.offset)
            stream = get_frame(file, header.frame, number_of_frames=pixels.frames)
        return decode(
            stream,
            pixels.syntax,
            rows=header.rows,
            columns=header.columns,
            bits_allocated=pixels.bits_allocated,
            bits_stored=pixels.bits_stored,
            signed=pixels.signed,
        )
    n_bytes = header.rows * header.columns * pixels.bits_allocated // 8
    start = pixels.offset + header.frame * n_bytes
    if pixels.syntax == DeflatedExplicitVRLittleEndian:
        content = np.frombuffer(inflate(path, start, n_bytes), dtype=np.uint8)
    else:
        with path.open("rb", buffering=0) as file:
            swapped = _is_swapped(file, header)
            # words are read whole: a frame may begin and end within one
            first = start - (start - pixels.offset) % 2 if swapped else start
            rest = (start + n_bytes - pixels.offset) % 2 if swapped else 0
            content = np.empty(start + n_bytes + rest - first, dtype=np.uint8)
            file.seek(first)
            content = content[: file.readinto(content.data)]
        if swapped:
            content = content.view(np.uint16).byteswap().view(np.uint8)[start - first :][:n_bytes]
    if len(content) < n_bytes:
        raise CodecError(f"pixel data are cut off: {len(content)} of {n_bytes} bytes")
    order = ">" if pixels.syntax == ExplicitVRBigEndian else "<"
    kind = f"{order}{'i' if pixels.signed else 'u'}{pixels.bits_allocated // 8}"
    values = content.view(kind).reshape(header.rows, header.columns)
    n_whole = _rows_before_zeros(values)
    if n_whole < header.rows:
        raise CodecError(f"zeros from row {n_whole} on: a copy that failed")
    return values


def _is_swapped(file: io.FileIO, header: SliceHeader) -> bool:
    """Whether pixels of 8 bits stand in words (VR OW) of a big endian file: the first is then the lower byte.

    PS3.5 8.1.1, A.3; as OB they are in order.
    """
    pixels = header.pixels
    if pixels.syntax != ExplicitVRBigEndian or pixels.bits_allocated != 8:
        return False
    file.seek(pixels.offset - 8)  # VR, two bytes of zero, four of length
    return file.read(2) == b"OW"


def _rows_before_zeros(values: np.ndarray) -> int:
    """Rows of stored values (H, W) before those that a failed copy left as zeros; H where none are.

    The last row that is not of zeros may be cut within.
    """
    if values[-1].any() or not values[0].any():
        return len(values)
    n = int(np.flatnonzero(values.any(axis=1))[-1]) + 1
    few = len(values) - n < ZERO_FRACTION * len(values) or n < 2
    return len(values) if few or np.count_nonzero(values[n - 2]) < FULL_ROW * values.shape[1] else n
