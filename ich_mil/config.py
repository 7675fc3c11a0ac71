"""Configuration of a run and of a grid, as frozen dataclasses.

In: a YAML file and command-line overrides (`--head.beta 1.5`). Out: a `RunConfig` or `GridConfig`; unknown
keys and values out of range are refused. The settings of a component are defined beside it
(`EncoderSettings`, `CnnSettings`, `TrainingSettings`, `HeadSettings`); this file combines them.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, field, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from ich_mil.errors import ConfigError
from ich_mil.families import FAMILIES, RunHeadSettings
from ich_mil.files import check_apart, settings_digest
from ich_mil.gp.settings import HeadSettings
from ich_mil.multimodal.settings import MultimodalSettings
from ich_mil.network.settings import CnnSettings, EncoderSettings
from ich_mil.network.training.set_settings import SetSettings
from ich_mil.network.training.settings import TrainingSettings
from ich_mil.settings import SEEDS, read_settings

STRICT = ConfigDict(extra="forbid")
Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=SEEDS)]

PLACES = ("out", "prepared", "pages", "jobs", "workers", "logger")
"""Fields without effect on results, also of `training`: output folders, pages, worker counts and loggers."""


@dataclass(frozen=True, config=STRICT)
class SplitSettings:
    """Settings of the split of the training set, by patient.

    Attributes:
        validation: share for early stopping and calibration; 0: calibrate on held-out folds (features, or
            networks kept from `start`).
        test: share held out from training, stopping and calibration.
        file: CSV with columns scan,split, used in place of a random split.
    """

    validation: Share = 0.2
    test: Share = 0.0
    file: Path | None = None

    def __post_init__(self) -> None:
        if self.validation + self.test >= 1:
            raise ValueError(
                f"split: validation and test must sum to less than 1, got {self.validation} and {self.test}"
            )


@dataclass(frozen=True, config=STRICT)
class GridConfig:
    """Settings of a grid of heads on a feature table: all combinations of settings, folds and seeds.

    Attributes:
        out: folder of the result table.
        train: features to train on; a set of layout `features`.
        grid: head settings by name, each with a list of values.
        head: head settings that are not in the grid.
        external: features of another set, on which every head is also evaluated.
        folds: number of cross-validation folds over patients; 0: train on all scans.
        seeds: seeds of the folds and of k-means.
        jobs: number of worker processes; 0: one per core. On a GPU one process fits all heads.
    """

    out: Path
    train: SetSettings
    grid: Annotated[dict[str, list[bool | int | float | str]], Field(min_length=1)]
    head: HeadSettings = field(default_factory=HeadSettings)
    external: SetSettings | None = None
    folds: Count = 5
    seeds: Annotated[list[Seed], Field(min_length=1)] = field(default_factory=lambda: [0])
    jobs: Count = 1

    def __post_init__(self) -> None:
        if any(data.layout != "features" or data.slice_labels or data.has_extras for data in self.sets):
            raise ValueError("a grid needs sets of layout 'features', without slice_labels or other inputs")
        if self.folds == 1:
            raise ValueError(f"folds must be 0 (train on everything) or at least 2, got {self.folds}")
        if not self.folds and self.external is None:
            raise ValueError("with folds: 0 an external set is needed, nothing is held out")
        if "random_state" in self.grid or self.head.random_state:
            raise ValueError("a grid has seeds of its own, seeds; leave out random_state")
        if unknown := sorted({*self.grid} - {*HeadSettings.names()}):
            raise ValueError(f"grid: {unknown[0]!r} is no setting of a head")
        lists: dict[str, list[Any]] = {"seeds": self.seeds, **self.grid}
        for name, values in lists.items():
            if not values or any(value in values[:i] for i, value in enumerate(values)):
                raise ValueError(f"{name} needs one or more different values, got {values}")
        self.cells()

    @property
    def sets(self) -> list[SetSettings]:
        """Training set, and external set if there is one."""
        return [self.train] + ([self.external] if self.external else [])

    def cells(self) -> list[dict[str, Any]]:
        """All combinations of the grid. Raises `ValueError` for an invalid combination."""
        names = sorted(self.grid)
        choices = product(*(self.grid[name] for name in names))
        cells: list[dict[str, Any]] = [dict(zip(names, values, strict=True)) for values in choices]
        for cell in cells:
            replace(self.head, **cell)  # raises
        return cells

    def check_paths(self) -> None:
        """Raise `DataError` if a set does not exist."""
        for data in self.sets:
            data.check_path()

    @property
    def hash(self) -> str:
        """Digest of these settings except `out` and `jobs`, 12 hex digits."""
        return settings_digest({k: v for k, v in (asdict(self) | {"out": ""}).items() if k != "jobs"})


@dataclass(frozen=True, config=STRICT)
class RunConfig:
    """Configuration of a run.

    Attributes:
        out: folder of the run: model, predictions, figures, report.
        train: set to train on.
        also: further sets to train on; the scans of all sets are split together.
        external: set to validate on.
        prepared: folder of the prepared sets, with subfolders `train`, `also_1`, `also_2` ... and `external`.
        contrast_words: site-specific CSV with columns phrase,meaning; it overrides the built-in table.
        split: split of the scans to train on.
        encoder: slice encoder and its input images.
        cnn: network after the encoder.
        training: training of the CNN.
        head: Gaussian-process head, or family multimodal.
        multimodal: settings of the multimodal head.
        members: number of networks, each with a head, whose predictions are pooled. Member k uses `seed` + k
            and `head.random_state` + k; all members share one split.
        encoders: encoders of the members in turn; empty: `encoder` for all members.
        start: finished run whose networks initialise training (`--from`); `headct-base` is the bundled run.
            The settings of its networks replace `encoder` and `cnn`, except `encoder.freeze`. Networks are
            kept, and heads alone are fitted, with fewer than 100 scans and no `encoder.freeze`, or if all
            sets have `learn: heads`. Its number of members and its `head` are taken where the configuration
            has the defaults; of an ensemble, each member starts a member.
        samples: posterior samples per prediction.
        bootstrap: bootstrap resamples per interval.
        pages: number of study pages of the last available set of validation, test and external scans: the
            worst errors, then the highest probabilities.
        jobs: worker processes of `prepare`; 0: one per core.
        seed: seed of the split, the CNN and the samples; the head has a seed of its own.
    """

    out: Path
    train: SetSettings
    also: list[SetSettings] = field(default_factory=list)
    external: SetSettings | None = None
    prepared: Path = Path("data/prepared")
    contrast_words: Path | None = None
    split: SplitSettings = field(default_factory=SplitSettings)
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    cnn: CnnSettings = field(default_factory=CnnSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    head: RunHeadSettings = field(default_factory=RunHeadSettings)
    multimodal: MultimodalSettings = field(default_factory=MultimodalSettings)
    members: Positive = 1
    encoders: list[EncoderSettings] = field(default_factory=list)
    start: Path | None = None
    samples: Annotated[int, Field(ge=2)] = 1000
    bootstrap: Annotated[int, Field(ge=10)] = 2000
    pages: Count = 50
    jobs: Count = 0
    seed: Seed = 0

    def __post_init__(self) -> None:
        if max(self.seed, self.head.random_state) + self.members > SEEDS:
            raise ValueError(f"seed and head.random_state of the last member must be below {SEEDS}")
        if self.encoders and self.members == 1:
            raise ValueError("encoders is for the members of an ensemble; name one network's in encoder")
        learn = [data.use for data in self.training_sets.values()]
        from_start = self.start is not None and self.members == 1  # the members are those of the start
        lists = [data.learn for data in self.sets if isinstance(data.learn, list)]
        if any(len(entries) != self.members for entries in lists) and not from_start:
            raise ValueError(f"learn: a list has one entry for each of the {self.members} members")
        if "all" not in learn and self.start is None:
            raise ValueError("learn: no set to train on is for `all`; no network could be trained")
        if learn[0] == "boxes":
            raise ValueError("learn: the first set to train on must be for heads too, not for boxes alone")
        if not FAMILIES[self.head.family].extras and any(data.has_extras for data in self.sets):
            takes = " or ".join(name for name, family in FAMILIES.items() if family.extras)
            raise ValueError(f"requests, reports and covariates are inputs of head.family {takes}; set it")
        if any(data.layout == "features" for data in self.also):
            raise ValueError("also: only sets of pictures can be joined, not layout 'features'")
        if self.external and self.external.slice_labels:
            raise ValueError("external: slice_labels is for sets to train on; leave it out")

    @property
    def training_sets(self) -> dict[str, SetSettings]:
        """The sets to train on, keyed by the name of their folder below `prepared`."""
        return {"train": self.train} | {f"also_{i}": data for i, data in enumerate(self.also, 1)}

    @property
    def sets(self) -> list[SetSettings]:
        """Sets to train on, and the external set if there is one."""
        return [*self.training_sets.values(), *([self.external] if self.external else [])]

    @property
    def own(self) -> Any:
        """Further settings of `head.family`, in the section of its name; None for a family without one."""
        return getattr(self, self.head.family, None)

    def member(self, number: int) -> "RunConfig":
        """Configuration of member 0..`members` - 1: its own folder and seeds, the split of member 0."""
        if self.members == 1:
            return self
        file = self.member(0).out / "splits.csv" if number else self.split.file
        return replace(
            self,
            members=1,
            out=self.out / f"member_{number}",
            train=self.train.of_member(number),
            also=[data.of_member(number) for data in self.also],
            external=None if self.external is None else self.external.of_member(number),
            split=replace(self.split, file=file),
            encoder=self.encoders[number % len(self.encoders)] if self.encoders else self.encoder,
            encoders=[],
            head=replace(self.head, random_state=self.head.random_state + number),
            seed=self.seed + number,
        )

    @property
    def workers(self) -> int:
        """Number of worker processes of `prepare`."""
        from joblib import cpu_count  # takes a tenth of a second

        return self.jobs or cpu_count()

    def check_paths(self) -> None:
        """Raise `ConfigError` if features and pictures mix or `out` is in a set; `DataError`: no such set."""
        if len({data.layout == "features" for data in self.sets}) > 1:
            raise ConfigError("train, also and external must all be pictures, or all be features")
        for data in self.sets:
            data.check_path()
            check_apart(self.out, data.path)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON and YAML; paths become text."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return values

    @property
    def hash(self) -> str:
        """Digest of these settings except the fields in `PLACES`, 12 hex digits."""
        alike = replace(self, training=replace(self.training, workers=0, logger="none"))
        return settings_digest({k: v for k, v in asdict(alike).items() if k not in PLACES})


def read_config(arguments: Sequence[str]) -> RunConfig:
    """Read the configuration of a run from `--config FILE` and overrides (`read_settings`)."""
    return read_settings(RunConfig, arguments)


def read_grid(arguments: Sequence[str]) -> GridConfig:
    """Read the configuration of a grid, like `read_config`."""
    return read_settings(GridConfig, arguments)
