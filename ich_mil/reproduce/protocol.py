"""Benchmark protocol: data sets, heads, folds and seeds, read from a YAML file with overrides."""

import re
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from ich_mil.files import file_stem, settings_digest
from ich_mil.gp.settings import HeadSettings
from ich_mil.settings import (
    PROTOCOL,
    check_least,
    check_list,
    check_seeds,
    config_file,
    filled_path,
    read_settings,
    shipped_configs,
)

SetKind = Literal["features", "musk", "digits", "mnist", "pictures"]

USED_BY: dict[str, set[SetKind]] = {
    "root": {"features", "musk", "mnist", "pictures"},
    "components": {"features", "musk", "digits", "mnist"},
    "external": {"features"},
    "external_name": {"features", "pictures"},
    "findings": {"features", "pictures"},
    "scans": {"pictures"},
    "cnn_seeds": {"pictures"},
    "widths": {"pictures"},
}
"""Kinds of set to which each optional setting applies."""


@dataclass(frozen=True)
class BenchmarkSet:
    """One set of bags.

    Attributes:
        name: name in the tables.
        kind: `features` (a public feature CSV), `musk` (an npz file), `digits` (from scikit-learn, without a
            path), `mnist` (a folder with the four IDX files), or `pictures` (a training configuration, its
            file or the name of a shipped one, run once for each CNN seed and each number of features).
        root: file or folder; environment variables written as `$NAME` are expanded.
        dataset: name of the held-out scans in `ich_mil/reproduce/published.csv`; '' means `name`.
        components: number of principal components of the features, fitted on training bags; 0 means no PCA.
        external: features of an external set (`features` only), scored by heads fitted to all of `root`.
        external_name: name of the external set.
        findings: `reads.csv` of CQ500, for subtypes and reader disagreement in the external set.
        scans: CSV with columns scan,split (train, validation, test) that lists the scans of `pictures`.
        cnn_seeds: seeds of the networks of `pictures`.
        widths: numbers of features of the networks of `pictures`.
    """

    name: str
    kind: SetKind
    root: str = ""
    dataset: str = ""
    components: int = 0
    external: str = ""
    external_name: str = "external"
    findings: str = ""
    scans: str = ""
    cnn_seeds: list[int] = field(default_factory=lambda: [0])
    widths: list[int] = field(default_factory=lambda: [8])

    def __post_init__(self) -> None:
        for one in fields(self):
            default = one.default if one.default_factory is MISSING else one.default_factory()
            if getattr(self, one.name) != default and self.kind not in USED_BY.get(one.name, {self.kind}):
                raise ValueError(
                    f"set {self.name!r}: {one.name} is not used by kind {self.kind!r}; leave it out"
                )
        if self.kind != "digits" and not self.root:
            raise ValueError(f"set {self.name!r}: root is missing")
        if self.components < 0:
            raise ValueError(f"set {self.name!r}: components must be at least 0, got {self.components}")
        if not re.fullmatch(r"[\w-][\w. -]*", self.name) or self.name in ("fits", "networks"):
            raise ValueError(
                f"set {self.name!r}: a name of letters, digits, '_', '-', '.' is needed, '.' not first"
            )
        if file_stem(self.external_name) in ("held_out", "train", "validation", "test"):
            raise ValueError(
                f"set {self.name!r}: external_name {self.external_name!r} is taken; choose another"
            )
        if self.components and self.external:
            raise ValueError(f"set {self.name!r}: components cannot be combined with an external set")
        if self.findings and not (self.external or self.kind == "pictures"):
            raise ValueError(f"set {self.name!r}: findings need an external set")
        check_seeds(f"set {self.name!r}: cnn_seeds", *self.cnn_seeds)
        check_list(f"set {self.name!r}: widths", self.widths)

    @property
    def published(self) -> dict[str, str]:
        """Protocol in `published.csv` of the held-out ('') and of the external scans."""
        if self.kind == "features":
            return {"": "rsna-150", self.external_name: "rsna-150-cq500"}
        if self.kind == "pictures":
            return {"": "rsna-1150", self.external_name: "rsna-1150-cq500"}
        return {"": "five-splits"}

    def path(self, what: str) -> Path:
        """Expanded path of `root`, `external`, `findings` or `scans`. `ConfigError` if that is impossible."""
        path = filled_path(f"set {self.name!r}: {what}", getattr(self, what))
        return config_file(str(path)) if what == "root" and self.kind == "pictures" else path


