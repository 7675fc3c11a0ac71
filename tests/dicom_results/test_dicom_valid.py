"""What other people's tools say of the objects: David Clunie's dciodvfy, dcmtk's dsrdump."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from pydicom import dcmread

from tests import phantoms
from tests.dicom_results.made import Made, few_slices, write

JUDGED = {
    "what the sources do not say is not in the results either": re.compile(
        r"Missing attribute or value that would be needed to build DICOMDIR - "
        r"(Study (Date|Time|ID)|Patient ID)"
    ),
    "our own coding scheme, which each object describes": re.compile(
        r"Unrecognized defined term <99ICHMIL> for value 1 of attribute <Coding Scheme Designator>"
    ),
    "PS3.3 C.8.32.2 asks for QUANTITY, dciodvfy does not know it": re.compile(
        r"Unrecognized defined term <QUANTITY> for value 4 of attribute <(Image|Frame) Type>"
    ),
    "names are as the sources have them": re.compile(
        r"Value dubious for this VR - .* PN .* - Retired Person Name form"
    ),
    "an accession number that is too long: a Standard Extended SOP Class may have this element (PS3.2 7.3)": (
        re.compile(r"not present in standard DICOM IOD - (\(0x0040,0x2017\)|this is a Standard Extended SOP)")
    ),
}
"""Warnings of dciodvfy that are right as they are, by the reason."""


KNOWN = {"SCImage", "ParametricMap", "ComprehensiveSR", "KeyObjectSelectionDocument"}
"""The kinds of objects, as dciodvfy names them: of others it checks nothing."""


def complaints(path: Path) -> list[str]:
    """All that dciodvfy says of a file, except what was judged."""
    done = subprocess.run(["dciodvfy", str(path)], capture_output=True, check=False)
    lines = done.stderr.decode("utf-8", "replace").splitlines()
    assert KNOWN & {*lines}
    found = [line for line in lines if line.startswith(("Error", "Warning"))]
    return [
        f"{path.name}: {line}"
        for line in found
        if line.startswith("Error") or not any(one.search(line) for one in JUDGED.values())
    ]


def check(made: Made) -> None:
    """No error, and no warning that was not judged, in any file."""
    assert [line for path in made.paths for line in complaints(path)] == []


@pytest.fixture(scope="session", autouse=True)
def _tools() -> None:
    for tool, package in (("dciodvfy", "dicom3tools"), ("dsrdump", "dcmtk")):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed; Debian has it in {package}")


def test_results_are_valid(made):
    check(made)


def test_the_checker_finds_what_is_wrong(rsna, tmp_path):
    ds = dcmread(rsna.named("map")[0])
    del ds.FrameOfReferenceUID
    ds.save_as(tmp_path / "map-1.dcm")
    assert any("FrameOfReferenceUID" in line for line in complaints(tmp_path / "map-1.dcm"))


@pytest.mark.parametrize(
    "changes",
    [
        {
            "PatientName": "<script>alert(1)</script>^\"'&;`$(x)",
            "PatientID": "I" * 200,
            "AccessionNumber": "A" * 40,
            "StudyDate": "yesterday",
            "StudyTime": "noon",
            "PatientSex": "?",
            "PatientIdentityRemoved": "YES",
            "FrameOfReferenceUID": "ID_frame",
            "LossyImageCompression": "01",
            "LossyImageCompressionRatio": "8",
        },
        {"SpecificCharacterSet": "ISO_IR 192", "PatientName": "山田^太郎=やまだ=たろう", "PatientID": "Ñ-é"},
    ],
)
def test_results_of_any_source_are_valid(tmp_path, changes):
    root = few_slices(tmp_path, n=4, change=lambda path: phantoms.rewrite(path, **changes))
    check(write(root, tmp_path, most=1))


def test_long_texts_of_the_model_are_valid(rsna, tmp_path):
    model = replace(
        rsna.results.model,
        name="$\\frac{1}{2}$ " + "m" * 300,
        version="v" * 99,
        weights="w" * 99,
        calibration="c\\d",
    )
    made = replace(rsna, results=replace(rsna.results, model=model, decided_by="because " * 500))
    made = replace(made, paths=made.again(tmp_path))
    check(made)
    report = dcmread(made.named("report")[0])
    assert "because " * 499 in "".join(item.get("TextValue", "") for item in report.ContentSequence)


def test_dcmtk_prints_the_report(made):
    for kind, title in (("report", "Imaging Measurement Report"), ("key", "Of Interest")):
        (path,) = made.named(kind)
        command = ["dsrdump", "--print-long-values", "--print-instance-uid", str(path)]
        done = subprocess.run(command, capture_output=True, check=False, encoding="utf-8")
        assert done.returncode == 0, done.stderr
        assert title in done.stdout
        assert not [line for line in done.stderr.splitlines() if line.startswith(("E:", "F:"))]
        if kind == "report":
            for one in (made.scan, *made.scan.slices):
                assert f'"{one.probability}"' in done.stdout


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.parametrize("folder_name", ["ge_head_ct", "rsna_slices"])
def test_results_of_a_real_study_are_valid(shared_data, tmp_path, folder_name):
    check(write(shared_data / folder_name, tmp_path))
