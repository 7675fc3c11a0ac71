"""Small valid CT files in every encoding that occurs, made by code, for tests.

Out: `Case`s: the bytes of a file, and the HU that reading it must give, exact or within a stated tolerance
where the encoding is lossy. Encoders are those of pydicom, pyjpegls and GDCM; none of them writes HTJ2K,
so two code streams of it are files beside this one.

Source: DICOM PS3.5 A.4 and 8.2 (transfer syntaxes), PS3.3 A.38 (enhanced CT), A.70 (legacy converted).
Legend: `H, W` pixels.
"""

import functools
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from pydicom import uid
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate, encapsulate_extended
from pydicom.pixels import get_encoder

H, W = 24, 20
# Largest error of JPEG-LS near-lossless, in stored units: chosen by the encoder's caller.
NEAR = 2
# The lossy streams here are of high quality: off by 8 stored units at most (HTJ2K; the others by 3). Half as
# much again for encoders of other versions.
LOSSY = 12


@dataclass(frozen=True)
class Case:
    """One valid file: its name, its bytes, the HU (H, W) of each of its slices, and how far HU may be off."""

    name: str
    content: bytes
    hu: tuple[np.ndarray, ...]
    tolerance: float = 0.0


@dataclass(frozen=True)
class Storage:
    """How values are stored; HU = slope * stored + intercept."""

    allocated: int = 16
    bits: int = 12
    signed: bool = False
    slope: float = 1
    intercept: float = -1024

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(f"<{'i' if self.signed else 'u'}{self.allocated // 8}")

    def hu(self, stored: np.ndarray) -> np.ndarray:
        """HU on the CT scale, as `read_slice` returns them."""
        hu = np.rint(stored.astype(float) * self.slope + self.intercept)
        return np.clip(hu, -1024, 3095).astype(np.int16)


TWELVE_BIT = Storage()
SIGNED = Storage(bits=16, signed=True)
EIGHT_BIT = Storage(allocated=8, bits=8, slope=8)


def head(phase: float = 0.0) -> np.ndarray:
    """HU (H, W) of a head in air: skull, brain with a gradient, a bright bleed; `phase` moves the bleed."""
    y, x = np.mgrid[-1 : 1 : H * 1j, -1 : 1 : W * 1j]
    radius = np.hypot(x, y * 0.9)
    hu = np.full((H, W), -1000.0)
    hu[radius < 0.9] = 900
    hu[radius < 0.75] = 32
    hu += np.where(radius < 0.75, 8 * x + 3 * np.cos(9 * y), 0)
    hu[np.hypot(x - 0.3 * np.cos(phase), y - 0.3 * np.sin(phase)) < 0.2] = 68
    return np.rint(hu)


def stored_values(storage: Storage = TWELVE_BIT, phase: float = 0.0) -> np.ndarray:
    """Stored values (H, W) of `head`, as near as `storage` can hold them."""
    low = -(1 << (storage.bits - 1)) if storage.signed else 0
    values = np.rint((head(phase) - storage.intercept) / storage.slope)
    return np.clip(values, low, low + (1 << storage.bits) - 1).astype(storage.dtype)


# Code streams


def code_stream(stored: np.ndarray, storage: Storage, syntax: uid.UID) -> bytes:
    """One frame, compressed as `syntax` asks."""
    if syntax in (uid.RLELossless, uid.JPEGLSLossless, uid.JPEGLSNearLossless):
        return _pydicom_stream(stored, storage, syntax)
    if syntax in (uid.HTJ2KLossless, uid.HTJ2KLosslessRPCL, uid.HTJ2K):
        return _htj2k_stream(stored, lossy=syntax == uid.HTJ2K)
    if syntax == uid.JPEGExtended12Bit and storage.bits == 12:
        storage = replace(storage, allocated=12)  # else GDCM writes a precision of 16, which no DCT has
    return gdcm_stream(stored, storage, syntax)


