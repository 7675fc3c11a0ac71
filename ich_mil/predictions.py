"""What a user takes away: one probability with its uncertainty for each scan and each of its slices.

In: features, the head's predictions, and for prepared scans where each slice came from. Out:
`predictions.csv` (one row a scan or slice) and `predictions.json` (the same as a tree, with model version,
config hash and every correction made to the input).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ich_mil.data.features import FeatureSet
from ich_mil.data.labels import UNKNOWN
from ich_mil.data.store import PreparedSet
from ich_mil.files import whole_file, write_json
from ich_mil.gp.predict import Predictions

FORMAT = "ich_mil.predictions.2"
NOTICE = "For research only, not for diagnosis."
COLUMNS = [
    "level",
    "scan",
    "patient",
    "slice",
    "name",
    "position_mm",
    "probability",
    "std",
    "low",
    "high",
    "label",
    "corrections",
]


@dataclass(frozen=True)
class Provenance:
    """Which model spoke.

    Attributes:
        version: version of the program.
        weights: digest of the weight files.
        config: hash of the configuration it was trained with.
    """

    version: str
    weights: str
    config: str


def prediction_table(
    features: FeatureSet, predictions: Predictions, prepared: PreparedSet | None
) -> pd.DataFrame:
    """One row a scan, followed by its slices from the lowest up; columns as in `COLUMNS`.

    `low` and `high` bound the central 95 % of the posterior samples; `label` is empty where unknown.
    """
    rows: list[dict[str, Any]] = []
    for b, scan in enumerate(features.scans):
        start, stop = int(features.offsets[b]), int(features.offsets[b + 1])
        about = prepared.slices(scan) if prepared is not None else None
        corrections = [] if about is None else about.corrections.tolist()
        distinct = sorted({code for text in corrections for code in text.split("|") if code})
        rows.append(
            {
                "level": "scan",
                "scan": scan,
                "patient": features.patients[b],
                "slice": None,
                "name": scan,
                "position_mm": None,
                "probability": float(predictions.scan_mean[b]),
                "std": float(predictions.scan_std[b]),
                "low": float(predictions.scan_low[b]),
                "high": float(predictions.scan_high[b]),
                "label": _label(int(features.labels[b])),
                "corrections": "|".join(distinct),
            }
        )
        for n in range(start, stop):
            rows.append(
                {
                    "level": "slice",
                    "scan": scan,
                    "patient": features.patients[b],
                    "slice": n - start,
                    "name": features.slice_names[n],
                    "position_mm": None if about is None else float(about.position_mm.iloc[n - start]),
                    "probability": float(predictions.slice_mean[n]),
                    "std": float(predictions.slice_std[n]),
                    "low": float(predictions.slice_low[n]),
                    "high": float(predictions.slice_high[n]),
                    "label": _label(int(features.slice_labels[n])),
                    "corrections": corrections[n - start] if corrections else "",
                }
            )
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.astype({"slice": "Int64", "label": "Int64", "position_mm": "Float64"})


def write_predictions(
    table: pd.DataFrame, folder: Path, *, name: str, provenance: Provenance, prepared: PreparedSet | None
) -> None:
    """Write `predictions.csv` and `predictions.json`, which holds the ledger of `prepared`, into `folder`.

    `name` says what the scans are: `new`, or the part of a run (`validation`, `test`, `external`).
    """
    ledger = {} if prepared is None else prepared.ledger_by_scan
    with whole_file(folder / "predictions.csv") as temporary:
        table.to_csv(temporary, index=False, float_format="%.6f")
    scans = []
    for scan, group in table.groupby("scan", sort=False):
        head, slices = group.iloc[0], group.iloc[1:]
        lines = ledger.get(str(scan), [])
        own = [{name: line[name] for name in ("file", "code", "detail")} for line in lines]
        scans.append(
            {
                "scan": scan,
                "patient": head.patient,
                **_numbers(head),
                "ledger": own,
                "slices": [_slice(row) for _, row in slices.iterrows()],
            }
        )
    predicted = set(table.scan)
    general = [line for scan, lines in ledger.items() if scan not in predicted for line in lines]
    write_json(
        folder / "predictions.json",
        {
            "format": FORMAT,
            "notice": NOTICE,
            "set": name,
            "model_version": provenance.version,
            "model_weights": provenance.weights,
            "config_hash": provenance.config,
            "scans": scans,
            "ledger": general,
        },
    )


def _label(value: int) -> int | None:
    return None if value == UNKNOWN else value


def _numbers(row: pd.Series) -> dict[str, Any]:
    return {
        "probability": round(float(row.probability), 6),
        "std": round(float(row["std"]), 6),
        "interval_95": [round(float(row.low), 6), round(float(row.high), 6)],
        "label": None if pd.isna(row.label) else int(row.label),
    }


def _slice(row: pd.Series) -> dict[str, Any]:
    return {
        "slice": int(row["slice"]),
        "name": row["name"],
        "position_mm": None if pd.isna(row.position_mm) else round(float(row.position_mm), 3),
        **_numbers(row),
        "corrections": [code for code in row.corrections.split("|") if code],
    }
