"""Headers of the files of a collection, read by a worker: slices, or the reason why a file is refused.

An unreadable slice is known by its name: `IM0031.dcm` beside `IM0030.dcm` is a lost slice even if it contains
an error message, and an empty `.gitkeep` is not.
"""

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ich_mil.errors import DicomError
from ich_mil.sets.layouts.slice_pictures import is_picture, picture_headers
from ich_mil.sets.splits import patient_key
from ich_mil.study.files.header import SliceHeader, read_headers
from ich_mil.study.files.nifti import is_nifti, nifti_headers, without_suffix

# These archives hold several files and may have any name; the packed formats hold one file and keep its name.
_PACKS_SEVERAL = re.compile(r".+\.(zip|7z|rar|tgz|tar|tar\.\w+)", re.IGNORECASE)
_PACKED = re.compile(r"\.(gz|bz2|xz|zst)$", re.IGNORECASE)
_SUFFIX = re.compile(r"(.+)\.([A-Za-z][A-Za-z0-9]{0,7})")
_NUMBER = re.compile(r"[0-9A-Fa-f]*[0-9][0-9A-Fa-f]*(\.[0-9]+)*")
"""A decimal number, a hexadecimal number, or a UID."""


class FileHeaders(NamedTuple):
    """Headers of one file; the fields from `code` on apply to refused files only."""

    path: str
    headers: tuple[SliceHeader, ...]
    study: str
    sop: str
    code: str = ""
    detail: str = ""
    series: str = ""
    orientation: tuple[float, ...] | None = None
    is_dicom: bool = True


def read_files(paths: Sequence[str], root: Path, pictures: bool) -> list[FileHeaders]:
    """Read the headers of files; of PNG and JPEG files too if `pictures`."""
    chunk = []
    for path in paths:
        try:
            if pictures and is_picture(path):
                headers: tuple[SliceHeader, ...] = picture_headers(root / path)
            elif is_nifti(path) and not pictures:
                headers = nifti_headers(root / path, without_suffix(path))
            else:
                headers = read_headers(root / path)
        except DicomError as error:
            reason = str(error).removeprefix(f"{root}{os.sep}")
            known = error.is_dicom or os.path.isdir(root / path)  # noqa: PTH112 - a folder has no content
            extra = (error.series_uid, error.orientation, known)
            chunk.append(FileHeaders(path, (), error.study_uid, error.sop_uid, error.code, reason, *extra))
        else:
            key = patient_key(headers[0].patient_id)
            headers = tuple(replace(header, path="", patient_id=key) for header in headers)
            chunk.append(FileHeaders(path, headers, headers[0].study_uid, headers[0].sop_uid))
    return chunk


class Shape(NamedTuple):
    """Whether a file name is hidden, its suffix, and its stem with # for each number, in lower case."""

    hidden: bool
    suffix: str
    numbering: str


def shape_of(name: str) -> Shape:
    """Shape of a file name. A suffix that starts with a digit is part of the stem."""
    match = _SUFFIX.fullmatch(name)
    stem, suffix = (match[1], match[2].lower()) if match else (name, "")
    return Shape(name.startswith("."), suffix, _NUMBER.sub("#", stem).lower())


def may_be_slice(name: str, slices: Collection[Shape]) -> bool:
    """Whether a file may be one of the slices of a folder; always True if there are no slices."""
    if not slices or _PACKS_SEVERAL.fullmatch(name):
        return True
    shape = shape_of(_PACKED.sub("", name))
    if shape.suffix:
        return shape[:2] in {other[:2] for other in slices}
    return "#" in shape.numbering and shape.numbering in {other.numbering for other in slices}
