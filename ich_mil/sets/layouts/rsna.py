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
from ich_mil.sets.labels import UNKNOWN, binary, name_some, read_label_csv
from ich_mil.sets.layouts.collection import Collection, Refused, Scans, Series, Source, every_file

ARCHIVE = "rsna-intracranial-hemorrhage-detection"


class RsnaCollection(Collection):
    """RSNA 2019 files with slice labels; a scan's label is the maximum over its slices."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.base = root / ARCHIVE if (root / ARCHIVE).is_dir() else root
        path = self.base / "stage_2_train.csv"
        table = read_label_csv(path, ["ID", "Label"])
        # ID_<sop>_<subtype> is split from the right, because "ID_<sop>" contains an underscore
        parts = table.ID.str.rsplit("_", n=1, expand=True).reindex(columns=[0, 1])
        if (wrong := parts[1].isna()).any():
            line = parts.index[wrong][0]
            raise DataError(
                f"{path}: line {line + 2}: ID must be ID_<image>_<subtype>, got {table.ID[line]!r}"
            )
        table = table.assign(sop=parts[0], kind=parts[1], value=binary(table.Label, path))
        subtypes = table[(table.kind != "any") & (table.value == 1)]
        table = table[table.kind == "any"]
        spread = table.groupby("sop").value.agg(["min", "max", "size"])
        clash = spread.index[spread["min"] != spread["max"]]
        if len(clash):
            named = name_some(list(clash))
            raise DataError(f"{path}: images labelled both 0 and 1: {named}; keep one row for each")
        for sop in spread.index[spread["size"] > 1]:
            detail = f"{sop} is listed {spread['size'][sop]} times with equal labels, counted once"
            self.entries.append(LedgerEntry("", path.name, Code.LABEL_REPEATED, detail))
        negative = spread.index[spread["max"] == 0]
        unlike = subtypes[subtypes["sop"].isin(negative)]
        for sop, kinds in unlike.groupby("sop")["kind"].unique().items():
            detail = f"{sop} has any 0 but {', '.join(kinds)} 1, taken as 0"
            self.entries.append(LedgerEntry("", path.name, Code.LABEL_CLASH, detail))
        self.path = path
        self.labels = {str(sop): int(value) for sop, value in spread["max"].items()}

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
        return self.labels.get(sop, UNKNOWN)

    def check(self, scans: Scans, refused: Refused = (), series: Iterable[Series] = ()) -> None:
        """Require a label for every image. Labels without an image get a ledger line (partial downloads)."""
        found = {source.sop: None for _, sources in scans for source in sources}  # a set in order
        if missing := [sop for sop in found if sop not in self.labels]:
            raise DataError(
                f"{self.path}: no label for {len(missing)} images: {name_some(missing)}; add a row 'any' for "
                "each, or remove their files"
            )
        if rest := len(self.labels) - len(found):
            detail = f"{rest} labelled images are not among the readable files"
            self.entries.append(LedgerEntry("", self.path.name, Code.LABEL_UNUSED, detail))
