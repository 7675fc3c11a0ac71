"""Files made to cost time or memory: what is decoded, inflated, parsed and opened is counted."""

import os
import struct
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydicom.config import disable_value_validation
from pydicom.dataset import Dataset
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    RLELossless,
)

from ich_mil.dicom.files import codec, elements, refusal
from ich_mil.dicom.files.codec import CodecError, decode
from ich_mil.dicom.files.elements import MOST_VALUE_BYTES, NotDicomError, read_elements
from ich_mil.dicom.files.header import read_headers
from ich_mil.dicom.pixels.read import read_slice
from ich_mil.errors import DicomError
from ich_mil.ledger import Code
from tests.dicom.encodings import (
    TWELVE_BIT,
    H,
    W,
    add_native,
    code_stream,
    enhanced,
    file_bytes,
    stored_values,
)
from tests.dicom.headers import PIXELS, header
from tests.dicom.mutations import take_apart
from tests.dicom.small_files import refused, write

FRAMES = 40


def frames_of(n: int):
    stored = [stored_values(phase=i) for i in range(n)]
    return enhanced(stored, [TWELVE_BIT] * n), stored


def written(folder: Path, ds, stored, syntax) -> Path:
    path = folder / "frames.dcm"
    path.write_bytes(file_bytes(add_native(ds, stored, TWELVE_BIT, syntax), syntax))
    return path


@pytest.mark.filterwarnings("ignore:The value length")
def test_texts_are_cut_off_and_decoded_once_for_all_frames(tmp_path, monkeypatch):
    ds, stored = frames_of(FRAMES)
    kernel = Dataset()
    with disable_value_validation():
        ds.SpecificCharacterSet, ds.SeriesDescription = "ISO_IR 100", "ä" * 1_000_000
        kernel.ConvolutionKernel = "B" * 1_000_000
        ds.SharedFunctionalGroupsSequence[0].CTReconstructionSequence = [kernel]
        path = written(tmp_path, ds, stored, ImplicitVRLittleEndian)
    decoded, real = [], elements.decode_text
    monkeypatch.setattr(
        elements, "decode_text", lambda raw, sets: decoded.append(len(raw)) or real(raw, sets)
    )
    headers = read_headers(path)
    assert decoded == [MOST_VALUE_BYTES]
    assert headers[0].description.startswith("ä")
    assert all(header.description is headers[0].description for header in headers)
    assert max(len(one.kernel) + len(one.description) for one in headers) <= 2 * MOST_VALUE_BYTES


def test_deflated_frames_are_inflated_once_in_any_order(tmp_path, monkeypatch):
    ds, stored = frames_of(FRAMES)
    path = written(tmp_path, ds, stored, DeflatedExplicitVRLittleEndian)
    headers = read_headers(path)
    inflated, real = [], elements._inflated
    monkeypatch.setattr(elements, "_inflated", lambda *a: (inflated.append(len(p)) or p for p in real(*a)))
    for one in (*headers[::-1], *headers[::7]):
        np.testing.assert_array_equal(read_slice(one)[0], TWELVE_BIT.hu(stored[one.frame]))
    assert sum(inflated) <= headers[0].pixels.offset + FRAMES * 2 * H * W + elements.HEAD_BYTES


def test_frames_before_the_damage_of_a_deflated_file_are_read(tmp_path):
    ds, stored = frames_of(FRAMES)
    path = written(tmp_path, ds, stored, DeflatedExplicitVRLittleEndian)
    first, *_, last = read_headers(path)
    content = path.read_bytes()
    path.write_bytes(content[:-200] + b"\xff" * 200)
    np.testing.assert_array_equal(read_slice(first)[0], TWELVE_BIT.hu(stored[0]))
    with pytest.raises(DicomError, match="truncated"):
        read_slice(last)


def test_a_deflated_file_is_inflated_no_further_than_its_pixels(tmp_path):
    ds, stored = frames_of(1)
    path = written(tmp_path, ds, stored, DeflatedExplicitVRLittleEndian)
    content, bomb = path.read_bytes(), zlib.compressobj(9, wbits=-15)
    layout = take_apart(content)
    flat = layout.flat[layout.body :] + bytes(100 << 20)
    path.write_bytes(content[: layout.body] + bomb.compress(flat) + bomb.flush())
    tracemalloc.start()
    (only,) = read_headers(path)
    read_slice(only)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize("limit", ["frames", "items"])
def test_frames_beyond_the_limit_are_not_parsed(tmp_path, monkeypatch, limit):
    ds, stored = frames_of(FRAMES)
    path = written(tmp_path, ds, stored, ExplicitVRLittleEndian)
    assert len(read_headers(path)) == FRAMES
    parsed = []
    monkeypatch.setattr(elements, "read_dataset", lambda *_, **__: parsed.append(1))
    if limit == "frames":
        monkeypatch.setattr(refusal, "MOST_FRAMES", FRAMES - 1)
    else:
        monkeypatch.setattr(elements, "MOST_ITEMS", 4 * FRAMES - 1)
    assert refused(read_headers, path) == (Code.MULTI_FRAME if limit == "frames" else Code.UNREADABLE)
    assert parsed == []


