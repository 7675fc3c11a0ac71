"""Predict: new studies to probabilities with uncertainty, and a page for each study.

In: a folder with one study, or with several as a PACS exports them, and a trained model. Out:
`predictions.csv`, `predictions.json`, a page a study, `features.safetensors`, `prepared/` with the ledger.
"""

from pathlib import Path

from ich_mil.data.prepare import prepare
from ich_mil.ledger import Code
from ich_mil.model import load_model
from ich_mil.predictions import prediction_table, write_predictions
from ich_mil.progress import say
from ich_mil.report.html import study_file_name
from ich_mil.report.pages import write_study_pages


def predict_folder(root: Path, *, model: Path, out: Path, jobs: int) -> None:
    """Predict every study below `root`: predictions, and a page for each study, in `out`.

    Raises:
        DataError: no readable study below `root`.
        ModelError: `model` is no finished run with a CNN.
    """
    trained = load_model(model)
    trained.check_input(pictures=True)
    prepared = prepare("unlabelled", root, out / "prepared", jobs=jobs, thickness_mm=trained.thickness_mm)
    features = trained.features(prepared, out / "features.safetensors")
    predictions = trained.predict(features)
    table = prediction_table(features, predictions, prepared)
    write_predictions(table, out, name="new", provenance=trained.provenance, prepared=prepared)
    write_study_pages(trained, features, predictions, prepared, out, scans=features.scans)
    for row in table[table.level == "scan"].itertuples():
        interval = f"95 % {row.low:.3f} to {row.high:.3f}"
        say(f"{row.scan}: probability {row.probability:.3f} ± {row.std:.3f}, {interval}")
        say(f"  {out / study_file_name(str(row.scan))}")
    ledger = prepared.ledger
    for scan in ledger.scan[ledger.code == Code.SCAN_EMPTY]:
        say(f"{scan}: no slice could be read, see {prepared.folder / 'ledger.csv'}")
    say(f"{out / 'predictions.csv'}")
