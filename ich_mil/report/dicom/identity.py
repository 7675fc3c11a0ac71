"""Which object this is: series, instance, equipment, time.

In: the results, what they are about, and the moment of writing. Out: an `Identity`, which names the objects
of one scan. UIDs follow from model, program version, scan, numbers, maps, what was said of the input (not of
which file), and source images with their orientation (letters in the pictures show it): the same results
written twice have the same UIDs, so an archive that gets them twice holds them once; other results, also by
the same model, are other objects in other series. Only dates and times say when the objects were written.
"""

import json
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import Enum
from hashlib import sha256
from typing import Any

import numpy as np
from pydicom.dataset import Dataset

from ich_mil import __version__
from ich_mil.ledger import Code
from ich_mil.predictions import NOTICE, Provenance, Results, ScanResult
from ich_mil.report.dicom.context import SourceImage, StudyContext
from ich_mil.report.dicom.patient import REQUIRED, link_order
from ich_mil.report.dicom.values import derived_uid, line
from ich_mil.report.maps import ScanMaps

BESIDE = frozenset({Code.NOT_DICOM, Code.NOT_CT, Code.NOT_AN_IMAGE, Code.LOCALIZER})
"""Files of a study that a result does not depend on: a dose report that comes later makes no new one."""
MANUFACTURER = "ich_mil"
UTF_8 = "ISO_IR 192"


class Kind(Enum):
    """A kind of objects: the number of their series in the study, its description, and of the files."""

    CAPTURE = (9801, "ICH result", "capture")
    MAP = (9802, "ICH maps", "map")
    REPORT = (9803, "ICH measurements", "report")
    KEY = (9804, "ICH key images", "key")

    @property
    def number(self) -> int:
        """SeriesNumber."""
        return self.value[0]

    @property
    def description(self) -> str:
        """SeriesDescription."""
        return f"{self.value[1]}. {NOTICE}"

    def file_name(self, number: int | str) -> str:
        """Name of the file of one object, '*' for all of the kind."""
        return f"{self.value[2]}-{number}.dcm"


@dataclass(frozen=True)
class Identity:
    """What names the objects of one scan.

    Attributes:
        model: which model spoke.
        digest: of all that the objects say.
        written: when they are written.
    """

    model: Provenance
    digest: str
    written: datetime

    @property
    def device_uid(self) -> str:
        """Of the model as the device that observed."""
        return derived_uid("device", self.model.name, self.model.version, self.model.weights)

    def uid(self, *parts: str) -> str:
        """A UID within these results."""
        return derived_uid(self.digest, *parts)

    def of_object(self, kind: Kind, number: int = 1, *, series: str = "") -> dict[str, Any]:
        """Arguments that all constructors of highdicom share.

        Args:
            kind: of the object.
            number: from 1, within its kind.
            series: tells series of one kind apart.
        """
        return {
            "series_instance_uid": self.uid("series", kind.name, series),
            "series_number": kind.number,
            "sop_instance_uid": self.uid("object", kind.name, str(number)),
            "instance_number": number,
            "manufacturer": MANUFACTURER,
            "manufacturer_model_name": line(self.model.name),
            "software_versions": line(self.model.version),
            "device_serial_number": line(self.model.weights),
            "series_description": line(kind.description),
            "content_date": self.written.date(),
            "content_time": self.written.time(),
            "specific_character_set": UTF_8,
        }

    def finish(self, made: Dataset, context: StudyContext) -> None:
        """Give an object its patient and study, and the one moment of writing."""
        made.update(context.elements)
        link_order(made)
        made.SpecificCharacterSet = UTF_8
        made.InstanceCreationDate, made.InstanceCreationTime = made.ContentDate, made.ContentTime
        for equipment in made.ContributingEquipmentSequence:  # highdicom, which takes the time by itself
            equipment.ContributionDateTime = self.written


def identify(
    scan: ScanResult, results: Results, context: StudyContext, maps: ScanMaps | None, written: datetime
) -> Identity:
    """The identity of the objects of one scan."""
    # codes alone: the same images may come again in files of other names, and no object says more of them
    codes = sorted(entry.code for entry in scan.ledger if entry.code not in BESIDE)
    said = [__version__, asdict(results.model), results.decided_by, asdict(replace(scan, ledger=())), codes]
    total = sha256(json.dumps(said).encode())
    for image in context.images:
        total.update(f"{image.sop_uid} {image.frame} {image.header.orientation};".encode())
    if maps is not None:
        for array in (maps.slices, maps.mean, maps.std):
            total.update(np.ascontiguousarray(array).tobytes())
    return Identity(results.model, total.hexdigest(), written)


def reference(context: StudyContext, image: SourceImage) -> Dataset:
    """The least that highdicom asks of a source image; `Identity.finish` adds patient and study."""
    source = Dataset()
    source.SOPClassUID, source.SOPInstanceUID = image.sop_class, image.sop_uid
    source.StudyInstanceUID, source.SeriesInstanceUID = context.elements.StudyInstanceUID, image.series_uid
    source.Rows, source.Columns = image.header.rows, image.header.columns
    for keyword in REQUIRED:
        setattr(source, keyword, "")
    return source
