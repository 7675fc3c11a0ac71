"""Decoder for one compressed frame of Pixel Data.

The decoder of each transfer syntax is fixed, so that results do not depend on other installed packages: this
module for RLE, pyjpegls for JPEG-LS, GDCM for JPEG, JPEG 2000 and HTJ2K. Other streams than RLE are checked
before decoding: their size must match the header and their end marker must be present. Decoders would
otherwise fill missing data with grey, allocate 60,000 x 60,000 pixels if the stream declares them, or, in the
case of GDCM, end the process on invalid markers or bit depths. `tests/dicom/fuzz.py` found each case.

Source: DICOM PS3.5 8.2 and annex A.4 (encapsulation); ITU-T T.81 (JPEG), T.87 (JPEG-LS), T.800 (JPEG 2000).
"""

import math
import struct
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

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

from ich_mil.dicom.files.header import SliceHeader

_JPEG = (JPEGLosslessSV1, JPEGLossless, JPEGBaseline8Bit, JPEGExtended12Bit)
_HTJ2K = {HTJ2KLossless, HTJ2KLosslessRPCL, HTJ2K}
_GDCM = ("gdcm", "gdcm", "python-gdcm")
PLUGINS = {
    **dict.fromkeys(_JPEG, _GDCM),
    **dict.fromkeys(JPEGLSTransferSyntaxes, ("pyjpegls", "jpeg_ls", "pyjpegls")),
    **dict.fromkeys(JPEG2000TransferSyntaxes, _GDCM),  # includes HTJ2K
    RLELossless: ("pydicom", "pydicom", "pydicom"),
}
"""Transfer syntax -> (pydicom plugin name, required module, package that provides it)."""
# start of frame markers (T.81 table B.1, T.87 C.1.1); C4, C8 and CC have other meanings
_START_OF_FRAME = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}
_START_OF_SCAN = 0xDA
_FIRST_MARKER = 0xC0
# JPEG 2000: coding style of all or of one component, start of a tile part and of its data (T.800 A.2)
_COD, _COC, _SOT, _SOD = 0xFF52, 0xFF53, 0xFF90, 0xFF93
MOST_TILES = 1 << 12
"""Maximum number of JPEG 2000 tiles: 4096 x 4096 pixels in tiles of 64 x 64."""
MOST_PRECINCTS = 1 << 15
"""Maximum number of JPEG 2000 precincts: 4096 x 4096 pixels in precincts of 32 x 32, and all lower levels."""
_END = b"\xff\xd9"
# Bytes that a segment may hold beyond its pixels: some encoders pad them.
_RLE_EXCESS = 128


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
        CodecError: the syntax is not supported, or the code stream is truncated, differs in size from the
            header, has invalid markers or an invalid bit depth, or cannot be decoded.
    """
    pixels, syntax = header.pixels, UID(header.pixels.syntax)
    if syntax not in PLUGINS:
        raise CodecError(f"{syntax.name} is not read; save the file as Explicit VR Little Endian")
    plugin, module, package = PLUGINS[syntax]
    if find_spec(module) is None:
        raise NoDecoderError(f"{syntax.name} needs the package {package}: pip install {package}")
    if syntax == RLELossless:
        return _decode_rle(stream, header)
    precision = _check_stream(stream, header)
    if syntax == JPEGExtended12Bit and precision == 12:
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
        "bits_stored": max(pixels.bits_stored, precision),
        "pixel_representation": int(pixels.signed),
        "pixel_keyword": "PixelData",
        "correct_unused_bits": False,
    }
    # pydicom applies the signedness of the header even if a JPEG 2000 stream declares another
    stored, _ = decoder.as_array(encapsulate([stream]), decoding_plugin=plugin, **options)
    return stored


def _decode_rle(stream: bytes, header: SliceHeader) -> np.ndarray:
    """Decode RLE (PS3.5 annex G) up to Rows x Columns; pydicom also decodes what follows."""
    n, n_bytes = header.rows * header.columns, header.pixels.bits_allocated // 8
    n_segments, *starts = struct.unpack("<16L", stream[:64])
    if n_segments != n_bytes:
        raise CodecError(f"its code stream has {n_segments} segments; BitsAllocated needs {n_bytes}")
    ends = [*starts[1:n_bytes], len(stream)]
    planes = [_unpack_bits(stream[a:b], n) for a, b in zip(starts, ends, strict=False)]  # high byte first
    values = np.stack(planes[::-1], axis=-1).view(f"<{'i' if header.pixels.signed else 'u'}{n_bytes}")
    return values.reshape(header.rows, header.columns)


def _unpack_bits(segment: bytes, n: int) -> np.ndarray:
    """First `n` bytes of a segment, which may hold at most `_RLE_EXCESS` more."""
    if len(segment) > 2 * n + _RLE_EXCESS:
        raise CodecError(f"its code stream has segments of {len(segment)} bytes for {n} pixels")
    unpacked, place = bytearray(), 0
    while place + 1 < len(segment) and len(unpacked) <= n + _RLE_EXCESS:
        code = segment[place]
        if code < 128:
            unpacked += segment[place + 1 : place + 2 + code]
            place += 2 + code
        elif code > 128:
            unpacked += segment[place + 1 : place + 2] * (257 - code)
            place += 2
        else:  # no operation
            place += 1
    if not n <= len(unpacked) <= n + _RLE_EXCESS:
        found = f"more than {n}" if len(unpacked) > n else f"{len(unpacked)} of {n}"
        raise CodecError(f"its code stream holds {found} pixels")
    return np.frombuffer(unpacked, np.uint8, n)


def _check_stream(stream: bytes, header: SliceHeader) -> int:
    """Check what a code stream declares against the header; number of bits per sample."""
    if not stream.rstrip(b"\0\xff").endswith(_END):  # manufacturers pad with either byte
        raise CodecError("its code stream is truncated: the end marker is absent")
    look_at = _look_at_j2k if header.pixels.syntax in JPEG2000TransferSyntaxes else _look_at_jpeg
    height, width, components, precision = look_at(stream)
    # GDCM writes outside its memory for other bit depths
    if not 2 <= precision <= 16:
        raise CodecError(f"its code stream has samples of {precision} bits; CT values have 2 to 16")
    if (height, width, components) != (header.rows, header.columns, 1):
        declared = f"{height} x {width} pixels of {components} samples"
        raise CodecError(
            f"its code stream has {declared}; its header has {header.rows} x {header.columns} of 1"
        )
    if precision > (allocated := header.pixels.bits_allocated):
        raise CodecError(f"its code stream has samples of {precision} bits; BitsAllocated is {allocated}")
    return precision


_Declared = tuple[int, int, int, int]
"""Height and width in pixels, samples per pixel and bits per sample, as declared by a code stream."""


def _look_at_jpeg(stream: bytes) -> _Declared:
    """Size from a JPEG or JPEG-LS stream, whose single frame header precedes the first scan (T.81 B.2.2)."""
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
            found = height, width, components, precision
        place += 2 + length
    raise CodecError("its code stream has invalid markers, or no frame header before its scan")


def _look_at_j2k(stream: bytes) -> _Declared:
    """Size from the SIZ segment of a JPEG 2000 stream (T.800 A.5.1), with bounds on tiles and precincts.

    GDCM allocates about 10 KB per tile and 2 KB per precinct, and leaves missing tiles black.
    """
    start = stream.find(b"\xff\x4f\xff\x51")  # the boxes of a JP2 file precede it
    if start < 0 or len(stream) < start + 43:
        raise CodecError("its code stream has no SIZ segment")
    right, bottom, left, top, tile_width, tile_height, tiles_left, tiles_top, components, depth = (
        struct.unpack(">8IHB", stream[start + 8 : start + 43])
    )
    if not tile_width or not tile_height:
        raise CodecError("its code stream has tiles without a size")
    n_tiles = math.ceil((right - tiles_left) / tile_width) * math.ceil((bottom - tiles_top) / tile_height)
    if n_tiles > MOST_TILES:
        raise CodecError(f"its code stream has {n_tiles} tiles; {MOST_TILES} are allowed")
    found = set()
    for marker, place in _j2k_segments(stream, start + 2):
        if marker == _SOT:
            found.add(stream[place + 4 : place + 6])
        elif (n := _n_precincts(stream, marker, place, right, bottom)) > MOST_PRECINCTS:
            raise CodecError(f"its code stream has {n} precincts; {MOST_PRECINCTS} are allowed")
    if len(found) != n_tiles:
        raise CodecError(f"its code stream is truncated: {len(found)} of {n_tiles} tiles are present")
    return bottom - top, right - left, components, (depth & 0x7F) + 1


def _n_precincts(stream: bytes, marker: int, place: int, width: int, height: int) -> int:
    """Number of precincts of all resolutions by a COD or COC segment; 0 if undivided (T.800 A.6)."""
    if marker not in (_COD, _COC) or not stream[place + (4 if marker == _COD else 5)] & 1:
        return 0
    place += 9 if marker == _COD else 6
    levels = stream[place]
    return sum(
        math.ceil(width / 2 ** (levels - r + (log2 & 15)))
        * math.ceil(height / 2 ** (levels - r + (log2 >> 4)))
        for r, log2 in enumerate(stream[place + 5 : place + 6 + levels])
    )


def _j2k_segments(stream: bytes, place: int) -> Iterator[tuple[int, int]]:
    """Marker and offset of each segment of the main header and of the headers of tile parts (T.800 A.2)."""
    end_of_part = len(stream)
    while place + 12 <= len(stream):
        marker, length = struct.unpack(">HH", stream[place : place + 4])
        if marker == _SOD:
            place = max(end_of_part, place + 2)  # a damaged length can point backwards
            continue
        yield marker, place
        if marker == _SOT:
            (part,) = struct.unpack(">I", stream[place + 6 : place + 10])
            end_of_part = place + part if part else len(stream)
        place += 2 + length


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