@dataclass(frozen=True)
class ProtocolConfig:
    """All settings of a benchmark.

    Attributes:
        title: title of the report.
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

    title: str
    out: Path
    sets: list[BenchmarkSet]
    heads: dict[str, dict[str, Any]]
    main: str
    main_inducing: int = 100
    n_inducing: list[int] = field(default_factory=lambda: [50, 100, 200])
    folds: int = 5
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2, 3, 4])
    attention_mil: bool = False
    resamples: int = 1000
    samples: int = 1000
    sensitivity: float = 0.95
    specificity: float = 0.95
    confidence: float = 0.9
    simulations: int = 1000
    jobs: int = 0

    def __post_init__(self) -> None:
        names = [one.name for one in self.sets]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"sets must have names that differ, got {names}")
        if self.main not in self.heads or self.main_inducing not in self.n_inducing:
            raise ValueError(
                f"main must be one of the heads ({', '.join(self.heads)}) and main_inducing one of "
                f"{self.n_inducing}, got {self.main!r} and {self.main_inducing}"
            )
        if self.folds < 2:
            raise ValueError(f"folds must be at least 2, got {self.folds}")
        check_seeds("seeds", *self.seeds)
        check_list("n_inducing", self.n_inducing)
        for name in ("sensitivity", "specificity", "confidence"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {getattr(self, name)}")
        check_least(self, resamples=10, samples=2, simulations=1, jobs=0)
        for name in self.heads:
            for m in self.n_inducing:
                self.head(name, m, seed=0)

    def first_seed(self, name: str) -> int:
        """Seed of the runs of a set that are analysed in detail."""
        (one,) = (one for one in self.sets if one.name == name)
        return one.cnn_seeds[0] if one.kind == "pictures" else self.seeds[0]

    def head(self, name: str, n_inducing: int, *, seed: int) -> HeadSettings:
        """Settings of a head. `ValueError` if the protocol gives it an unknown setting."""
        allowed = {*HeadSettings.names()} - {"n_inducing", "random_state"}
        if unknown := sorted({*self.heads[name]} - allowed):
            raise ValueError(f"head {name!r}: {unknown[0]!r} is not a setting of a head here")
        return replace(
            HeadSettings(), **(self.heads[name] | {"n_inducing": n_inducing, "random_state": seed})
        )

    @property
    def hash(self) -> str:
        """Digest of the settings in 12 hex digits, without `out` and `jobs`."""
        return settings_digest(asdict(self) | {"out": "", "jobs": 0})


def read_protocol(words: Sequence[str], *, more: str = "") -> ProtocolConfig:
    """Read a protocol by name (`features` is configs/protocol_features.yaml) or by file, with overrides.

    Raises:
        ConfigError: the protocol does not exist or is not valid.
    """
    if not words[0].startswith("-"):
        words = ["--config", str(config_file(words[0], PROTOCOL)), *words[1:]]
    return read_settings(ProtocolConfig, words, program="ich-mil reproduce PROTOCOL", more=more)


def list_protocols() -> str:
    """Names and titles of the shipped protocols, one a line."""
    titles = {
        name: yaml.safe_load(path.read_text(encoding="utf-8"))["title"]
        for name, path in shipped_configs(PROTOCOL).items()
    }
    return "\n".join(f"{name:<10}{title}" for name, title in titles.items())