def gdcm_stream(stored: np.ndarray, storage: Storage, syntax: uid.UID) -> bytes:
    """One frame compressed by GDCM; `storage.allocated` of 12 makes it write a JPEG precision of 12."""
    import gdcm

    writer = gdcm.ImageWriter()  # owns the image
    image = writer.GetImage()
    image.SetNumberOfDimensions(2)
    image.SetDimensions((stored.shape[1], stored.shape[0], 1))
    grey = gdcm.PhotometricInterpretation.MONOCHROME2
    image.SetPhotometricInterpretation(gdcm.PhotometricInterpretation(grey))
    image.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.ImplicitVRLittleEndian))
    bits = storage.bits
    image.SetPixelFormat(gdcm.PixelFormat(1, storage.allocated, bits, bits - 1, int(storage.signed)))
    element = gdcm.DataElement(gdcm.Tag(0x7FE0, 0x0010))
    element.SetByteStringValue(stored.tobytes())
    image.SetDataElement(element)
    change = gdcm.ImageChangeTransferSyntax()
    change.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.GetTSType(str(syntax))))
    change.SetInput(image)
    if syntax in (uid.JPEGBaseline8Bit, uid.JPEGExtended12Bit):
        codec = gdcm.JPEGCodec()
        codec.SetLossless(False)
        codec.SetQuality(98)
        change.SetUserCodec(codec)
    elif syntax == uid.JPEG2000:
        codec = gdcm.JPEG2000Codec()
        codec.SetReversible(False)
        codec.SetQuality(0, 100)
        change.SetUserCodec(codec)
    if not change.Change():
        raise RuntimeError(f"GDCM cannot write {storage} as {syntax.name}")
    fragments = change.GetOutput().GetDataElement().GetSequenceOfFragments()
    return fragments.GetFragment(0).GetByteValue().GetBuffer().encode("utf-8", "surrogateescape")


def _pydicom_stream(stored: np.ndarray, storage: Storage, syntax: uid.UID) -> bytes:
    """RLE by pydicom itself, JPEG-LS by pyjpegls."""
    options: dict[str, Any] = {"jls_error": NEAR} if syntax == uid.JPEGLSNearLossless else {}
    return get_encoder(syntax).encode(
        stored,
        encoding_plugin="pydicom" if syntax == uid.RLELossless else "pyjpegls",
        rows=stored.shape[0],
        columns=stored.shape[1],
        bits_allocated=storage.allocated,
        bits_stored=storage.bits,
        samples_per_pixel=1,
        photometric_interpretation="MONOCHROME2",
        pixel_representation=int(storage.signed),
        number_of_frames=1,
        **options,
    )


def _htj2k_stream(stored: np.ndarray, *, lossy: bool) -> bytes:
    """Stored HTJ2K stream of `stored_values()`, by imagecodecs 2026.3.6 (OpenJPH 0.26.3, progression RPCL).

    htj2k_encode(values, reversible=True) and htj2k_encode(values, level=0.0001, reversible=False).
    """
    assert np.array_equal(stored, stored_values())
    return Path(__file__).with_name(f"htj2k_{'lossy' if lossy else 'lossless'}.j2c").read_bytes()


# Files


