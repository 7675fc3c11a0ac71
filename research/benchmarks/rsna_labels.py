"""Memory and time to read a label table of the size of RSNA 2019: 752,803 images, 4,516,842 rows.

    python -m research.benchmarks.rsna_labels --folder $D

The table is drawn into $D/stage_2_train.csv where it is missing, four images twice.
"""

import os
import random
import resource
import time
from pathlib import Path

from ich_mil.sets.layouts.rsna import RsnaCollection
from ich_mil.sets.layouts.rsna_labels import KINDS
from research.benchmarks.record import command_line, record

IMAGES = 752_803


def write_table(path: Path) -> None:
    """Draw a table with the rows and the length of names of the challenge."""
    generator = random.Random(0)
    names = generator.sample(range(16**9), IMAGES)
    labels = [[int(generator.random() < 0.03) for _ in KINDS[:-1]] for _ in names]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        file.write("ID,Label\n")
        for row in (*range(IMAGES), *range(4)):
            values = (*labels[row], max(labels[row]))
            file.writelines(f"ID_{names[row]:09x}_{k},{v}\n" for k, v in zip(KINDS, values, strict=True))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    folder = parser.parse_args().folder
    path = folder / "stage_2_train.csv"
    if not path.exists():
        if os.fork() == 0:  # the memory of drawing it is that of another process
            write_table(path)
            os._exit(0)
        os.wait()
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    labels = RsnaCollection(folder).labels
    after, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time() - started
    peak, own = after / 1024, (after - before) / 1024
    text = f"{len(labels.rows)} images, {path.stat().st_size / 1e6:.0f} MB. "
    text += (
        f"Peak of memory: {peak:.0f} MiB, {own:.0f} MiB above the imports; {seconds:.1f} s of a processor."
    )
    record("Label table of RSNA 2019: memory", text)


if __name__ == "__main__":
    main()
