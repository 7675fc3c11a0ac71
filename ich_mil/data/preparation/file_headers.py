"""Headers of the files of a collection, read by a worker: slices, or the reason why a file is refused."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ich_mil.data.layouts.slice_pictures import is_picture, picture_headers
from ich_mil.data.splits import patient_key
from ich_mil.dicom.files.header import SliceHeader, read_headers
from ich_mil.errors import DicomError


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
            read = picture_headers if pictures and is_picture(path) else read_headers
            headers = read(root / path)
        except DicomError as error:
            reason = str(error).removeprefix(f"{root}{os.sep}")
            known = error.is_dicom or os.path.isdir(root / path)  # noqa: PTH112 - a folder has no content
            place = (error.series_uid, error.orientation, known)
            chunk.append(FileHeaders(path, (), error.study_uid, error.sop_uid, error.code, reason, *place))
        else:
            key = patient_key(headers[0].patient_id)
            headers = tuple(replace(header, path="", patient_id=key) for header in headers)
            chunk.append(FileHeaders(path, headers, headers[0].study_uid, headers[0].sop_uid))
    return chunk
