"""Pixel reader: one CT slice as HU.

In: a `SliceHeader` from `read_headers`. Out: int16 HU (H, W) and the repairs made. The header holds the
location of the pixels, so the file is not parsed again; native pixels need a single read.

Source: DICOM PS3.5 8 (pixel data); PS3.3 C.7.6.3 (image pixel).
Legend: `H, W` pixels.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from pydicom.encaps import get_frame
from pydicom.uid import UID, ExplicitVRBigEndian, UncompressedTransferSyntaxes

from ich_mil.ledger import Code
from ich_mil.study.files.codec import CodecError, NoDecoderError, decode
from ich_mil.study.files.elements import open_dicom
from ich_mil.study.files.header import SliceHeader
from ich_mil.study.files.nifti import SYNTAX
from ich_mil.study.files.refusal import refusal, refusal_of
from ich_mil.study.pixels.hounsfield import NoHounsfieldError, to_hu
from ich_mil.study.pixels.quality import grey_notes, noise_rows

# Trailing rows of zeros indicate a failed copy if they are at least `ZERO_FRACTION` of all rows and the data
# end abruptly, with a row of which at least `FULL_ROW` is not zero. A round field of view ends with few
# nonzero pixels, and a picture padded with zeros also begins with zeros.
ZERO_FRACTION = 1 / 16
FULL_ROW = 1 / 2


def read_slice(
    header: SliceHeader, *, root: Path = Path(), volumes: Mapping[str, np.ndarray] = {}
) -> tuple[np.ndarray, tuple[tuple[Code, str], ...]]:
    """Read the HU of one CT slice; relative paths in the header are below `root`.

    `volumes` are the values of NIfTI files by the path of the header (`ich_mil.study.pixels.volume`).

    Returns:
        int16 HU (H, W) within -1024..3095, and one (code, detail) pair per repair and note.

    Raises:
        DicomError: the file is refused, with code
            `no-hu-scale` (intercept of about 0 without air, or image in the bits above BitsStored),
            `not-opened` (operating system error),
            `no-decoder` (a package is missing; the message names it),
            `unreadable` (truncated, zeros from some row on, or contradicting the header),
            `flat` (all pixels equal),
            `noise` (rows with independent neighbouring pixels).
    """
    path = root / header.path
    try:
        in_volume = header.pixels.syntax == SYNTAX
        stored = volumes[header.path][header.frame] if in_volume else _stored_values(path, header)  # (H, W)
    except NoDecoderError as error:
        raise refusal(path, Code.NO_DECODER, str(error)) from error
    except Exception as error:  # decoder exceptions have no common base class
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
    if (rows := noise_rows(hu)).size:
        raise refusal(path, Code.NOISE, f"{rows.size} rows from {rows[0]} to {rows[-1]} are noise")
    if in_volume:  # HU as a rule
        notes = tuple(note for note in notes if note[0] != Code.ALREADY_HU)
    return hu, (*notes, *grey_notes(hu, pixels))


def _stored_values(path: Path, header: SliceHeader) -> np.ndarray:
    """Stored values (H, W) of one frame, with the bits above BitsStored as in the file."""
    pixels = header.pixels
    n_bytes = header.rows * header.columns * pixels.bits_allocated // 8
    with open_dicom(path) as file:
        if pixels.syntax not in UncompressedTransferSyntaxes:
            file.seek(pixels.offset)
            return decode(get_frame(file, header.frame, number_of_frames=pixels.frames), header)
        if pixels.syntax == ExplicitVRBigEndian and pixels.bits_allocated == 8:
            file.seek(pixels.offset - 8)  # VR (2 bytes), reserved (2), length (4)
            if file.read(2) == b"OW":  # two pixels per word, swapped (PS3.5 8.1.1)
                raise CodecError("8-bit pixels in big endian words; save it as Explicit VR Little Endian")
        file.seek(pixels.offset + header.frame * n_bytes)
        content = file.read(n_bytes)
    if len(content) < n_bytes:
        raise CodecError(f"pixel data are truncated: {len(content)} of {n_bytes} bytes")
    order = ">" if pixels.syntax == ExplicitVRBigEndian else "<"
    kind = f"{order}{'i' if pixels.signed else 'u'}{pixels.bits_allocated // 8}"
    values = np.frombuffer(content, kind).reshape(header.rows, header.columns)
    n_whole = _rows_before_zeros(values)
    if n_whole < header.rows:
        raise CodecError(f"zeros from row {n_whole} on, as after a failed copy: copy it again")
    return values


def _rows_before_zeros(values: np.ndarray) -> int:
    """Number of rows of stored values (H, W) before the zeros of a failed copy; H for an intact picture.

    The last row with data may be incomplete, so the row before it is tested for `FULL_ROW`.
    """
    if values[-1].any() or not values[0].any():
        return len(values)
    n = int(np.flatnonzero(values.any(axis=1))[-1]) + 1
    few = len(values) - n < ZERO_FRACTION * len(values) or n < 2
    return len(values) if few or np.count_nonzero(values[n - 2]) < FULL_ROW * values.shape[1] else n
