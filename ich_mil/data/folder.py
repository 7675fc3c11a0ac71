"""Any folder of DICOM files: a hospital's own scans with a `labels.csv`, or an export to predict on.

`ROOT/labels.csv`, where it exists, has columns `scan,label`; `scan` is a StudyInstanceUID or the name of a
folder directly below ROOT that holds one study. Everything else below ROOT is looked at, however deep, and
grouped by study.
"""

from collections.abc import Sequence
from pathlib import Path

from ich_mil.data.collection import Collection, binary, every_file, name_some, read_label_csv
from ich_mil.data.features import UNKNOWN
from ich_mil.dicom.read import SliceHeader
from ich_mil.errors import DataError

LABELS = "labels.csv"


class FolderCollection(Collection):
    """Studies below a folder; labelled if `labels.csv` is there."""

    def __init__(self, root: Path, *, labelled: bool) -> None:
        super().__init__(root)
        self.path = root / LABELS
        self.labels: dict[str, int] | None = None
        if labelled:
            table = read_label_csv(self.path, ["scan", "label"])
            repeated = table.scan[table.scan.duplicated()]
            if len(repeated):
                raise DataError(f"{self.path}: scans listed twice: {name_some(list(repeated))}")
            self.labels = dict(zip(table.scan, binary(table.label, self.path), strict=True))

    def files(self) -> list[Path]:
        """Every file below the folder but `labels.csv`."""
        files = [path for path in every_file(self.root) if path != self.path]
        if not files:
            raise DataError(f"{self.root}: holds no DICOM file")
        return files

    def scan_id(self, header: SliceHeader) -> str:
        """The study."""
        return header.study_uid

    def scan_label(self, scan: str, headers: Sequence[SliceHeader]) -> int:
        """The row that names the study, or the folder that holds it."""
        if self.labels is None:
            return UNKNOWN
        return self.labels.get(self._name(scan, headers), UNKNOWN)

    def check(self, scans: dict[str, list[SliceHeader]]) -> None:
        """Rows and studies must match one to one."""
        if self.labels is None:
            return
        names = {scan: self._name(scan, headers) for scan, headers in scans.items()}
        missing = sorted(scan for scan, name in names.items() if name not in self.labels)
        if missing:
            raise DataError(f"{self.path}: no row for {len(missing)} studies: {name_some(missing)}")
        unknown = sorted(set(self.labels) - set(names.values()))
        if unknown:
            raise DataError(
                f"{self.path}: names {len(unknown)} scans without a readable file: {name_some(unknown)}"
            )
        taken = sorted(names.values())
        twice = sorted({name for name in taken if taken.count(name) > 1})
        if twice:
            raise DataError(
                f"{self.path}: folders that hold several studies: {name_some(twice)}; "
                "label these by StudyInstanceUID"
            )

    def _name(self, scan: str, headers: Sequence[SliceHeader]) -> str:
        """The study UID if a row has it, else the top folder of its first file."""
        assert self.labels is not None
        if scan in self.labels:
            return scan
        return Path(headers[0].path).relative_to(self.root).parts[0]