def data_set(stored: np.ndarray, storage: Storage, **changes: object) -> Dataset:
    """A CT slice without its pixels; a change to None deletes the element."""
    ds = Dataset()
    values: dict[str, object] = {
        "SOPClassUID": uid.CTImageStorage,
        "SOPInstanceUID": "1.2.3.1",
        "StudyInstanceUID": "1.2.3",
        "SeriesInstanceUID": "1.2.3.4",
        "PatientID": "P1",
        "PatientName": "Phantom^Head",
        "Modality": "CT",
        "ImageType": ["ORIGINAL", "PRIMARY", "AXIAL"],
        "SamplesPerPixel": 1,
        "PhotometricInterpretation": "MONOCHROME2",
        "Rows": stored.shape[-2],
        "Columns": stored.shape[-1],
        "ImagePositionPatient": [-125, -120.5, 30],
        "ImageOrientationPatient": [1, 0, 0, 0, 1, 0],
        "PixelSpacing": [0.5, 0.45],
        "SliceThickness": 5,
        "InstanceNumber": 7,
        "SeriesDescription": "CT PLAIN",
        "ConvolutionKernel": "STANDARD",
        "BitsAllocated": storage.allocated,
        "BitsStored": storage.bits,
        "HighBit": storage.bits - 1,
        "PixelRepresentation": int(storage.signed),
        "RescaleSlope": storage.slope,
        "RescaleIntercept": storage.intercept,
    }
    for keyword, value in (values | changes).items():
        if value is not None:
            setattr(ds, keyword, value)
    return ds


def enhanced(frames: Sequence[np.ndarray], storages: Sequence[Storage], *, legacy: bool = False) -> Dataset:
    """An enhanced CT of `frames` (H, W) without its pixels, or a Legacy Converted one.

    Orientation and spacing are shared; position, slope and intercept are per frame.
    """
    geometry = ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "SliceThickness")
    rescale = ("RescaleSlope", "RescaleIntercept")
    ds = data_set(frames[0], storages[0], **dict.fromkeys((*geometry, *rescale)))
    ds.SOPClassUID = uid.LegacyConvertedEnhancedCTImageStorage if legacy else uid.EnhancedCTImageStorage
    ds.NumberOfFrames = len(frames)
    shared, orientation, measures = Dataset(), Dataset(), Dataset()
    orientation.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
    measures.PixelSpacing = [0.5, 0.45]
    measures.SliceThickness = 5
    shared.PlaneOrientationSequence = [orientation]
    shared.PixelMeasuresSequence = [measures]
    ds.SharedFunctionalGroupsSequence = [shared]
    items = []
    for index, storage in enumerate(storages):
        item, position, content, to_hu = Dataset(), Dataset(), Dataset(), Dataset()
        position.ImagePositionPatient = [-125, -120.5, 30 + 5 * index]
        content.DimensionIndexValues = [1, index + 1]
        to_hu.RescaleSlope, to_hu.RescaleIntercept = storage.slope, storage.intercept
        to_hu.RescaleType = "HU"
        item.PlanePositionSequence = [position]
        item.FrameContentSequence = [content]
        item.PixelValueTransformationSequence = [to_hu]
        items.append(item)
    ds.PerFrameFunctionalGroupsSequence = items
    return ds


def add_native(ds: Dataset, frames: Sequence[np.ndarray], storage: Storage, syntax: uid.UID) -> Dataset:
    """Put uncompressed pixels into `ds`."""
    dtype = storage.dtype.newbyteorder(">" if syntax == uid.ExplicitVRBigEndian else "<")
    content = b"".join(frame.astype(dtype).tobytes() for frame in frames)
    ds.PixelData = content + b"\0" * (len(content) % 2)
    ds["PixelData"].VR = "OW" if storage.allocated > 8 or syntax == uid.ImplicitVRLittleEndian else "OB"
    return ds


def add_encapsulated(
    ds: Dataset, streams: Sequence[bytes], *, table: str = "basic", fragments: int = 1
) -> Dataset:
    """Put compressed frames into `ds`, with a `basic` or `extended` offset table or `none`."""
    if table == "extended":
        extended = encapsulate_extended(list(streams))
        ds.PixelData, ds.ExtendedOffsetTable, ds.ExtendedOffsetTableLengths = extended
    else:
        ds.PixelData = encapsulate(list(streams), fragments_per_frame=fragments, has_bot=table == "basic")
    ds["PixelData"].VR = "OB"
    ds["PixelData"].is_undefined_length = True
    return ds


