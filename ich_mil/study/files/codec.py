"""Decoder for one compressed frame of Pixel Data.

The decoder of each transfer syntax is fixed, so that results do not depend on other installed packages:
pydicom for RLE, GDCM for JPEG, JPEG-LS, JPEG 2000 and HTJ2K. The size of streams other than RLE
is compared with the header before decoding, and their end marker must be present: decoders fill missing data
with grey.

Source: DICOM PS3.5 8.2 and annex A.4 (encapsulation); ITU-T T.81 (JPEG).
"""

import io
import struct
from importlib.util import find_spec
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError
from pydicom.encaps import encapsulate
from pydicom.pixels import get_decoder
from pydicom.pixels.utils import get_j2k_parameters
from pydicom.uid import (
    HTJ2K,
    UID,
    HTJ2KLossless,
    HTJ2KLosslessRPCL,
    JPEG2000Lossless,
    JPEG2000TransferSyntaxes,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLossless,
    JPEGLosslessSV1,
    JPEGLSTransferSyntaxes,
    RLELossless,
)

from ich_mil.study.files.elements import quiet
from ich_mil.study.files.header import SliceHeader

_JPEG = (JPEGLosslessSV1, JPEGLossless, JPEGBaseline8Bit, JPEGExtended12Bit)
_HTJ2K = {HTJ2KLossless, HTJ2KLosslessRPCL, HTJ2K}
PLUGINS = {
    **dict.fromkeys(  # those of JPEG 2000 include HTJ2K
        (*_JPEG, *JPEGLSTransferSyntaxes, *JPEG2000TransferSyntaxes), ("gdcm", "gdcm", "python-gdcm")
    ),
    RLELossless: ("pydicom", "pydicom", "pydicom"),
}
"""Transfer syntax -> (pydicom plugin name, required module, package that provides it)."""
_END = b"\xff\xd9"
_FRAME_HEADERS = {0xC0, 0xC1, 0xC3, 0xF7}  # baseline, extended, lossless (T.81 table B.1), JPEG-LS
_FIRST_MARKER, _START_OF_SCAN = 0xC0, 0xDA


class CodecError(Exception):
    """A frame cannot be decoded. The message gives the reason without the file name."""


class NoDecoderError(CodecError):
    """The package that decodes the transfer syntax is not installed."""


def decode(stream: bytes, header: SliceHeader) -> np.ndarray:
    """Decode the code stream of one greyscale frame, fragments joined.

    Returns:
        Stored values (H, W), 8 or 16 bit; bits above BitsStored as decoded.

    Raises:
        NoDecoderError: the decoder is not installed; the message names the package.
        CodecError: the syntax is not supported, or the code stream is truncated or differs from the header.
        Exception: whatever the decoder raises.
    """
    pixels, syntax = header.pixels, UID(header.pixels.syntax)
    if syntax not in PLUGINS:
        raise CodecError(f"{syntax.name} is not read; save the file as Explicit VR Little Endian")
    plugin, module, package = PLUGINS[syntax]
    if find_spec(module) is None:
        raise NoDecoderError(f"{syntax.name} needs the package {package}: pip install {package}")
    bits = pixels.bits_stored
    if syntax != RLELossless:
        if not stream.rstrip(b"\0\xff").endswith(_END):  # padded with either byte
            raise CodecError("its code stream is truncated: the end marker is absent")
        bits = max(bits, _check_size(stream, header))
    if syntax == JPEGExtended12Bit and pixels.bits_stored != 8:
        return _gdcm_12_bit(stream, header)
    # GDCM's JPEG 2000 decoder also reads HTJ2K, but pydicom has no HTJ2K entry for it
    decoder = get_decoder(JPEG2000Lossless if syntax in _HTJ2K else syntax)
    options: Any = {  # pydicom's annotation of these keywords is wrong
        "rows": header.rows,
        "columns": header.columns,
        "samples_per_pixel": 1,
        "photometric_interpretation": "MONOCHROME2",
        "number_of_frames": 1,
        "bits_allocated": pixels.bits_allocated,
        # GDCM's JPEG decoder clears bits above this number: padding 30768 would become 2096
        "bits_stored": bits,
        "pixel_representation": int(pixels.signed),
        "pixel_keyword": "PixelData",
        "correct_unused_bits": False,
    }
    with quiet():
        stored, _ = decoder.as_array(encapsulate([stream]), decoding_plugin=plugin, **options)
    return stored


