"""Settings of a data set of a run or a grid; importable without torch."""

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from ich_mil.errors import DataError
from ich_mil.sets.layouts.names import SetLayout
from ich_mil.settings import did_you_mean, filled_path

if TYPE_CHECKING:
    from ich_mil.heads.extras import ExtraSources
    from ich_mil.sets.layouts.slice_pictures import Window


Learn = Literal["all", "heads", "sources", "boxes"]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class SetSettings:
    """Settings of a data set.

    Attributes:
        layout: `rsna`, `cq500`, `folder` (DICOM or NIfTI with a table of labels), `slices` (single slices,
            pictures or DICOM, with a table of labels), or `features` (slice features,
            `ich_mil.sets.feature_files`).
        root: path of the folder or file; `$NAME` is replaced by the environment variable, `{member}` by the
            number of the ensemble member.
        name: name in outputs, preferably stating whether the data are real or synthetic; default: the name of
            its folder.
        window: [level, width] in HU of 8-bit pictures; required for these.
        slice_labels: train on slice labels. A scan with a label for every slice is used as scans of one slice
            each, in the CNN and in the head; other scans keep their scan label.
        learn: what the set trains: `all`, networks and heads; `heads` alone; `sources`, networks (slice by
            slice where all are labelled) and heads, which learn its scans by features of a network that did
            not learn the set (`ich_mil.model.training.cross_fit`); or `boxes`, the location of bleeds within
            slices alone (`ich_mil.network.location`). Take `boxes` for slices whose source predicts their
            label: networks would learn the source. A list of `heads` and `sources` has one entry for each
            member of an ensemble.
        requests: table or folder of request texts of the scans, for `head.family` multimodal
            (`ich_mil.heads.extras`).
        reports: the same for texts that may state the result, which `requests` refuses.
        terms: terms of use that a model trained on the set inherits, shown wherever the set is named.
        columns: names in a feature file of columns that are called otherwise there, as in
            `{bag_name: slide_id}`.
        covariates: table of scan covariates, or `header` for age and sex of the DICOM headers.
    """

    layout: SetLayout
    root: str
    name: str = ""
    window: list[float] | None = None
    slice_labels: bool = False
    learn: Learn | Annotated[list[Literal["heads", "sources"]], Field(min_length=1)] = "all"
    requests: str = ""
    reports: str = ""
    covariates: str = ""
    terms: str = ""
    columns: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _ = self.picture_window  # raises
        check_columns(self.columns, self.layout)
        if self.use == "boxes" and self.layout != "slices":
            raise ValueError(f"learn: boxes are of layout slices, not of {self.layout}")
        if self.slice_labels and self.use == "sources":
            raise ValueError("slice_labels: learn: sources has networks learn slices by itself; leave it out")
        if self.requests and self.reports:
            raise ValueError("requests and reports: name one of them, not both")

    @property
    def use(self) -> Learn:
        """`learn`; of the list of an ensemble, the widest."""
        if isinstance(self.learn, str):
            return self.learn
        return "sources" if "sources" in self.learn else "heads"

    @property
    def picture_window(self) -> "Window | None":
        """`window` after validation; None where not set."""
        if self.window is None:
            return None
        from ich_mil.sets.layouts.slice_pictures import parse_window  # imports SciPy and pydicom

        return parse_window(self.window, layout=self.layout)

    @property
    def path(self) -> Path:
        """`root` with variables and `~` expanded. Raises `ConfigError` for an unknown one."""
        return filled_path("root", self.root)

    @property
    def has_extras(self) -> bool:
        """Whether any input beside the slices is named."""
        return bool(self.requests or self.reports or self.covariates)

    @property
    def extras(self) -> "ExtraSources":
        """Files of the inputs beside the slices."""
        from ich_mil.heads.extras import ExtraSources  # imports pandas

        named = {name: getattr(self, name) for name in ("requests", "reports", "covariates")}
        return ExtraSources(**{name: filled_path(name, path) for name, path in named.items() if path})

    def check_path(self) -> None:
        """Raise `DataError` if the set or an input beside its slices does not exist."""
        if not self.path.exists():
            raise DataError(f"{self.path}: no such file or folder")
        if self.has_extras:
            self.extras.check_paths()

    def of_member(self, number: int) -> "SetSettings":
        """The settings of this set for member `number` of an ensemble."""
        learn = self.learn if isinstance(self.learn, str) else self.learn[number]
        return replace(self, root=str(member_path(self.root, number)), learn=learn)


def member_path(root: Path | str, number: int) -> Path:
    """`root` with `{member}` replaced by the number of an ensemble member."""
    return Path(str(root).replace("{member}", str(number)))


def check_columns(columns: Mapping[str, str], layout: SetLayout) -> None:
    """Raise `ValueError` if a feature file has no such column, or the set is no feature file."""
    if columns and layout != "features":
        raise ValueError(f"columns is for layout features, not for {layout}; leave it out")
    if columns:
        from ich_mil.sets.feature_files import FEATURE_COLUMNS  # imports pandas
    for name in columns:
        if name not in FEATURE_COLUMNS:
            near = did_you_mean(name, FEATURE_COLUMNS)
            raise ValueError(f"columns: {name!r} must be one of {', '.join(FEATURE_COLUMNS)}{near}")
