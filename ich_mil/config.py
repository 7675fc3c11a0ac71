"""One YAML a run, typed by dataclasses; unknown keys and values out of range are refused.

In: a YAML file and command-line overrides (`--head.beta 1.5`). Out: a frozen `RunConfig`. Settings of a part
live beside that part (`EncoderSettings`, `CnnSettings`, `TrainingSettings`, `HeadSettings`); this file puts
them together.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from joblib import cpu_count
from sklearn.model_selection import ParameterGrid

from ich_mil.data.slice_pictures import Window, parse_window
from ich_mil.dicom.series import AVERAGE_TO_MM
from ich_mil.files import settings_digest
from ich_mil.gp.settings import HeadSettings
from ich_mil.models.attention_cnn import CnnSettings
from ich_mil.models.encoders import EncoderSettings
from ich_mil.settings import check_least, check_list, check_seeds, filled_path, read_settings
from ich_mil.training.settings import TrainingSettings

SetLayout = Literal["rsna", "cq500", "folder", "slices", "features"]


@dataclass(frozen=True)
class SetSettings:
    """One data set.

    Attributes:
        layout: `rsna`, `cq500`, `folder` (DICOM with a labels.csv), `slices` (single slices, pictures or
            DICOM, with a labels.csv), or `features` (a public feature CSV).
        root: the folder, or the CSV; environment variables as `$NAME` are filled in, and `{member}` by the
            number of the member in an ensemble.
        name: what outputs call it, best with whether it is real or synthetic; empty: its folder.
        window: [level, width] in HU of 8-bit pictures; needed for them.
        slice_labels: train on the labels of slices: a scan all of whose slices are labelled is used as scans
            of one slice each, in the CNN and in the head. Other scans keep their scan label.
        networks: whether networks are trained on this set; heads always are.
    """

    layout: SetLayout
    root: str
    name: str = ""
    window: list[float] | None = None
    slice_labels: bool = False
    networks: bool = True

    def __post_init__(self) -> None:
        _ = self.picture_window

    @property
    def picture_window(self) -> Window | None:
        """`window`, checked."""
        return None if self.window is None else parse_window(self.window, layout=self.layout)

    @property
    def path(self) -> Path:
        """`root`, filled in. `ConfigError` if that cannot be."""
        return filled_path("root", self.root)

    def of_member(self, number: int) -> "SetSettings":
        """The set that member `number` of an ensemble reads."""
        return replace(self, root=str(member_path(self.root, number)))


def member_path(root: Path | str, number: int) -> Path:
    """`root` with the number of a member of an ensemble in place of `{member}`."""
    return Path(str(root).replace("{member}", str(number)))


@dataclass(frozen=True)
class SplitSettings:
    """How the training set is divided, by patient.

    Attributes:
        validation: share for early stopping and calibration; 0 calibrates on held-out folds (features only).
        test: share held out from everything.
        file: a CSV with columns scan,split that is used instead of a draw.
    """

    validation: float = 0.2
    test: float = 0.0
    file: Path | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.validation < 1 and 0 <= self.test < 1 and self.validation + self.test < 1):
            raise ValueError(
                f"split.validation and split.test must be shares that sum to less than 1, "
                f"got {self.validation} and {self.test}"
            )


@dataclass(frozen=True)
class GridConfig:
    """Many heads on one feature table: every combination of settings, on every fold and seed.

    Attributes:
        out: folder of the result table.
        train: the features to train on; a set of layout `features`.
        grid: names of head settings, and the values each takes.
        head: all other settings.
        external: features of another set, on which every head is measured too.
        folds: cross-validation folds over patients; 0 trains on everything.
        seeds: of the folds and of k-means.
    """

    out: Path
    train: SetSettings
    grid: dict[str, list[bool | int | float | str]]
    head: HeadSettings = field(default_factory=HeadSettings)
    external: SetSettings | None = None
    folds: int = 5
    seeds: list[int] = field(default_factory=lambda: [0])

    def __post_init__(self) -> None:
        sets = [self.train] + ([self.external] if self.external else [])
        if any(one.layout != "features" for one in sets):
            raise ValueError("a grid needs sets of layout 'features'")
        if any(one.slice_labels for one in sets):
            raise ValueError("a grid trains on scan labels; leave out slice_labels")
        if self.folds < 0 or self.folds == 1:
            raise ValueError(f"folds must be 0 (train on everything) or at least 2, got {self.folds}")
        check_seeds("seeds", *self.seeds)
        if self.head.seed != HeadSettings.seed:
            raise ValueError(f"head.seed is {self.head.seed}, but a grid has a list of its own, seeds")
        if not self.folds and self.external is None:
            raise ValueError("with folds: 0 an external set is needed, nothing is held out")
        if unknown := sorted({*self.grid} - ({*HeadSettings.names()} - {"seed"})):
            raise ValueError(
                f"grid names {unknown[0]!r}, which is no setting of a head, or has a list of its own"
            )
        if not self.grid or not all(self.grid.values()):
            raise ValueError("grid needs at least one setting, and every setting in it at least one value")
        for name, values in self.grid.items():
            check_list(f"grid: {name}", values)
        self.cells()

    def cells(self) -> list[dict[str, Any]]:
        """Every combination of the grid. `ValueError` if a head cannot be made of one."""
        cells = [dict(cell) for cell in ParameterGrid(self.grid)]
        heads = [replace(self.head, **cell) for cell in cells]
        own = sorted({"alpha", "beta"} & set(self.grid))
        if own and all(head.density == "logistic" for head in heads):
            raise ValueError(f"grid names {own[0]!r}, which a logistic density has not; set density to gamma")
        return cells

    @property
    def hash(self) -> str:
        """12 hex digits that name these settings, but for `out`."""
        return settings_digest(asdict(self) | {"out": ""})


PLACES = ("out", "prepared", "pages", "jobs", "workers")
"""Fields that say where results go and how many work, `training.workers` too: they change no number."""


@dataclass(frozen=True)
class RunConfig:
    """Everything a run depends on.

    Attributes:
        out: the run's folder: model, predictions, figures, report.
        train: the set to train on.
        also: more sets to train on; scans of all of them are divided together.
        external: the set to validate on.
        prepared: folder of the prepared sets (`train`, `also_1`, `also_2` ... and `external` below it).
        thickness_mm: thin slices are averaged to about this; 0 leaves them as they are.
        contrast_words: a CSV of the site with columns phrase,meaning; it outranks the built-in table.
        split: how the scans to train on are divided.
        encoder: the slice encoder, and the pictures it reads.
        cnn: what follows the encoder.
        training: how the CNN is trained.
        head: the Gaussian process.
        members: networks, each with a head, whose predictions are pooled. Member k takes `seed` + k and
            `head.seed` + k; all members share one split.
        encoders: encoders of the members in turn; empty: all have `encoder`.
        start: a finished run whose networks training starts from (`--from`); `headct-base` is the bundled
            one. Their settings are used in place of `encoder` and `cnn`, but for `encoder.freeze`.
        samples: posterior samples a prediction.
        bootstrap: resamples an interval.
        pages: study pages written, highest probability first, of the last set there is of validation, test
            and external scans.
        jobs: worker processes in prepare; 0 means one a core.
        seed: of the split, the CNN and the samples; the head has its own.
    """

    out: Path
    train: SetSettings
    also: list[SetSettings] = field(default_factory=list)
    external: SetSettings | None = None
    prepared: Path = Path("data/prepared")
    thickness_mm: float = AVERAGE_TO_MM
    contrast_words: Path | None = None
    split: SplitSettings = field(default_factory=SplitSettings)
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    cnn: CnnSettings = field(default_factory=CnnSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    head: HeadSettings = field(default_factory=HeadSettings)
    members: int = 1
    encoders: list[EncoderSettings] = field(default_factory=list)
    start: Path | None = None
    samples: int = 1000
    bootstrap: int = 2000
    pages: int = 50
    jobs: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, members=1, samples=2, bootstrap=10, pages=0, jobs=0, thickness_mm=0)
        for name, seed in (("seed", self.seed), ("head.seed", self.head.seed)):
            check_seeds(name, *{seed, seed + self.members - 1})
        if self.encoders and self.members == 1:
            raise ValueError("encoders is for the members of an ensemble; name one network's in encoder")
        if not any(one.networks for one in self.training_sets.values()):
            raise ValueError("networks is false for every set to train on; no network could be trained")
        if any(one.layout == "features" for one in self.also):
            raise ValueError("also: only sets of pictures can be joined, not layout 'features'")
        if self.external and self.external.slice_labels:
            raise ValueError("external: slice_labels is for sets to train on; leave it out")
        in_slices = any(one.slice_labels for one in self.training_sets.values())
        if in_slices and (self.training.bleeds or self.training.controls):
            raise ValueError(
                "training.bleeds and training.controls are drawn into whole scans; set them to 0, or leave "
                "out slice_labels"
            )

    @property
    def training_sets(self) -> dict[str, SetSettings]:
        """The sets to train on, by the name of their folder below `prepared`."""
        return {"train": self.train} | {f"also_{i}": one for i, one in enumerate(self.also, 1)}

    def member(self, number: int) -> "RunConfig":
        """The run of one member, 0 to `members` - 1: its folder, its seeds and the split of member 0."""
        if self.members == 1:
            return self
        split = self.split
        if number:
            split = replace(split, file=self.member(0).out / "splits.csv")
        return replace(
            self,
            members=1,
            out=self.out / f"member_{number}",
            train=self.train.of_member(number),
            external=None if self.external is None else self.external.of_member(number),
            split=split,
            encoder=self.encoders[number % len(self.encoders)] if self.encoders else self.encoder,
            encoders=[],
            head=replace(self.head, seed=self.head.seed + number),
            seed=self.seed + number,
        )

    @property
    def workers(self) -> int:
        """Worker processes in prepare."""
        return self.jobs or cpu_count()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, paths as text: what JSON and YAML can hold."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return values

    @property
    def hash(self) -> str:
        """12 hex digits that name these settings; the fields in `PLACES` take no part."""
        alike = replace(self, training=replace(self.training, workers=0))
        return settings_digest({k: v for k, v in asdict(alike).items() if k not in PLACES})


def read_config(arguments: Sequence[str], *, program: str = "ich-mil train") -> RunConfig:
    """A run's configuration from `--config FILE` and overrides, as on the command line of `program`.

    Raises:
        ConfigError: unknown key, wrong type, value out of range, missing field or file; one line.
    """
    more = "--resume goes on with the run that is in the folder --out; it cannot stand in the file"
    return read_settings(RunConfig, arguments, program=program, more=more)


def read_grid(arguments: Sequence[str]) -> GridConfig:
    """A grid's configuration, likewise."""
    return read_settings(GridConfig, arguments, program="ich-mil grid")
