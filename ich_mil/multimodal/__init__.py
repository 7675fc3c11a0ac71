"""Multiple-instance classification of bags that hold several kinds of instance: vMMIC and MICProB."""

from ich_mil.multimodal.estimator import MICProB, MultimodalMIL

__all__ = ["MICProB", "MultimodalMIL"]
