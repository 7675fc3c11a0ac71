"""RSNA 2019 layout: the Intracranial Hemorrhage Detection challenge, with slice labels.

The files are `ROOT/stage_2_train/ID_<sop>.dcm` and `ROOT/stage_2_train.csv` with columns `ID,Label`, where ID
is `ID_<sop>_<subtype>`; both may lie one folder down, in `rsna-intracranial-hemorrhage-detection/`. The label
of an image is its row `any`, even where a subtype contradicts it. A scan is a study, and positive if one of
its slices is (Flanders et al. 2020, 10.1148/ryai.2020190211).
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ich_mil.errors import DataError
from ich_mil.ledger import Code, LedgerEntry
from ich_mil.sets.labels import UNKNOWN, name_some
from ich_mil.sets.layouts.collection import Collection, Refused, Scans, Series, Source, every_file
from ich_mil.sets.layouts.rsna_labels import ANY, read_rsna_labels

ARCHIVE = "rsna-intracranial-hemorrhage-detection"


class RsnaCollection(Collection):
    """RSNA 2019 files with slice labels; a scan's label is the maximum over its slices."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.base = root / ARCHIVE if (root / ARCHIVE).is_dir() else root
        self.path = self.base / "stage_2_train.csv"
        self.labels = read_rsna_labels(self.path)
        if lacking := list(self.labels.without(ANY)):
            raise DataError(
                f"{self.path}: no row {ANY!r} for {len(lacking)} images: {name_some(lacking)}; add it"
            )
        name = self.path.name
        for sop, times in self.labels.repeats.items():
            detail = f"{sop} is listed {times} times with equal labels, counted once"
            self.entries.append(LedgerEntry("", name, Code.LABEL_REPEATED, detail))
        for sop in self.labels.rows:
            kinds = self.labels.positive(sop)
            if kinds and ANY not in kinds:
                detail = f"{sop} has any 0 but {', '.join(kinds)} 1, taken as 0"
                self.entries.append(LedgerEntry("", name, Code.LABEL_CLASH, detail))

    def files(self) -> Iterator[str]:
        """All files in `stage_2_train`."""
        folder = self.base / "stage_2_train"
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder; the RSNA layout keeps its images there")
        return every_file(folder, self.root)

    def scan_label(self, scan: str, sources: Sequence[Source]) -> int:
        """1 if any slice of the study is positive: RSNA 2019 has one series per study."""
        return max(self.slice_label(source.sop) for source in sources)

    def slice_label(self, sop: str, *, scan: str = "") -> int:
        """Label from the row `<sop>_any`."""
        label = self.labels.label(sop, ANY)
        return UNKNOWN if label is None else label

    def check(self, scans: Scans, refused: Refused = (), series: Iterable[Series] = ()) -> None:
        """Require a label for every image. Labels without an image get a ledger line (partial downloads)."""
        sops = {source.sop: None for _, sources in scans for source in sources}  # a set in order
        if missing := [sop for sop in sops if sop not in self.labels.rows]:
            raise DataError(
                f"{self.path}: no label for {len(missing)} images: {name_some(missing)}; add a row 'any' for "
                "each, or remove their files"
            )
        if rest := len(self.labels.rows) - len(sops):
            detail = f"{rest} labelled images are not among the readable files"
            self.entries.append(LedgerEntry("", self.path.name, Code.LABEL_UNUSED, detail))