def rle_stream(*segments: bytes) -> bytes:
    starts = np.cumsum([64, *map(len, segments)])[:-1]
    return struct.pack("<16L", len(segments), *starts, *[0] * (15 - len(segments))) + b"".join(segments)


@pytest.mark.parametrize(
    "segment",
    [
        b"\x81\x07" * 1024,  # runs of 128: twice as many pixels as the header has
        b"\x81\x07" * (1 << 20),
        b"\x80" * (1 << 22),  # no operations
        b"\x81\x07" * 100,  # too few
    ],
)
def test_rle_beyond_rows_and_columns_is_refused_at_the_bound(segment):
    pixels = replace(PIXELS, syntax=str(RLELossless), bits_allocated=8, bits_stored=8, signed=False)
    of_rle = header(0, rows=256, columns=256, pixels=pixels)
    fitting = b"\x81\x07" * 512
    np.testing.assert_array_equal(decode(rle_stream(fitting), of_rle), np.full((256, 256), 7))
    np.testing.assert_array_equal(decode(rle_stream(fitting + b"\x00\x00"), of_rle), np.full((256, 256), 7))
    stream = rle_stream(segment)
    tracemalloc.start()
    with pytest.raises(CodecError):
        decode(stream, of_rle)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * len(stream) + 4 * 256 * 256
    with pytest.raises(CodecError, match="segments"):
        decode(rle_stream(fitting, fitting), of_rle)


def j2k(**changes: bytes) -> bytes:
    """A JPEG 2000 stream with other tiles or precincts (T.800 A.5.1, A.6.1)."""
    stream = code_stream(stored_values(), TWELVE_BIT, JPEG2000Lossless)
    siz, cod = stream.index(b"\xff\x51"), stream.index(b"\xff\x52")
    if "tile" in changes:
        return stream[: siz + 22] + changes["tile"] + stream[siz + 30 :]
    length = int.from_bytes(stream[cod + 2 : cod + 4], "big")
    precincts = bytes([changes["precincts"][0]] * (stream[cod + 9] + 1))
    head = b"\xff\x52" + struct.pack(">H", length + len(precincts)) + bytes([stream[cod + 4] | 1])
    return stream[:cod] + head + stream[cod + 5 : cod + 2 + length] + precincts + stream[cod + 2 + length :]


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (j2k(tile=struct.pack(">2I", 12, 12)), "1 of 4 tiles"),  # the others would be black
        (j2k(tile=struct.pack(">2I", 1, 1)), "480 tiles; 100 are allowed"),
        (j2k(precincts=b"\x11"), " precincts; 100 are allowed"),
    ],
)
def test_jpeg_2000_with_many_tiles_or_precincts_is_not_decoded(monkeypatch, stream, reason):
    pixels = replace(PIXELS, syntax=str(JPEG2000Lossless), bits_stored=12, signed=False)
    of_j2k = header(0, rows=H, columns=W, pixels=pixels)
    np.testing.assert_array_equal(decode(j2k(precincts=b"\xff"), of_j2k), stored_values())
    monkeypatch.setattr(codec, "MOST_TILES", 100)
    monkeypatch.setattr(codec, "MOST_PRECINCTS", 100)
    monkeypatch.setattr(codec, "get_decoder", None)
    with pytest.raises(CodecError, match=reason):
        decode(stream, of_j2k)


def test_only_regular_files_are_opened(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "proc").symlink_to("/proc/version")
    path = write(tmp_path)
    (before,) = read_headers(path)
    path.unlink()
    os.mkfifo(path)  # in place of a file that was indexed
    opened = []
    monkeypatch.setattr(Path, "open", lambda self, *_, **__: opened.append(self))
    monkeypatch.setattr("ich_mil.dicom.pixels.read._BoundedFile", opened.append)
    assert refused(read_headers, tmp_path / "fifo") == Code.NOT_DICOM
    assert refused(read_headers, tmp_path / "device") == Code.NOT_DICOM
    assert refused(read_headers, tmp_path / "proc") == Code.UNREADABLE
    for syntax in (ExplicitVRLittleEndian, DeflatedExplicitVRLittleEndian, RLELossless):
        with pytest.raises(DicomError):
            read_slice(replace(before, pixels=replace(before.pixels, syntax=str(syntax))))
    with pytest.raises(NotDicomError):
        read_elements(tmp_path / "device", ["Modality"])
    assert opened == []


@pytest.mark.parametrize("length", range(1, 20))
def test_jpeg_2000_tile_part_shorter_than_its_header_comes_to_an_end(length):
    stream = code_stream(stored_values(), TWELVE_BIT, JPEG2000Lossless)
    place = stream.index(b"\xff\x90") + 6  # Psot (T.800 A.4.2)
    changed = stream[:place] + struct.pack(">I", length) + stream[place + 4 :]
    pixels = replace(PIXELS, syntax=str(JPEG2000Lossless), bits_stored=12, signed=False)
    with pytest.raises(Exception, match=r"."):
        decode(changed, header(0, rows=H, columns=W, pixels=pixels))
