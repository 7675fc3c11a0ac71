"""Broken files never do harm, and the watch notices each kind of harm."""

import ctypes
import hashlib
import io
import os
import time
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
from tests.dicom.watch import Limits, run

pytestmark = pytest.mark.slow

N_QUICK = 300


@pytest.mark.parametrize("encoding", ["explicit", "implicit", "big-endian", "deflated", "enhanced", "rle"])
def test_elements_are_found_where_pydicom_finds_them(encoding):
    case = next(case for case in cases() if case.name in (f"{encoding}/12-bit", f"{encoding}/explicit"))
    layout, ds = take_apart(case.content), pydicom.dcmread(io.BytesIO(case.content))
    tags = {int(element.tag) for element in (*ds.file_meta, *ds)}
    assert tags <= {element.tag for element in layout.elements}
    (rows,) = layout.find(0x00280010)
    order = "big" if encoding == "big-endian" else "little"
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


def test_no_broken_file_does_harm():
    corpus = Corpus(0, real=False)
    results = run(corpus, range(N_QUICK))
    assert len(results) == N_QUICK
    assert not [result for result in results.values() if result.failed], report(corpus, results)
    assert {result.outcome for result in results.values()} == {"read", "refused"}
    # A file that cannot be opened is tried again by each run; a damaged one must not be.
    assert Code.NOT_OPENED not in {result.detail for result in results.values()}
    for number, result in results.items():
        if corpus[number].kind == "unchanged":
            assert result.outcome == "read", corpus[number].origin


# The watch: what is planted in the reader must be found


def harm(word: str) -> None:
    """What the file asks for: an error, a dead process, too much time or memory."""
    errors = {
        "KeyError": KeyError("Rows"),
        "code": DicomError("planted: broken", code="bad-luck"),
    }
    if word in errors:
        raise errors[word]
    if word == "crash":
        ctypes.string_at(0)
    elif word == "exit":
        os._exit(3)
    elif word == "hang":
        time.sleep(60)
    elif word == "spin":
        while True:
            pass
    elif word == "hog":
        np.ones(80 << 20, np.uint8)  # more would take more than `seconds` where pages are slow to come
    elif word in ("too much", "hidden"):
        np.zeros(2 << 30, np.uint8)


def planted(path: Path) -> Iterator[tuple[int, int, np.ndarray] | DicomError]:
    """A reader that does what the file says."""
    word = path.read_text()
    try:
        harm(word)
    except MemoryError as error:
        if word == "hidden":
            raise DicomError(f"{path}: broken", code="unreadable") from error
        raise
    if word in ("refused", "two lines"):
        raise DicomError(f"{path}: broken" + "\n!" * (word == "two lines"), code="unreadable")
    if word == "none":
        return
    if word == "late":
        yield 2, 2, np.zeros((2, 2), np.int16)
        raise KeyError("frame 2")
    hu = np.zeros((2, 3), np.int32 if word == "dtype" else np.int16)
    hu[0, 0] = {"high": 3096, "low": -1025}.get(word, 5)
    yield (3, 2, hu) if word == "shape" else (2, 3, hu)


def refuses_to_say(path: Path) -> Iterator[DicomError]:
    """A reader of which nothing comes."""
    yield from ()


PLANTED = "tests.dicom.files.test_fuzz:planted"
LIMITS = Limits(seconds=0.5, patience=3, memory=50 << 20, addressed=1 << 30)


def watched(*words: str) -> list[tuple[str, str]]:
    """Outcome and detail of each planted word."""
    mutants = [Mutant(number, "planted", word, word.encode()) for number, word in enumerate(words)]
    results = run(mutants, range(len(words)), reader=PLANTED, limits=LIMITS)
    return [(result.outcome, result.detail) for result in results.values()]


def test_watch_lets_good_files_pass():
    assert watched("fine", "refused") == [("read", ""), ("refused", "unreadable")]


PLANTS = [
    ("crash", "dead", "SIGSEGV"),
    ("exit", "dead", "exit 3"),
    ("hang", "slow", " 3 s by the clock"),
    ("spin", "slow", "of processor time"),
    ("hog", "memory", "peak "),
    ("too much", "memory", "MemoryError"),
    ("hidden", "memory", "more was asked for than may be addressed"),
    ("KeyError", "exception", "KeyError: 'Rows' at test_fuzz.py:"),
    ("late", "exception", "frame 2"),
    ("code", "refusal", "'bad-luck' is none of the ledger's"),
    ("two lines", "refusal", "not one line that names the file"),
    ("none", "values", "no slice and no refusal"),
    ("dtype", "values", "int32"),
    ("shape", "values", "header 3 x 2"),
    ("high", "values", "HU from 0 to 3096"),
]


@pytest.fixture(scope="module")
def plants() -> dict[str, tuple[str, str]]:
    """What the watch made of each plant, a good file after each."""
    words = [word for plant, _, _ in PLANTS for word in (plant, "fine")]
    found = watched(*words)
    assert found[1::2] == [("read", "")] * len(PLANTS)
    return dict(zip(words[::2], found[::2], strict=True))


@pytest.mark.parametrize(("word", "outcome", "detail"), PLANTS)
def test_watch_notices(plants, word, outcome, detail):
    assert plants[word][0] == outcome
    assert detail in plants[word][1]


def test_report_counts_and_names_failures():
    kinds = ("fine", "high", "refused")
    mutants = [Mutant(number, kind, "seed", kind.encode()) for number, kind in enumerate(kinds)]
    text = report(mutants, run(mutants, range(3), reader=PLANTED, limits=LIMITS))
    assert "all                        1       1       1" in text
    assert "unreadable                 1" in text
    assert "FAILED 1 high of seed: values: HU from 0 to 3096" in text


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
