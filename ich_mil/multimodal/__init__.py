"""Multiple-instance classification of bags that hold several kinds of instance: vMMIC."""

from typing import Any

__all__ = ["MultimodalMIL"]


def __getattr__(name: str) -> Any:
    """Import the estimators when used, so that a configuration is read and checked without torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ich_mil.multimodal import estimator

    return getattr(estimator, name)
