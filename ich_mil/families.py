"""Families of heads; importable without torch. A new family is the file of its class and an entry here.

Gaussian processes are one entry; their families stand in `ich_mil.gp.settings`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, get_args

from pydantic import model_validator
from pydantic.dataclasses import dataclass

from ich_mil.gp.settings import STRICT, GaussianProcess, HeadSettings

if TYPE_CHECKING:
    from ich_mil.heads.scan_head import ScanHead


def _gaussian_process() -> "type[ScanHead]":
    from ich_mil.heads.gaussian_process import GaussianProcessHead

    return GaussianProcessHead


def _multimodal() -> "type[ScanHead]":
    from ich_mil.multimodal.head import MultimodalHead

    return MultimodalHead


class Family(NamedTuple):
    """A family: import of its class, its settings `head`, whether it takes inputs beside the slices."""

    head: "Callable[[], type[ScanHead]]"
    settings: tuple[str, ...]
    extras: bool


FAMILIES = {
    **dict.fromkeys(get_args(GaussianProcess), Family(_gaussian_process, HeadSettings.names(), extras=False)),
    "multimodal": Family(_multimodal, ("family", "calibration", "random_state"), extras=True),
}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RunHeadSettings(HeadSettings):
    """Settings `head` of a run, of any family."""

    family: Literal[GaussianProcess, "multimodal"] = "psi"  # type: ignore[assignment]

    @model_validator(mode="after")
    def _check_family(self) -> Self:
        other = {*self.names()} - {*FAMILIES[self.family].settings}
        foreign = sorted(name for name in other if getattr(self, name) != getattr(HeadSettings, name))
        if foreign:
            raise ValueError(f"{foreign[0]} is a setting of Gaussian-process heads, not of {self.family!r}")
        return self


RunHeadSettings.__doc__ = HeadSettings.__doc__  # the help of a command shows its attributes