def _check_size(stream: bytes, header: SliceHeader) -> int:
    """Compare the size of a stream other than RLE with the header; its number of bits per sample."""
    if header.pixels.syntax in JPEG2000TransferSyntaxes:
        try:
            with Image.open(io.BytesIO(stream), formats=("JPEG2000",)) as image:  # reads the header only
                (columns, rows), samples = image.size, len(image.getbands())
        except UnidentifiedImageError as error:
            begin = stream[:4].hex(" ")
            raise CodecError(f"its code stream is not JPEG 2000: it begins with {begin}") from error
        bits = get_j2k_parameters(stream).get("precision", 0)
    else:
        rows, columns, samples, bits = _jpeg_size(stream)
    if (rows, columns, samples) != (
        header.rows,
        header.columns,
        1,
    ) or not 2 <= bits <= header.pixels.bits_allocated:
        wanted = f"{header.rows} x {header.columns} x 1 of {header.pixels.bits_allocated}"
        size = f"{rows} x {columns} x {samples} of {bits}"
        raise CodecError(f"its code stream has {size} bits; its header has {wanted}")
    return bits


def _jpeg_size(stream: bytes) -> tuple[int, int, int, int]:
    """Rows, columns, samples per pixel and bits per sample of a JPEG or JPEG-LS stream (T.81 B.2.2).

    No library gives them before decoding, and GDCM ends the process on an invalid segment before the scan.
    """
    at, size = 2, None
    while stream[at : at + 1] == b"\xff" and at + 10 <= len(stream) and stream[at + 1] >= _FIRST_MARKER:
        if stream[at + 1] == _START_OF_SCAN and size is not None:
            return size
        if stream[at + 1] in _FRAME_HEADERS:
            bits, rows, columns, samples = struct.unpack(">BHHB", stream[at + 4 : at + 10])
            size = rows, columns, samples, bits
        at += 2 + int.from_bytes(stream[at + 2 : at + 4], "big")
    raise CodecError("its code stream has invalid markers, or no frame header before its scan")


def _gdcm_12_bit(stream: bytes, header: SliceHeader) -> np.ndarray:
    """Decode 12-bit JPEG Extended with GDCM directly, because pydicom does not pass it to GDCM.

    With 12 bits allocated GDCM selects its 12-bit decoder. The values equal those of libjpeg-turbo.
    """
    import gdcm  # untyped and needed only for this syntax

    fragment = gdcm.Fragment()
    fragment.SetByteStringValue(stream)
    fragments = gdcm.SequenceOfFragments.New()
    fragments.AddFragment(fragment)
    element = gdcm.DataElement(gdcm.Tag(0x7FE0, 0x0010))
    element.SetValue(fragments.__ref__())
    image = gdcm.Image()
    image.SetNumberOfDimensions(2)
    image.SetDimensions((header.columns, header.rows, 1))
    image.SetDataElement(element)
    grey = gdcm.PhotometricInterpretation.MONOCHROME2
    image.SetPhotometricInterpretation(gdcm.PhotometricInterpretation(grey))
    image.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.GetTSType(header.pixels.syntax)))
    image.SetPixelFormat(gdcm.PixelFormat(1, 12, 12, 11, 0))
    content = image.GetBuffer()
    if content is None:
        raise CodecError("GDCM cannot decode it")
    values = np.frombuffer(content.encode("utf-8", "surrogateescape"), "<u2")
    return values.reshape(header.rows, header.columns)
