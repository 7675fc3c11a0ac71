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
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from ich_mil.errors import ConfigError
from ich_mil.files import check_apart, settings_digest
from ich_mil.gp.settings import HeadSettings
from ich_mil.multimodal.settings import MultimodalSettings, RunHeadSettings
from ich_mil.network.settings import CnnSettings, EncoderSettings
from ich_mil.network.training.set_settings import SetSettings
from ich_mil.network.training.settings import TrainingSettings
from ich_mil.settings import SEEDS, check_list, read_settings

STRICT = ConfigDict(extra="forbid")
Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=SEEDS)]

PLACES = ("out", "prepared", "pages", "jobs", "workers", "logger")
"""Fields without effect on results, also of `training`: output folders, pages, worker counts and loggers."""

REMOVED: dict[str, Any] = {
    "thickness_mm": 5.0,
    **dict.fromkeys(("training.bleeds", "training.controls", "training.warmup_steps"), 0),
    **{"training.accumulate": 1, "cnn.dropout": 0.3, "cnn.chunk_slices": 256},
    **dict.fromkeys(("head.logistic_tail", "head.log_h", "head.update")),
    **{"head.margin_c": 0.5, "head.margin_v": 0.5, "head.chains": 4, "head.burn_in": 500, "head.draws": 500},
    **{"head.outer": 5, "head.log_z": 0, "head.patience": 10, "head.jitter": 1e-6},
    **{"head.calibration_folds": 5, "head.smooth_mm": 0.0},
    **{"multimodal.sweeps": 2000, "multimodal.burn_in": 1000},
    **{"multimodal.intercept_variance": 16.0, "multimodal.slope_variance": 4.0},
}
"""Settings of earlier versions, each with the value that is now the only one. Stored runs have them."""

OF_PREDICTION = ("thickness_mm", "head.smooth_mm")
"""Those of `REMOVED` that a finished model needs for its predictions; the others only shaped its training."""


@dataclass(frozen=True, config=STRICT)
class SplitSettings:
    """Settings of the split of the training set, by patient.

    Attributes:
        validation: share for early stopping and calibration; 0: calibrate on held-out folds (features only).
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
    grid: dict[str, list[bool | int | float | str]]
    head: HeadSettings = field(default_factory=HeadSettings)
    external: SetSettings | None = None
    folds: Count = 5
    seeds: list[Seed] = field(default_factory=lambda: [0])
    jobs: Count = 1

    REMOVED: ClassVar[dict[str, Any]] = REMOVED

    def __post_init__(self) -> None:
        if any(one.layout != "features" for one in self.sets):
            raise ValueError("a grid needs sets of layout 'features'")
        if any(one.slice_labels for one in self.sets):
            raise ValueError("a grid trains on scan labels; leave out slice_labels")
        if self.folds == 1:
            raise ValueError(f"folds must be 0 (train on everything) or at least 2, got {self.folds}")
        check_list("seeds", self.seeds)
        if any(one.has_extras for one in self.sets):
            raise ValueError(
                "a grid is of Gaussian-process heads on slices; compare multimodal heads by runs"
            )
        if self.head.random_state != HeadSettings.random_state:
            raise ValueError(
                f"head.random_state is {self.head.random_state}, but a grid has a list of its own, seeds"
            )
        if not self.folds and self.external is None:
            raise ValueError("with folds: 0 an external set is needed, nothing is held out")
        if unknown := sorted({*self.grid} - ({*HeadSettings.names()} - {"random_state"})):
            raise ValueError(f"grid names {unknown[0]!r}, which is no setting of a head or has its own list")
        if not self.grid or not all(self.grid.values()):
            raise ValueError("grid needs at least one setting, and every setting in it at least one value")
        for name, values in self.grid.items():
            check_list(f"grid: {name}", values)
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
        heads = [replace(self.head, **cell) for cell in cells]
        own = sorted({"alpha", "beta"} & set(self.grid))
        if own and all(head.density == "logistic" for head in heads):
            raise ValueError(f"grid names {own[0]!r}, which a logistic density has not; set density to gamma")
        return cells

    def check_paths(self) -> None:
        """Raise `DataError` if a set does not exist."""
        for one in self.sets:
            one.check_path()

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
            The settings of its networks replace `encoder` and `cnn`, except `encoder.freeze`.
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

    REMOVED: ClassVar[dict[str, Any]] = REMOVED

    def __post_init__(self) -> None:
        if max(self.seed, self.head.random_state) + self.members > SEEDS:
            raise ValueError(f"seed and head.random_state of the last member must be below {SEEDS}")
        if self.encoders and self.members == 1:
            raise ValueError("encoders is for the members of an ensemble; name one network's in encoder")
        if not any(one.networks for one in self.training_sets.values()):
            raise ValueError("networks is false for every set to train on; no network could be trained")
        sets = [*self.training_sets.values(), *([self.external] if self.external else [])]
        if self.head.family != "multimodal" and any(one.has_extras for one in sets):
            raise ValueError("requests, reports and covariates are inputs of head.family multimodal; set it")
        if any(one.layout == "features" for one in self.also):
            raise ValueError("also: only sets of pictures can be joined, not layout 'features'")
        if self.external and self.external.slice_labels:
            raise ValueError("external: slice_labels is for sets to train on; leave it out")

    @property
    def training_sets(self) -> dict[str, SetSettings]:
        """The sets to train on, keyed by the name of their folder below `prepared`."""
        return {"train": self.train} | {f"also_{i}": one for i, one in enumerate(self.also, 1)}

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
        sets = [*self.training_sets.values(), *([self.external] if self.external else [])]
        if len({one.layout == "features" for one in sets}) > 1:
            raise ConfigError("train, also and external must all be pictures, or all be features")
        for one in sets:
            one.check_path()
            check_apart(self.out, one.path)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON and YAML; paths become text."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return values

    @property
    def hash(self) -> str:
        """Digest of these settings except the fields in `PLACES`, 12 hex digits."""
        alike = replace(self, training=replace(self.training, workers=0, logger="none"))
        return settings_digest({k: v for k, v in asdict(alike).items() if k not in PLACES})


def read_config(arguments: Sequence[str], *, program: str = "ich-mil train", more: str = "") -> RunConfig:
    """Read the configuration of a run from `--config FILE` and overrides (`read_settings`)."""
    return read_settings(RunConfig, arguments, program=program, more=more)


def read_grid(arguments: Sequence[str], *, more: str = "") -> GridConfig:
    """Read the configuration of a grid, like `read_config`."""
    return read_settings(GridConfig, arguments, program="ich-mil grid", more=more)
