"""A judge that reads with the real reader, and answers each study it can read with one Secondary Capture."""

from pathlib import Path

from pydicom import dcmread

from ich_mil.data.preparation.identifying_texts import source_files
from ich_mil.data.preparation.prepare import prepare
from ich_mil.serve.judging import Judge
from tests.serve.judges import capture


def load_reader() -> Judge:
    """The judge."""
    return read_and_answer


def read_and_answer(study: Path, out: Path) -> list[Path]:
    """The result's UID depends on the slices that were used."""
    prepared = prepare("unlabelled", study, out / "prepared", jobs=1)
    first = dcmread(source_files(prepared, prepared.table.scan[0])[0], stop_before_pixels=True)
    return [capture(first, list(prepared.table.sop), out / "capture.dcm")]