def file_bytes(ds: Dataset, syntax: uid.UID) -> bytes:
    """The file of `ds`, with preamble and file meta."""
    ds.file_meta = FileMetaDataset()
    ds.file_meta.TransferSyntaxUID = syntax
    ds.file_meta.MediaStorageSOPClassUID = ds.get("SOPClassUID", uid.CTImageStorage)
    ds.file_meta.MediaStorageSOPInstanceUID = ds.get("SOPInstanceUID", "1.2.3.1")
    buffer = io.BytesIO()
    pydicom.dcmwrite(buffer, ds, enforce_file_format=True)
    return buffer.getvalue()


def bare_bytes(ds: Dataset, *, implicit: bool) -> bytes:
    """The data set of `ds` alone, without preamble and file meta, little endian."""
    buffer = io.BytesIO()
    pydicom.dcmwrite(buffer, ds, implicit_vr=implicit, little_endian=True)
    return buffer.getvalue()


# Cases

_NATIVE = {
    "implicit": uid.ImplicitVRLittleEndian,
    "explicit": uid.ExplicitVRLittleEndian,
    "big-endian": uid.ExplicitVRBigEndian,
    "deflated": uid.DeflatedExplicitVRLittleEndian,
}
_STORAGES = {
    "12-bit": TWELVE_BIT,
    "16-bit": Storage(bits=16),
    "16-bit-signed": SIGNED,
    "12-bit-signed-hu": Storage(signed=True, intercept=0),
    "8-bit": EIGHT_BIT,
    "slope-2": Storage(slope=2, intercept=-1024),
    "slope-half": Storage(bits=16, slope=0.5),
}
# Each syntax with the storages it is written from, and its error in stored units.
_COMPRESSED: dict[str, tuple[uid.UID, tuple[str, ...], float]] = {
    "rle": (uid.RLELossless, ("12-bit", "16-bit-signed", "8-bit"), 0),
    "jpeg-baseline": (uid.JPEGBaseline8Bit, ("8-bit",), LOSSY),
    "jpeg-extended": (uid.JPEGExtended12Bit, ("12-bit", "8-bit", "slope-2"), LOSSY),
    "jpeg-lossless": (uid.JPEGLossless, ("12-bit", "16-bit-signed", "8-bit"), 0),
    "jpeg-lossless-sv1": (uid.JPEGLosslessSV1, ("12-bit", "16-bit-signed", "8-bit", "slope-half"), 0),
    "jpeg-ls": (uid.JPEGLSLossless, ("12-bit", "16-bit-signed", "8-bit"), 0),
    "jpeg-ls-near": (uid.JPEGLSNearLossless, ("12-bit", "8-bit"), NEAR),
    "j2k-lossless": (uid.JPEG2000Lossless, ("12-bit", "16-bit-signed", "8-bit"), 0),
    "j2k": (uid.JPEG2000, ("12-bit", "16-bit-signed"), LOSSY),
    "htj2k-lossless": (uid.HTJ2KLossless, ("12-bit",), 0),
    "htj2k-lossless-rpcl": (uid.HTJ2KLosslessRPCL, ("12-bit",), 0),
    "htj2k": (uid.HTJ2K, ("12-bit",), LOSSY),
}


@functools.cache
def cases() -> tuple[Case, ...]:
    """Every encoding, a file each; names do not repeat."""
    return (*_native_cases(), *_compressed_cases(), *_odd_cases(), *_multi_frame_cases())


def _native_cases() -> Iterator[Case]:
    for syntax_name, syntax in _NATIVE.items():
        for storage_name, storage in _STORAGES.items():
            stored = stored_values(storage)
            ds = add_native(data_set(stored, storage), [stored], storage, syntax)
            yield Case(f"{syntax_name}/{storage_name}", file_bytes(ds, syntax), (storage.hu(stored),))
    for name, implicit in (("implicit", True), ("explicit", False)):
        stored = stored_values()
        ds = add_native(data_set(stored, TWELVE_BIT), [stored], TWELVE_BIT, uid.ExplicitVRLittleEndian)
        yield Case(f"{name}/bare", bare_bytes(ds, implicit=implicit), (TWELVE_BIT.hu(stored),))


