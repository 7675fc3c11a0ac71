"""Detection of intracranial hemorrhage in head CT from scan labels alone, with uncertainty.

    import ich_mil

    study = ich_mil.read_study("head_ct")
    result = ich_mil.load_model().predict(study)
    result.save_page("page.html")

Names are imported on first use: `import ich_mil` itself costs no torch.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ich_mil.config import RunConfig, read_config
    from ich_mil.errors import ConfigError, DataError, DicomError, IchMilError, ModelError
    from ich_mil.gp.head import Head
    from ich_mil.gp.settings import HeadSettings
    from ich_mil.ledger import Code, LedgerEntry
    from ich_mil.model.predictions import Results, read_results
    from ich_mil.multikernel import MultiKernelGP
    from ich_mil.multimodal import MultimodalMIL
    from ich_mil.prediction import Model, ScanResult, load_model
    from ich_mil.radiology_text.keywords import KeywordExtractor
    from ich_mil.sets.features import FeatureSet, read_feature_table
    from ich_mil.sets.preparation.prepare import prepare
    from ich_mil.sets.preparation.read import read_study
    from ich_mil.sets.store import PreparedSet, open_prepared
    from ich_mil.study.study import Study

__version__ = "0.1.0"

# Idle threads of OpenMP sleep instead of spinning, which beside busy processes takes most of the processor
# time. OpenMP reads it when torch is imported; child processes inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_PLACES = {
    "config": ("RunConfig", "read_config"),
    "errors": ("ConfigError", "DataError", "DicomError", "IchMilError", "ModelError"),
    "gp.head": ("Head",),
    "gp.settings": ("HeadSettings",),
    "ledger": ("Code", "LedgerEntry"),
    "model.predictions": ("Results", "read_results"),
    "multikernel": ("MultiKernelGP",),
    "multimodal": ("MultimodalMIL",),
    "prediction": ("Model", "ScanResult", "load_model"),
    "radiology_text.keywords": ("KeywordExtractor",),
    "sets.features": ("FeatureSet", "read_feature_table"),
    "sets.preparation.prepare": ("prepare",),
    "sets.preparation.read": ("read_study",),
    "sets.store": ("PreparedSet", "open_prepared"),
    "study.study": ("Study",),
}
"""Module of each public name."""

__all__ = [
    "Code",
    "ConfigError",
    "DataError",
    "DicomError",
    "FeatureSet",
    "Head",
    "HeadSettings",
    "IchMilError",
    "KeywordExtractor",
    "LedgerEntry",
    "Model",
    "ModelError",
    "MultiKernelGP",
    "MultimodalMIL",
    "PreparedSet",
    "Results",
    "RunConfig",
    "ScanResult",
    "Study",
    "load_model",
    "open_prepared",
    "prepare",
    "read_config",
    "read_feature_table",
    "read_results",
    "read_study",
]


def __getattr__(name: str) -> Any:
    for module, names in _PLACES.items():
        if name in names:
            return getattr(import_module(f"ich_mil.{module}"), name)
    raise AttributeError(f"module 'ich_mil' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
