"""Broken DICOM files, thousands of them: nothing may come of them but HU or a refusal.

    python -m tests.dicom.fuzz --files 5000 --seed 0
    python -m tests.dicom.fuzz --seed 0 --only 1234

In: a number of files and a seed. Out: a table of what became of them, and a folder with those that failed.
`mutations` makes the files, `watch` has them read and judges.
"""

import argparse
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.dicom.mutations import Corpus, Mutant
from tests.dicom.watch import READER, Result, run


def report(corpus: Corpus | Sequence[Mutant], results: dict[int, Result]) -> str:
    """The table: outcomes by kind of change, refusals by code, failures, and the largest of all."""
    by_kind: dict[str, Counter[str]] = defaultdict(Counter)
    for number, result in results.items():
        by_kind[corpus[number].kind]["failed" if result.failed else result.outcome] += 1
    codes = Counter(result.detail for result in results.values() if result.outcome == "refused")
    lines = [f"{'change':20} {'read':>7} {'refused':>7} {'failed':>7}"]
    for kind, counts in (*sorted(by_kind.items()), ("all", sum(by_kind.values(), Counter()))):
        lines.append(f"{kind:20} {counts['read']:7} {counts['refused']:7} {counts['failed']:7}")
    slowest = max(results, key=lambda number: results[number].seconds)
    largest = max(results, key=lambda number: results[number].peak)
    lines += [
        "",
        *(f"{code:20} {count:7}" for code, count in codes.most_common()),
        "",
        f"slowest {results[slowest].seconds:.2f} s (file {slowest}, {corpus[slowest].kind})",
        f"peak memory {results[largest].peak / 2**20:.0f} MiB (file {largest}, {corpus[largest].kind})",
        *(failure(corpus[number], result) for number, result in results.items() if result.failed),
    ]
    return "\n".join(lines)


def failure(mutant: Mutant, result: Result) -> str:
    """One line on a file that failed."""
    return f"FAILED {mutant.number} {mutant.kind} of {mutant.origin}: {result.outcome}: {result.detail}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where a file failed."""
    parser = argparse.ArgumentParser(description="Broken DICOM files against the reader.")
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="*", default=None, help="these numbers alone")
    parser.add_argument("--no-real", action="store_true", help="without the files of ../shared/data")
    parser.add_argument("--reader", default=READER)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "ich_mil_fuzz")
    options = parser.parse_args(arguments)
    corpus = Corpus(options.seed, real=not options.no_real)
    numbers = options.only if options.only is not None else range(options.files)
    options.keep.mkdir(parents=True, exist_ok=True)

    def tell(mutant: Mutant, result: Result) -> None:
        """Keep what failed at once: a run may be stopped."""
        if result.failed or options.only is not None:
            (options.keep / f"seed{options.seed}_{mutant.number}.dcm").write_bytes(mutant.content)
        if result.failed:
            print(failure(mutant, result), flush=True)

    results = run(corpus, numbers, reader=options.reader, tell=tell)
    print(report(corpus, results))
    print(f"files that failed are in {options.keep}; one again: --seed {options.seed} --only NUMBER")
    return int(any(result.failed for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
