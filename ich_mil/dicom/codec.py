"""One compressed frame to stored values.

In: the code stream of one frame and what the header says of it. Out: stored values (H, W). Which library
decodes which syntax is fixed here, so that a result does not depend on what else is installed: pydicom itself
for RLE, pyjpegls for JPEG-LS, GDCM for JPEG, JPEG 2000 and HTJ2K. Before any of them sees a code stream its
own sizes are compared with the header and its end is looked for: decoders fill up what was cut off with grey,
one that is told of 60,000 x 60,000 pixels allocates them, and GDCM ends the process where markers or bits a
sample make no sense (each such case was found by `tests/dicom/fuzz.py`).

Source: DICOM PS3.5 8.2 and annex A.4 (encapsulation); ITU-T T.81 (JPEG), T.87 (JPEG-LS), T.800 (JPEG 2000).
"""

import struct
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from pydicom.encaps import encapsulate
from pydicom.pixels import get_decoder
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

_JPEG = (JPEGLosslessSV1, JPEGLossless, JPEGBaseline8Bit, JPEGExtended12Bit)
_HTJ2K = {HTJ2KLossless, HTJ2KLosslessRPCL, HTJ2K}
_GDCM = ("gdcm", "gdcm", "python-gdcm")
PLUGINS = {
    **dict.fromkeys(_JPEG, _GDCM),
    **dict.fromkeys(JPEGLSTransferSyntaxes, ("pyjpegls", "jpeg_ls", "pyjpegls")),
    **dict.fromkeys(JPEG2000TransferSyntaxes, _GDCM),  # HTJ2K too
    RLELossless: ("pydicom", "pydicom", "pydicom"),
}
"""Syntax -> pydicom's name of its plugin, the module it needs, and the package that has it."""
# start of frame markers (T.81 table B.1, T.87 C.1.1); C4, C8 and CC are other things
_START_OF_FRAME = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}
_START_OF_SCAN = 0xDA
_FIRST_MARKER = 0xC0
_END = b"\xff\xd9"


class CodecError(Exception):
    """A frame that cannot be decoded; the text says why, without the file's name."""


class NoDecoderError(CodecError):
    """The package that decodes it is not installed."""


def decode(
    stream: bytes,
    syntax: str,
    *,
    rows: int,
    columns: int,
    bits_allocated: int,
    bits_stored: int,
    signed: bool,
) -> np.ndarray:
    """Decode one grey frame.

    Args:
        stream: the code stream of the frame, its fragments joined.
        syntax: transfer syntax UID.
        rows: H of the header.
        columns: W of the header.
        bits_allocated: of the header.
        bits_stored: of the header.
        signed: PixelRepresentation is 1.

    Returns:
        Stored values (H, W), 8 or 16 bit; bits above `bits_stored` as decoded.

    Raises:
        NoDecoderError: the decoder is not installed; the text names the package.
        CodecError: a syntax that is not read, or a code stream that is cut off, has another size than the
            header says, or cannot be decoded.
    """
    name = UID(syntax).name
    if syntax not in PLUGINS:
        raise CodecError(f"{name} is not read; save the file as Explicit VR Little Endian")
    plugin, module, package = PLUGINS[UID(syntax)]
    if find_spec(module) is None:
        raise NoDecoderError(f"{name} needs the package {package}: pip install {package}")
    said = None if syntax == RLELossless else _look_at(stream, syntax)
    if said is not None and said[:3] != (rows, columns, 1):
        raise CodecError(
            f"its code stream has {said.height} x {said.width} pixels of {said.components} samples, "
            f"its header says {rows} x {columns} of 1"
        )
    if said is not None and said.precision > bits_allocated:
        raise CodecError(
            f"its code stream has samples of {said.precision} bits, its header allocates {bits_allocated}"
        )
    if said is not None and syntax == JPEGExtended12Bit and said.precision == 12:
        return _gdcm_12_bit(stream, syntax, rows, columns)
    # GDCM's JPEG 2000 decoder reads HTJ2K too, only pydicom has no entry for it
    decoder = get_decoder(JPEG2000Lossless if syntax in _HTJ2K else UID(syntax))
    options: Any = {  # pydicom's annotation of these keywords is wrong
        "rows": rows,
        "columns": columns,
        "samples_per_pixel": 1,
        "photometric_interpretation": "MONOCHROME2",
        "number_of_frames": 1,
        "bits_allocated": bits_allocated,
        # GDCM's JPEG decoder clears what lies above the bits it is told of: padding 30768 would be 2096
        "bits_stored": bits_stored if said is None else max(bits_stored, said.precision),
        "pixel_representation": int(signed),
        "pixel_keyword": "PixelData",
        "correct_unused_bits": False,
    }
    # values have the sign of the header even where a JPEG 2000 stream says another: pydicom sees to it
    stored, _ = decoder.as_array(encapsulate([stream]), decoding_plugin=plugin, **options)
    return stored


