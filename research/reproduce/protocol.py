"""Benchmark protocol: data sets, heads, folds and seeds, read from a YAML file with overrides."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from ich_mil.errors import ConfigError
from ich_mil.files import settings_digest
from ich_mil.gp.settings import HeadSettings
from ich_mil.settings import filled_path
from research.reproduce.file_names import file_stem

PROTOCOLS = Path(__file__).parents[1] / "protocols"
"""Folder of the protocols that can be given by name."""

SetKind = Literal["features", "musk", "digits", "mnist", "pictures"]

USED_BY: dict[str, set[SetKind]] = {
    "root": {"features", "musk", "mnist", "pictures"},
    "components": {"features", "musk", "digits", "mnist"},
    "external": {"features"},
    "external_name": {"features", "pictures"},
    "findings": {"features", "pictures"},
    "scans": {"pictures"},
    "test": {"features"},
    "cnn_seeds": {"features", "pictures"},
    "widths": {"pictures"},
}
"""Kinds of set to which each optional setting applies."""


def _distinct(values: list[int]) -> list[int]:
    if len(set(values)) < len(values):
        raise ValueError(f"{values} repeats a value")
    return values


Distinct = Annotated[
    list[Annotated[int, Field(ge=0, lt=2**32)]], Field(min_length=1), AfterValidator(_distinct)
]
Share = Annotated[float, Field(gt=0, lt=1)]


class BenchmarkSet(BaseModel):
    """One set of bags.

    Attributes:
        name: name in the tables.
        kind: `features` (a public feature CSV), `musk` (an npz file), `digits` (from scikit-learn, without a
            path), `mnist` (the folder of `torchvision.datasets.MNIST`), or `pictures` (a training
            configuration, its file or the name of a shipped one, run once for each CNN seed and each width).
        root: file or folder; environment variables written as `$NAME` are expanded.
        dataset: name of the held-out scans in `published.csv`; '' means `name`.
        components: number of principal components of the features, fitted on training bags; 0 means no PCA.
        external: features of an external set (`features` only), scored by heads fitted to all of `root`.
        external_name: name of the external set.
        findings: `reads.csv` of CQ500, for subtypes and reader disagreement in the external set.
        test: features of the test scans of a published split (`features` only). Heads are then fitted to all
            of `root` but these scans, without folds.
        scans: CSV with columns scan,split (train, validation, test) that lists the scans of `pictures`.
        cnn_seeds: seeds of the networks of `pictures`; with `test`, of the networks that made the features,
            written as `{seed}` in the paths.
        widths: numbers of features of the networks of `pictures`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[\w-][\w. -]*$")]
    kind: SetKind
    root: str = ""
    dataset: str = ""
    components: Annotated[int, Field(ge=0)] = 0
    external: str = ""
    external_name: str = "external"
    findings: str = ""
    test: str = ""
    scans: str = ""
    cnn_seeds: Distinct = [0]
    widths: Distinct = [8]

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in self.model_fields_set & USED_BY.keys():
            if self.kind not in USED_BY[name]:
                raise ValueError(f"{name} is not used by kind {self.kind!r}; leave it out")
        if self.kind != "digits" and not self.root:
            raise ValueError("root is missing")
        if self.name in ("fits", "networks"):
            raise ValueError(f"the name {self.name!r} is taken; choose another")
        if file_stem(self.external_name) in ("held_out", "train", "validation", "test"):
            raise ValueError(f"external_name {self.external_name!r} is taken; choose another")
        if self.components and (self.external or self.test):
            raise ValueError("components cannot be combined with an external or a test set")
        if self.kind == "features" and "cnn_seeds" in self.model_fields_set and not self.test:
            raise ValueError("cnn_seeds of features need a test set")
        if self.findings and not (self.external or self.kind == "pictures"):
            raise ValueError("findings need an external set")
        return self

    @property
    def one_split(self) -> bool:
        """Whether all networks share one split into training and test scans, without folds."""
        return self.kind == "pictures" or bool(self.test)

    @property
    def published(self) -> dict[str, str]:
        """Protocol in `published.csv` of the held-out ('') and of the external scans."""
        if self.one_split:
            return {"": "rsna-1150", self.external_name: "rsna-1150-cq500"}
        if self.kind == "features":
            return {"": "rsna-150", self.external_name: "rsna-150-cq500"}
        return {"": "five-splits"}

    def path(self, what: str, *, seed: int = 0) -> Path:
        """Expanded path of `root`, `external`, `test`, `findings` or `scans`, of the network `seed`."""
        written = getattr(self, what).replace("{seed}", str(seed))
        return filled_path(what, written)


