"""The index of a CD, DICOMDIR: which of the images it names are not there.

In: its place and its data set. Out: the study and the file of each image that was lost when it was copied.

Source: DICOM PS3.3 F.3 (directory records), PS3.10 8.2 (file IDs).
"""

from collections import defaultdict
from pathlib import Path

from pydicom.dataset import Dataset


def lost_images(path: Path, directory: Dataset) -> list[tuple[str, str]]:
    """The images of a DICOMDIR that are absent, though others of their series are there.

    A series of which there is nothing was left out on purpose, or its files have other names now.

    Args:
        path: of the DICOMDIR; what it names lies beside and below it.
        directory: its data set. Records follow each other from the patient down, as every writer has them.

    Returns:
        StudyInstanceUID and file ID of each.
    """
    study = series = ""
    found: dict[tuple[str, str], list[tuple[str, bool]]] = defaultdict(list)
    for record in directory.get("DirectoryRecordSequence", ()):
        study = str(record.get("StudyInstanceUID", study))
        series = str(record.get("SeriesInstanceUID", series))
        if record.get("DirectoryRecordType") == "IMAGE" and "ReferencedFileID" in record:
            name = record.ReferencedFileID
            parts = [name] if isinstance(name, str) else list(name or ())
            # ISO 9660 has capitals only; some systems show them small
            is_there = any((path.parent.joinpath(*map(how, parts))).exists() for how in (str, str.lower))
            found[study, series].append(("/".join(parts), is_there))
    return [
        (study, name)
        for (study, _), images in found.items()
        for name, is_there in images
        if not is_there and any(there for _, there in images)
    ]
