"""`ich-mil labels-template`."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from ich_mil.arguments import app, examples, workers
from ich_mil.errors import DataError
from ich_mil.progress import say


@app.command(epilog=examples("ich-mil labels-template /data/site"))
def labels_template(
    root: Annotated[
        Path,
        typer.Argument(exists=True, file_okay=False, help="Folder of the studies; gets labels.csv."),
    ],
) -> None:
    """Write the table of labels to fill in."""
    import pandas as pd

    from ich_mil.files import write_csv
    from ich_mil.sets.labels import name_some
    from ich_mil.sets.layouts.folder import FolderCollection
    from ich_mil.sets.preparation.identifying_texts import accession_number
    from ich_mil.sets.preparation.index import HeaderIndex
    from ich_mil.sets.scan_labels import LABELS
    from ich_mil.sets.scan_names import folder_of, own_folders

    collection = FolderCollection(root, labelled=False)
    if old := sorted(path for path in root.iterdir() if LABELS.fullmatch(path.name)):
        raise DataError(f"{old[0]}: exists already; fill it in, or remove it")
    with TemporaryDirectory() as scratch:
        file = Path(scratch) / "index.sqlite"
        with HeaderIndex(file, collection, layout="unlabelled", leave_out=Path(scratch)) as index:
            index.update(jobs=workers(0))
            paths = {scan.scan: [source.path for source in scan.sources] for scan in index.scans()}
            empty = [f"{line.scan}: {line.detail}" for line in index.empty_scans()]
    if not paths:
        raise DataError(f"{root}: holds no CT slice; name the folder with the studies")
    folders = own_folders({(scan, folder_of(path)) for scan, own in paths.items() for path in own})
    rows = [(folders[scan], accession_number(root / own[0]), scan, "") for scan, own in paths.items()]
    table = pd.DataFrame(rows, columns=["folder", "accession", "study", "label"])
    # without a byte order mark Excel reads UTF-8 as another encoding, and saves other names of folders
    write_csv(root / "labels.csv", table.sort_values(["folder", "study"]), encoding="utf-8-sig")
    if empty:
        say(f"without a usable slice, so not in the table: {len(empty)} ({name_some(empty, 5)})")
    say(f"{root / 'labels.csv'}: {len(table)} studies; write 1 or 0 into label, or leave it empty")
