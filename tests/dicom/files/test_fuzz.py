"""Broken files never do harm, and the watch notices each kind of harm."""

import ctypes
import hashlib
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pydicom
import pytest

from ich_mil.errors import DicomError
from ich_mil.ledger import Code
from tests.dicom.encodings import cases
from tests.dicom.fuzz import main, report
from tests.dicom.mutations import KINDS, Corpus, Mutant, take_apart
from tests.dicom.watch import Limits, Result, run

pytestmark = pytest.mark.slow

N_QUICK = 300


@pytest.mark.parametrize(
    "name",
    [
        "explicit/12-bit",
        "implicit/12-bit",
        "big-endian/12-bit",
        "deflated/12-bit",
        "enhanced/explicit",
        "rle/12-bit",
    ],
)
def test_elements_are_found_where_pydicom_finds_them(tmp_path, name):
    case = next(case for case in cases() if case.name == name)
    path = tmp_path / "seed.dcm"
    path.write_bytes(case.content)
    layout = take_apart(case.content)
    ds = pydicom.dcmread(path)
    tags = [int(element.tag) for element in ds.file_meta]
    for element in ds:
        tags.append(int(element.tag))
        tags += [int(inner.tag) for inner in ds[element.tag].value[0]] if element.VR == "SQ" else []
    found = [element.tag for element in layout.elements]
    assert set(tags) <= set(found)
    (rows,) = layout.find(0x00280010)
    order = "big" if name.startswith("big") else "little"
    assert int.from_bytes(layout.flat[rows.value_at : rows.end], order) == 24
    assert len(layout.flat) == layout.elements[-1].end


def test_corpus_is_made_again_by_its_seed():
    def digest(seed: int, numbers: range) -> str:
        corpus = Corpus(seed, real=False)
        return hashlib.sha256(b"".join(corpus[number].content for number in numbers)).hexdigest()

    assert digest(3, range(2 * len(KINDS))) == digest(3, range(2 * len(KINDS)))
    assert digest(3, range(2 * len(KINDS))) != digest(4, range(2 * len(KINDS)))
    alone, among = Corpus(3, real=False), Corpus(3, real=False)
    assert [among[number] for number in range(40)][39] == alone[39]


def test_each_kind_occurs_and_changes_the_file():
    corpus = Corpus(0, real=False)
    seeds = {case.content for case in cases()}
    for number, kind in enumerate(KINDS):
        mutant = corpus[number]
        assert mutant.kind == kind
        assert (mutant.content in seeds) == (kind == "unchanged")


@pytest.fixture(scope="module")
def quick() -> tuple[Corpus, dict[int, Result]]:
    """A few hundred broken files, and what became of them."""
    corpus = Corpus(0, real=False)
    return corpus, run(corpus, range(N_QUICK), jobs=2)


def test_no_broken_file_does_harm(quick):
    corpus, results = quick
    assert len(results) == N_QUICK
    assert not [result for result in results.values() if result.failed], report(corpus, results)
    assert {result.outcome for result in results.values()} == {"read", "refused"}
    for number, result in results.items():
        if corpus[number].kind == "unchanged":
            assert result.outcome == "read", corpus[number].origin


def test_damaged_file_is_not_said_to_be_closed(quick):
    """A file that cannot be opened is tried again by each run; a damaged one must not be."""
    assert Code.NOT_OPENED not in {result.detail for result in quick[1].values()}


# The watch: what is planted in the reader must be found


_poisoned = False


def planted(path: Path) -> Iterator[tuple[int, int, np.ndarray] | DicomError]:
    """A reader that does what the file says."""
    global _poisoned
    word = path.read_text()
    if _poisoned or word == "crash":
        ctypes.string_at(0)
    if word == "poison":
        _poisoned = True
    elif word == "abort":
        os.abort()
    elif word == "exit":
        os._exit(3)
    elif word == "hang":
        time.sleep(60)
    elif word == "spin":
        while True:
            pass
    elif word == "hog":
        np.ones(80 << 20, np.uint8)  # more would take more than `seconds` where pages are slow to come
    elif word == "too much":
        np.zeros(2 << 30, np.uint8)
    elif word == "hidden":
        try:
            np.zeros(2 << 30, np.uint8)
        except MemoryError as error:
            raise DicomError(f"{path}: broken", code="unreadable") from error
    elif word == "KeyError":
        raise KeyError("Rows")
    elif word == "RecursionError":
        planted_recursion()
    elif word == "SystemExit":
        raise SystemExit(2)
    elif word == "code":
        raise DicomError(f"{path}: broken", code="bad-luck")
    elif word == "nameless":
        raise DicomError("broken", code="unreadable")
    elif word == "two lines":
        raise DicomError(f"{path}: bro\nken", code="unreadable")
    elif word == "refused":
        raise DicomError(f"{path}: broken", code="unreadable")
    elif word == "none":
        return
    elif word == "late":
        yield 2, 2, np.zeros((2, 2), np.int16)
        raise KeyError("frame 2")
    elif word == "warns":
        warnings.warn("odd", UserWarning, stacklevel=1)
        os.write(2, b"odd\n")
    hu = np.zeros((2, 3), np.int32 if word == "dtype" else np.int16)
    hu[0, 0] = {"high": 3096, "low": -1025}.get(word, 5)
    yield (3, 2, hu) if word == "shape" else (2, 3, hu)