class ProtocolConfig(BaseModel):
    """All settings of a benchmark.

    Attributes:
        title: title of the report.
        needs: data and time, for the list of protocols.
        out: folder for fits, tables, figures and `report.md`.
        sets: benchmark sets.
        heads: name -> settings that differ from the defaults.
        n_inducing: numbers of inducing points M; every head is fitted with each.
        main: name of the main head, the one with detailed analyses.
        main_inducing: M of the main head.
        folds: number of folds over patients; every scan is held out once for each seed.
        seeds: seeds of folds and of k-means.
        attention_mil: also train torchmil's attention MIL (extra `bench`).
        resamples: number of bootstrap resamples of patients behind an interval.
        samples: number of posterior samples of a prediction.
        sensitivity: sensitivity that the triage guarantees.
        specificity: specificity that the triage guarantees.
        confidence: confidence level of each guarantee.
        simulations: number of random splits for checking the guarantees.
        jobs: number of worker processes; 0 means one for each core.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    needs: str = ""
    out: Path
    sets: Annotated[list[BenchmarkSet], Field(min_length=1)]
    heads: dict[str, dict[str, Any]]
    main: str
    main_inducing: int = 100
    n_inducing: Distinct = [50, 100, 200]
    folds: Annotated[int, Field(ge=2)] = 5
    seeds: Distinct = [0, 1, 2, 3, 4]
    attention_mil: bool = False
    resamples: Annotated[int, Field(ge=10)] = 1000
    samples: Annotated[int, Field(ge=2)] = 1000
    sensitivity: Share = 0.95
    specificity: Share = 0.95
    confidence: Share = 0.9
    simulations: Annotated[int, Field(ge=1)] = 1000
    jobs: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [one.name for one in self.sets]
        if len(set(names)) != len(names):
            raise ValueError(f"sets must have names that differ, got {names}")
        if self.main not in self.heads or self.main_inducing not in self.n_inducing:
            raise ValueError(
                f"main must be one of the heads ({', '.join(self.heads)}) and main_inducing one of "
                f"{self.n_inducing}, got {self.main!r} and {self.main_inducing}"
            )
        for name in self.heads:
            for m in self.n_inducing:
                self.head(name, m, seed=0)
        return self

    def head(self, name: str, n_inducing: int, *, seed: int) -> HeadSettings:
        """Settings of a head. `ValueError` if the protocol gives it an unknown setting."""
        try:
            return HeadSettings(**self.heads[name], n_inducing=n_inducing, random_state=seed)
        except TypeError as error:
            raise ValueError(f"head {name!r}: {error}") from error

    @property
    def hash(self) -> str:
        """Digest of the settings in 12 hex digits, without `needs`, `out` and `jobs`."""
        return settings_digest(self.model_dump() | {"out": "", "jobs": 0, "needs": ""})


def read_protocol(words: Sequence[str]) -> ProtocolConfig:
    """Read a protocol by name (`features` is protocols/features.yaml) or by file, with `--name value` pairs.

    Raises:
        ConfigError: the protocol does not exist or is not valid.
    """
    name, pairs = words[0], words[1:]
    path = Path(name) if Path(name).suffix in (".yaml", ".yml") else PROTOCOLS / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError(f"{name}: no such protocol; name a YAML file, or one of {', '.join(_shipped())}")
    if len(pairs) % 2 or not all(word.startswith("--") for word in pairs[::2]):
        raise ConfigError(f"{' '.join(pairs)}: settings are given as --name value")
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
        given |= {key[2:]: yaml.safe_load(value) for key, value in zip(pairs[::2], pairs[1::2], strict=True)}
        return ProtocolConfig(**given)
    except ValidationError as error:
        parts = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}".lstrip(": ") for one in error.errors()]
        raise ConfigError(f"{path}: {'; '.join(parts)}") from error
    except (yaml.YAMLError, TypeError) as error:
        raise ConfigError(f"{path}: holds no settings ({' '.join(str(error).split())})") from error


def _shipped() -> dict[str, Path]:
    return {path.stem: path for path in sorted(PROTOCOLS.glob("*.yaml"))}


def list_protocols() -> str:
    """Names, titles and needs of the shipped protocols, one a line."""
    given = {name: yaml.safe_load(path.read_text()) for name, path in _shipped().items()}
    return "\n".join(
        f"{name:<10}{protocol['title']}: {protocol['needs']}" for name, protocol in given.items()
    )
