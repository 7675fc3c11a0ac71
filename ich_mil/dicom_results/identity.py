"""UIDs, series, equipment and time stamps of the DICOM result objects.

UIDs are a deterministic function of model, program version, scan result, maps, ledger codes (without file
names), and source images with their orientation (the pictures show it as letters). The same results written
twice have the same UIDs, so that an archive stores them once; different results are different objects in
different series. Only dates and times depend on the time of writing.
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
from ich_mil.dicom_results.context import SourceImage, StudyContext
from ich_mil.dicom_results.patient import REQUIRED, link_order
from ich_mil.dicom_results.values import derived_uid, line
from ich_mil.ledger import NOTICE, Code
from ich_mil.model.maps import ScanMaps
from ich_mil.model.predictions import Provenance, Results, ScanPrediction

BESIDE = frozenset({Code.NOT_DICOM, Code.NOT_CT, Code.NOT_AN_IMAGE, Code.LOCALIZER})
"""Codes of files that do not affect a result: a dose report that arrives later must not create new UIDs."""
MANUFACTURER = "ich_mil"
UTF_8 = "ISO_IR 192"


class Kind(Enum):
    """Type of result object: series number, series description, and prefix of the file name."""

    CAPTURE = (9801, "ICH result", "capture")
    MAP = (9802, "ICH maps", "map")
    REPORT = (9803, "ICH measurements", "report")
    KEY = (9804, "ICH key images", "key")

    def file_name(self, number: int | str) -> str:
        """File name of one object; `number` may be '*' to match all objects of the type."""
        return f"{self.value[2]}-{number}.dcm"


@dataclass(frozen=True)
class Identity:
    """Identifying values of the result objects of one scan; `digest` covers the content of all objects."""

    model: Provenance
    digest: str
    written: datetime

    @property
    def device_uid(self) -> str:
        """UID of the model as observing device."""
        return derived_uid("device", self.model.name, self.model.version, self.model.weights)

    def uid(self, *parts: str) -> str:
        """Derive a UID from `parts` that is unique to these results."""
        return derived_uid(self.digest, *parts)

    def of_object(self, kind: Kind, number: int = 1, *, series: str = "") -> dict[str, Any]:
        """Keyword arguments of highdicom's constructors for object `number` (from 1) of a type and series."""
        return {
            "series_instance_uid": self.uid("series", kind.name, series),
            "series_number": kind.value[0],
            "sop_instance_uid": self.uid("object", kind.name, str(number)),
            "instance_number": number,
            "manufacturer": MANUFACTURER,
            "manufacturer_model_name": line(self.model.name),
            "software_versions": line(self.model.version),
            "device_serial_number": line(self.model.weights),
            "series_description": line(f"{kind.value[1]}. {NOTICE}"),
            "content_date": self.written.date(),
            "content_time": self.written.time(),
            "specific_character_set": UTF_8,
        }

    def finish(self, dataset: Dataset, context: StudyContext) -> None:
        """Set patient, study and time stamps of an object."""
        dataset.update(context.elements)
        link_order(dataset)
        dataset.SpecificCharacterSet = UTF_8
        dataset.InstanceCreationDate, dataset.InstanceCreationTime = dataset.ContentDate, dataset.ContentTime
        for equipment in dataset.ContributingEquipmentSequence:  # added by highdicom with the current time
            equipment.ContributionDateTime = self.written


def identify(
    scan: ScanPrediction, results: Results, context: StudyContext, maps: ScanMaps | None, written: datetime
) -> Identity:
    """Compute the identity of the result objects of one scan."""
    # codes only: file names may differ when the same images arrive again, and no object contains them
    codes = sorted(entry.code for entry in scan.ledger if entry.code not in BESIDE)
    state = [__version__, asdict(results.model), results.decided_by, asdict(replace(scan, ledger=())), codes]
    digest = sha256(json.dumps(state).encode())
    for image in context.images:
        digest.update(f"{image.sop_uid} {image.frame} {image.header.orientation};".encode())
    if maps is not None:
        for array in (maps.slices, maps.mean, maps.std):
            digest.update(np.ascontiguousarray(array).tobytes())
    return Identity(results.model, digest.hexdigest(), written)


def reference(context: StudyContext, image: SourceImage) -> Dataset:
    """Minimal source dataset for highdicom; `Identity.finish` sets patient and study later."""
    source = Dataset()
    source.SOPClassUID, source.SOPInstanceUID = image.sop_class, image.sop_uid
    source.StudyInstanceUID, source.SeriesInstanceUID = context.elements.StudyInstanceUID, image.series_uid
    source.Rows, source.Columns = image.header.rows, image.header.columns
    for keyword in REQUIRED:
        setattr(source, keyword, "")
    return source