def planted_recursion() -> None:
    planted_recursion()


def refuses_to_say(path: Path) -> Iterator[DicomError]:
    """A reader of which nothing comes."""
    yield from ()


PLANTED = "tests.dicom.files.test_fuzz:planted"
LIMITS = Limits(seconds=0.5, patience=10, memory=50 << 20, addressed=1 << 30)


def watched(*words: str, jobs: int = 1) -> list[tuple[str, str]]:
    """Outcome and detail of each planted word."""
    mutants = [Mutant(number, "planted", word, word.encode()) for number, word in enumerate(words)]
    results = run(mutants, range(len(words)), reader=PLANTED, limits=LIMITS, jobs=jobs)
    return [(result.outcome, result.detail) for result in results.values()]


def test_watch_lets_good_files_pass():
    assert watched("fine", "refused") == [("read", ""), ("refused", "unreadable")]


PLANTS = [
    ("crash", "dead", "SIGSEGV"),
    ("abort", "dead", "SIGABRT"),
    ("exit", "dead", "exit 3"),
    ("hang", "slow", "killed after 10 s by the clock"),
    ("spin", "slow", "of processor time"),
    ("hog", "memory", "peak "),
    ("too much", "memory", "MemoryError"),
    ("hidden", "memory", "more was asked for than may be addressed"),
    ("KeyError", "exception", "KeyError: 'Rows' at test_fuzz.py:"),
    ("RecursionError", "exception", "RecursionError"),
    ("SystemExit", "exception", "SystemExit"),
    ("late", "exception", "frame 2"),
    ("code", "refusal", "'bad-luck' is none of the ledger's"),
    ("nameless", "refusal", "not one line that names the file"),
    ("two lines", "refusal", "not one line that names the file"),
    ("none", "values", "no slice and no refusal"),
    ("dtype", "values", "int32"),
    ("shape", "values", "header 3 x 2"),
    ("high", "values", "HU from 0 to 3096"),
    ("low", "values", "HU from -1025 to 0"),
]


@pytest.fixture(scope="module")
def plants() -> dict[str, tuple[str, str]]:
    """What the watch made of each plant, a good file after each."""
    words = [word for plant, _, _ in PLANTS for word in (plant, "fine")]
    found = watched(*words, jobs=2)
    assert found[1::2] == [("read", "")] * len(PLANTS)
    return dict(zip(words[::2], found[::2], strict=True))


@pytest.mark.parametrize(("word", "outcome", "detail"), PLANTS)
def test_watch_notices(plants, word, outcome, detail):
    assert plants[word][0] == outcome
    assert detail in plants[word][1]


def test_watch_says_where_a_crash_came_from(plants):
    assert "in planted" in plants["crash"][1]


def test_watch_tells_a_late_crash_from_an_own_one():
    results = watched("poison", "fine")
    assert results[0] == ("read", "")
    assert results[1][0] == "dead"
    assert results[1][1].startswith("only after other files ([0]): SIGSEGV")


def test_report_counts_and_names_failures():
    mutants = [
        Mutant(number, kind, "seed", kind.encode())
        for number, kind in enumerate(("warns", "high", "refused"))
    ]
    results = run(mutants, range(3), reader=PLANTED, limits=LIMITS)
    assert (results[0].outcome, results[0].warnings, results[0].printed) == ("read", 1, 4)
    text = report(mutants, results)
    assert "all                        1       1       1" in text
    assert "unreadable                 1" in text
    assert "FAILED 1 high of seed: values: HU from 0 to 3096" in text
    assert "1 files gave Python warnings, 1 made a decoder print" in text


def test_command_keeps_the_files_that_failed(tmp_path, capsys):
    words = ["--no-real", "--only", "0", "1", "--keep", str(tmp_path), "--seed", "3", "--reader"]
    assert main([*words, "tests.dicom.files.test_fuzz:refuses_to_say"]) == 1
    corpus = Corpus(3, real=False)
    for number in (0, 1):
        assert (tmp_path / f"seed3_{number}.dcm").read_bytes() == corpus[number].content
    said = capsys.readouterr().out
    assert (
        said.count(f"FAILED 1 {corpus[1].kind} of {corpus[1].origin}: values: no slice and no refusal") == 2
    )
    assert main([*words, "tests.dicom.watch:read_all"]) == 0
