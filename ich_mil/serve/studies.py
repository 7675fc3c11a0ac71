"""Received studies on disk: the identity of an object, and the job of a study with all its objects.

File names never contain received text: a study is named by the digest of its UID, an object by digests of its
UID with position and of its content.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from ich_mil.dicom.files.elements import read_elements
from ich_mil.errors import IchMilError
from ich_mil.serve.disk import digest_of, sync_file

_OF_A_SLICE = ("StudyInstanceUID", "SOPInstanceUID", "ImagePositionPatient")
UID_LENGTH = 64
"""Maximum length of a UID, characters (PS3.5 6.2)."""


class RefusedError(IchMilError):
    """An object without a usable StudyInstanceUID."""


@dataclass(frozen=True)
class Job:
    """A complete study: `key` is the digest of its UID, `mark` that of the names of its files in `objects`.

    A later object makes another mark, a repeated object does not.
    """

    key: str
    mark: str
    study_uid: str
    objects: Path

    @property
    def name(self) -> str:
        """Name of this state of the study: `KEY-MARK`."""
        return f"{self.key}-{self.mark}"


def read_job(study: Path) -> Job | None:
    """The job of a study; None if it contains no object yet, as after a kill during its creation.

    Raises:
        OSError: the study cannot be read now.
    """
    objects = study / "objects"
    try:
        study_uid = json.loads((study / "study.json").read_bytes())["study_uid"]
        # not glob, which treats an unreadable folder as empty
        names = sorted(path.name for path in objects.iterdir() if path.suffix == ".dcm")
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError):
        return None
    return Job(study.name, digest_of("\n".join(names))[:12], str(study_uid), objects) if names else None


def read_object(file: Path) -> tuple[str, str, str]:
    """StudyInstanceUID of a received file, and SOPInstanceUID and ImagePositionPatient or ''.

    Raises:
        RefusedError: the file has no readable StudyInstanceUID of at most 64 characters.
    """
    try:
        elements = read_elements(file, _OF_A_SLICE)
        study_uid, sop_uid, position = map(elements.text, _OF_A_SLICE)
    except OSError:
        raise
    except Exception:  # malformed input can raise any exception in the parser
        study_uid = sop_uid = position = ""
    if not 0 < len(study_uid) <= UID_LENGTH:
        raise RefusedError(
            f"its StudyInstanceUID has {len(study_uid)} characters, 1 to {UID_LENGTH} are allowed"
        )
    return study_uid, sop_uid, position


def sync_object(file: Path, sop_uid: str, position: str) -> tuple[str, str]:
    """Flush a received file to disk. Returns the digest of its identity, and its file name in the study."""
    content = sync_file(file)
    # some anonymisers give every slice the same UID: another position means another slice
    identity = digest_of(f"{sop_uid} {position}") if sop_uid else content[:24]
    return identity, f"{identity}-{content[:16]}.dcm"
