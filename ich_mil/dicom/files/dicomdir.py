"""Detection of images that a DICOMDIR lists and that are absent.

In: the path and the data set of a DICOMDIR. Out: study UID and file ID of each image lost in copying.

Source: DICOM PS3.3 F.3 (directory records), PS3.10 8.2 (file IDs).
"""

from collections import defaultdict
from pathlib import Path

from pydicom.dataset import Dataset


def lost_images(path: Path, directory: Dataset) -> list[tuple[str, str]]:
    """Absent images of a DICOMDIR in series of which other images are present.

    If all images of a series are absent, it was left out on purpose or its files were renamed.

    Args:
        path: path of the DICOMDIR; file IDs are relative to its folder.
        directory: data set of the DICOMDIR. Records must be in hierarchical order from the patient down, as
            all known writers store them.

    Returns:
        (StudyInstanceUID, file ID) pairs.
    """
    study = series = ""
    found: dict[tuple[str, str], list[tuple[str, bool]]] = defaultdict(list)
    for record in directory.get("DirectoryRecordSequence", ()):
        study = str(record.get("StudyInstanceUID", study))
        series = str(record.get("SeriesInstanceUID", series))
        if record.get("DirectoryRecordType") == "IMAGE" and "ReferencedFileID" in record:
            name = record.ReferencedFileID
            parts = [name] if isinstance(name, str) else list(name or ())
            # ISO 9660 names are upper case; some systems show them in lower case
            is_there = any((path.parent.joinpath(*map(how, parts))).exists() for how in (str, str.lower))
            found[study, series].append(("/".join(parts), is_there))
    return [
        (study, name)
        for (study, _), images in found.items()
        for name, is_there in images
        if not is_there and any(there for _, there in images)
    ]
