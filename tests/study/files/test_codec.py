"""Code streams that do not fit their header, that are cut off, or that need a package which is not there."""

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from pydicom.uid import MPEG2MPML, JPEG2000Lossless, JPEGLosslessSV1, JPEGLSLossless, RLELossless

from ich_mil.study.files import codec
from ich_mil.study.files.codec import CodecError, decode
from tests.study.encodings import EIGHT_BIT, SIGNED, TWELVE_BIT, H, W, code_stream, stored_values
from tests.study.headers import PIXELS, header

LOSSLESS = (RLELossless, JPEGLosslessSV1, JPEGLSLossless, JPEG2000Lossless)
WITH_END = LOSSLESS[1:]


def decoded(stream, syntax, *, storage=TWELVE_BIT, rows=H, columns=W):
    bits = {"bits_allocated": storage.allocated, "bits_stored": storage.bits, "signed": storage.signed}
    pixels = replace(PIXELS, syntax=syntax, **bits)
    return decode(stream, header(0, rows=rows, columns=columns, pixels=pixels))


@pytest.mark.parametrize("syntax", LOSSLESS)
def test_lossless_values(syntax):
    stored = stored_values(SIGNED)
    stored[0, :4] = -32768, -1, 0, 32767
    found = decoded(code_stream(stored, SIGNED, syntax), syntax, storage=SIGNED)
    assert found.dtype == stored.dtype
    np.testing.assert_array_equal(found, stored)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("syntax", LOSSLESS)
def test_bits_above_the_stored_are_unchanged(syntax, signed):
    storage = replace(TWELVE_BIT, signed=signed)
    stored = stored_values(storage)
    stored[0, :2] = 30768, 0x1428  # padding whose sign was lost, an overlay
    stream = code_stream(stored, replace(storage, bits=16), syntax)
    np.testing.assert_array_equal(decoded(stream, syntax, storage=storage), stored)


@pytest.mark.parametrize("syntax", WITH_END)
def test_padding_behind_the_end_is_ignored(syntax):
    stored = stored_values()
    stream = code_stream(stored, TWELVE_BIT, syntax).rstrip(b"\0\xff")
    for padding in (b"", b"\0", b"\xff", b"\0\0\0"):
        np.testing.assert_array_equal(decoded(stream + padding, syntax), stored)


@pytest.mark.parametrize("syntax", LOSSLESS)
def test_no_part_of_a_code_stream_is_decoded(syntax):
    """What is cut off must not come back as grey: each prefix is refused."""
    stream = code_stream(stored_values(), TWELVE_BIT, syntax).rstrip(b"\0\xff")
    for n in range(0, len(stream) - 1, 5):
        with pytest.raises(Exception, match=r"."):
            decoded(stream[:n], syntax)


@pytest.mark.parametrize(("syntax", "samples"), list(zip(WITH_END, (11, 11, 41), strict=True)))
def test_streams_unlike_their_header(syntax, samples):
    """Another size, depth or number of samples."""
    stream = bytearray(code_stream(stored_values(), TWELVE_BIT, syntax))
    with pytest.raises(CodecError, match=f"stream has {H} x {W} x 1 of"):
        decoded(bytes(stream), syntax, rows=W, columns=H)
    with pytest.raises(CodecError, match=r" x 1 of 8$"):
        decoded(bytes(stream), syntax, storage=EIGHT_BIT)
    stream[samples] = 3
    with pytest.raises(CodecError, match=f"{H} x {W} x 3 of"):
        decoded(bytes(stream), syntax)


def test_a_stream_of_another_syntax_is_named():
    stream = code_stream(stored_values(), TWELVE_BIT, JPEGLSLossless)
    with pytest.raises(CodecError, match="is not JPEG 2000: it begins with ff d8 ff f7"):
        decoded(stream, JPEG2000Lossless)


def test_jpeg_segment_beyond_the_stream():
    """GDCM would end the process."""
    stream = bytearray(code_stream(stored_values(), TWELVE_BIT, JPEGLosslessSV1))
    stream[4] = 0xFF
    with pytest.raises(CodecError, match="markers"):
        decoded(bytes(stream), JPEGLosslessSV1)


@pytest.mark.parametrize("syntax", WITH_END)
def test_a_missing_decoder_is_named_by_its_package(syntax, monkeypatch):
    monkeypatch.setattr(codec, "find_spec", lambda name: None if name == "gdcm" else find_spec(name))
    with pytest.raises(CodecError, match=r"needs the package python-gdcm: pip install python-gdcm$"):
        decoded(b"", syntax)


def test_a_syntax_that_is_not_read():
    with pytest.raises(CodecError, match=r"^MPEG2 Main .* is not read; save the file as Explicit VR"):
        decoded(b"", MPEG2MPML)