def _compressed_cases() -> Iterator[Case]:
    for syntax_name, (syntax, names, error) in _COMPRESSED.items():
        for storage_name in names:
            storage = _STORAGES[storage_name]
            stored = stored_values(storage)
            ds = add_encapsulated(data_set(stored, storage), [code_stream(stored, storage, syntax)])
            content = file_bytes(ds, syntax)
            yield Case(f"{syntax_name}/{storage_name}", content, (storage.hu(stored),), error * storage.slope)


def _odd_cases() -> Iterator[Case]:
    """Single slices that are valid and trip readers."""
    stored = stored_values()
    hu = (TWELVE_BIT.hu(stored),)
    for syntax_name, syntax in (
        ("jpeg-lossless-sv1", uid.JPEGLosslessSV1),
        ("j2k-lossless", uid.JPEG2000Lossless),
    ):
        stream = code_stream(stored, TWELVE_BIT, syntax)
        for fragments, table in ((3, "basic"), (3, "none"), (1, "none")):
            ds = add_encapsulated(data_set(stored, TWELVE_BIT), [stream], table=table, fragments=fragments)
            yield Case(f"{syntax_name}/{fragments}-fragments-{table}", file_bytes(ds, syntax), hu)
    # Most encoders other than GDCM write 12-bit lossless JPEG with a precision of 12, signed values masked.
    signed = Storage(signed=True, intercept=0)
    values = stored_values(signed)
    masked = (values & 0xFFF).astype(np.uint16)
    as_12 = replace(TWELVE_BIT, allocated=12)
    for name, syntax, writer in (
        ("jpeg-lossless-sv1/precision-12", uid.JPEGLosslessSV1, as_12),
        ("j2k-lossless/unsigned-stream", uid.JPEG2000Lossless, TWELVE_BIT),
    ):
        ds = add_encapsulated(data_set(values, signed), [gdcm_stream(masked, writer, syntax)])
        yield Case(f"{name}-signed", file_bytes(ds, syntax), (signed.hu(values),))
    ds = add_encapsulated(data_set(stored, TWELVE_BIT), [gdcm_stream(stored, as_12, uid.JPEGLosslessSV1)])
    yield Case("jpeg-lossless-sv1/precision-12", file_bytes(ds, uid.JPEGLosslessSV1), hu)


def _multi_frame_cases() -> Iterator[Case]:
    storages = [replace(TWELVE_BIT, intercept=-1024 + 2 * index) for index in range(3)]
    frames = [stored_values(storage, phase=index) for index, storage in enumerate(storages)]
    hu = tuple(storage.hu(frame) for storage, frame in zip(storages, frames, strict=True))

    for name, syntax in _NATIVE.items():
        for legacy in (False, True):
            ds = add_native(enhanced(frames, storages, legacy=legacy), frames, TWELVE_BIT, syntax)
            yield Case(f"enhanced/{name}{'-legacy' * legacy}", file_bytes(ds, syntax), hu)
    for name, syntax in (
        ("rle", uid.RLELossless),
        ("jpeg-lossless-sv1", uid.JPEGLosslessSV1),
        ("jpeg-ls", uid.JPEGLSLossless),
        ("j2k-lossless", uid.JPEG2000Lossless),
    ):
        streams = [code_stream(frame, TWELVE_BIT, syntax) for frame in frames]
        for table, fragments in (("basic", 1), ("none", 1), ("extended", 1), ("basic", 2), ("none", 2)):
            if syntax == uid.RLELossless and fragments > 1:
                continue  # PS3.5 A.4.2: one fragment a frame
            ds = add_encapsulated(enhanced(frames, storages), streams, table=table, fragments=fragments)
            yield Case(f"enhanced/{name}-{table}-{fragments}", file_bytes(ds, syntax), hu)