class _CodeStream(NamedTuple):
    """What a code stream says of itself: pixels, samples a pixel, bits a sample."""

    height: int
    width: int
    components: int
    precision: int


def _look_at(stream: bytes, syntax: str) -> _CodeStream:
    """Read the sizes of a code stream; refuse one without an end, with impossible ones, or out of order."""
    if not stream.rstrip(b"\0\xff").endswith(_END):  # makers pad with either
        raise CodecError("its code stream has no end: it is cut off")
    said = _look_at_j2k(stream) if syntax in JPEG2000TransferSyntaxes else _look_at_jpeg(stream)
    # GDCM writes outside its memory where these are others
    if not 2 <= said.precision <= 16:
        raise CodecError(f"its code stream has samples of {said.precision} bits; CT values have 2 to 16")
    return said


def _look_at_jpeg(stream: bytes) -> _CodeStream:
    """JPEG and JPEG-LS: marker by marker past the one frame header to the first scan (T.81 B.2.2)."""
    place, found = 2, None
    while stream[:2] == b"\xff\xd8" and place + 4 <= len(stream) and stream[place] == 0xFF:
        marker = stream[place + 1]
        if marker == 0xFF:  # fill byte
            place += 1
            continue
        length = int.from_bytes(stream[place + 2 : place + 4], "big")
        if marker < _FIRST_MARKER or length < 2:
            break
        if marker == _START_OF_SCAN and found is not None:
            return found
        if marker in _START_OF_FRAME and place + 10 <= len(stream) and found is None:
            precision, height, width, components = struct.unpack(">BHHB", stream[place + 4 : place + 10])
            found = _CodeStream(height, width, components, precision)
        place += 2 + length
    raise CodecError("the markers of its code stream do not lead to one picture")


def _look_at_j2k(stream: bytes) -> _CodeStream:
    """JPEG 2000: the SIZ segment (T.800 A.5.1)."""
    start = stream.find(b"\xff\x4f\xff\x51")  # a JP2 file has boxes before it
    if start < 0 or len(stream) < start + 43:
        raise CodecError("its code stream has no SIZ segment")
    right, bottom, left, top, tile_width, tile_height, _, _, components, depth = struct.unpack(
        ">8IHB", stream[start + 8 : start + 43]
    )
    if not tile_width or not tile_height:
        raise CodecError("its code stream has tiles of no size")
    return _CodeStream(bottom - top, right - left, components, (depth & 0x7F) + 1)


def _gdcm_12_bit(stream: bytes, syntax: str, rows: int, columns: int) -> np.ndarray:
    """12-bit JPEG Extended by GDCM itself, which pydicom refuses to ask.

    Told of 12 allocated bits it takes its 12-bit decoder at once. Its values are those of libjpeg-turbo.
    """
    import gdcm  # untyped, and needed for this syntax only

    fragment = gdcm.Fragment()
    fragment.SetByteStringValue(stream)
    fragments = gdcm.SequenceOfFragments.New()
    fragments.AddFragment(fragment)
    element = gdcm.DataElement(gdcm.Tag(0x7FE0, 0x0010))
    element.SetValue(fragments.__ref__())
    image = gdcm.Image()
    image.SetNumberOfDimensions(2)
    image.SetDimensions((columns, rows, 1))
    image.SetDataElement(element)
    grey = gdcm.PhotometricInterpretation.MONOCHROME2
    image.SetPhotometricInterpretation(gdcm.PhotometricInterpretation(grey))
    image.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.GetTSType(syntax)))
    image.SetPixelFormat(gdcm.PixelFormat(1, 12, 12, 11, 0))
    content = image.GetBuffer()
    if content is None:
        raise CodecError("GDCM cannot decode it")
    return np.frombuffer(content.encode("utf-8", "surrogateescape"), "<u2").reshape(rows, columns)
