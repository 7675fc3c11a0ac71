"""Predictions of the bundled model on out-of-distribution studies, by `ich-mil predict`.

    python -m research.benchmarks.headct.limits --out FOLDER [--model RUN]

In: a real head CT of another hospital (GE; we saw no bleed), phantoms (ten of site A, two of site B), and CT
slices of other body parts from pydicom's test files. Out: probability, decision and ledger codes per study.
"""

import argparse
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pydicom.data

from ich_mil.ledger import LedgerEntry
from ich_mil.model.predictions import read_results
from ich_mil.phantoms import data_sets
from research.benchmarks.public_features import DATA
from research.benchmarks.record import table

GE = DATA / "ge_head_ct"
PHANTOMS = 10
OTHERS = ("CT_small.dcm", "693_J2KI.dcm")


def gather(folder: Path) -> None:
    """Copy or generate the studies, in a subfolder per source."""
    if GE.is_dir():
        shutil.copytree(GE, folder / "ge", dirs_exist_ok=True)
    data_sets.main([str(folder / "phantoms"), "--studies-a", str(PHANTOMS), "--studies-b", "2"])
    for name in OTHERS:
        found = pydicom.data.get_testdata_file(name, download=False)
        if found is not None:
            (folder / "other").mkdir(exist_ok=True)
            shutil.copy(str(found), folder / "other" / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=Path("headct-base"))
    chosen = parser.parse_args()
    studies, out = chosen.out / "studies", chosen.out / "predictions"
    gather(studies)
    subprocess.run(
        ["ich-mil", "predict", str(studies), "--model", str(chosen.model), "--out", str(out)], check=True
    )
    results = read_results(out)
    rows = [
        [scan.scan[-20:], len(scan.slices), f"{scan.probability:.3f}", scan.decision, codes(scan.ledger)]
        for scan in results.scans
    ]
    rows.append(["no scan", "-", "-", "-", codes(results.ledger)])
    print(table(["scan", "slices", "probability", "decision", "ledger"], rows))


def codes(ledger: Iterable[LedgerEntry]) -> str:
    """Ledger codes with their number of entries."""
    return ", ".join(f"{code} {count}" for code, count in Counter(str(e.code) for e in ledger).items())


if __name__ == "__main__":
    main()
