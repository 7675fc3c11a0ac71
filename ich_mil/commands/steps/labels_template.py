"""Write a table of labels to fill in: a row for each study below a folder.

In: a folder of DICOM files. Out: `labels.csv` in it, for layout `folder`: folder, AccessionNumber and
StudyInstanceUID of each study with a CT slice, and an empty label.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from joblib import cpu_count

from ich_mil.data.layouts.folder import FolderCollection
from ich_mil.data.preparation.identifying_texts import accession_number
from ich_mil.data.preparation.index import HeaderIndex
from ich_mil.data.scan_labels import LABELS
from ich_mil.data.scan_names import folder_of, own_folders
from ich_mil.errors import DataError
from ich_mil.files import write_csv
from ich_mil.progress import say


def write_template(root: Path) -> None:
    """Write the table into `root`.

    Raises:
        DataError: `root` holds a table of labels already, or no CT slice, or cannot be written.
    """
    collection = FolderCollection(root, labelled=False)
    if found := sorted(path for path in root.iterdir() if LABELS.fullmatch(path.name)):
        raise DataError(f"{found[0]}: exists already; fill it in, or remove it")
    with (
        TemporaryDirectory() as place,
        HeaderIndex(
            Path(place) / "index.sqlite", collection, layout="unlabelled", leave_out=Path(place)
        ) as index,
    ):
        index.update(jobs=cpu_count())
        paths = {scan.scan: [source.path for source in scan.sources] for scan in index.scans()}
    if not paths:
        raise DataError(f"{root}: holds no CT slice; name the folder with the studies")
    folders = own_folders({(scan, folder_of(path)) for scan, of in paths.items() for path in of})
    rows = [(folders[scan], accession_number(root / of[0]), scan, "") for scan, of in paths.items()]
    table = pd.DataFrame(rows, columns=["folder", "accession", "study", "label"])
    write_csv(root / "labels.csv", table.sort_values(["folder", "study"]))
    say(f"{root / 'labels.csv'}: {len(table)} studies; write 1 or 0 into label, or leave it empty")
