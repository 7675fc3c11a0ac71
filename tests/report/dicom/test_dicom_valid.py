"""What other people's tools say of the objects: David Clunie's dciodvfy, dcmtk's dsrdump."""

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from pydicom import dcmread

from ich_mil.data.preparation.prepare import prepare
from ich_mil.report.dicom.context import read_context
from ich_mil.report.dicom.identity import Identity
from ich_mil.report.dicom.key_objects import key_objects
from tests import phantoms
from tests.report.dicom.made import MODEL, Made, few_slices, result_of, write

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


def test_no_object_is_against_the_standard(made):
    check(made)


def test_the_checker_finds_what_is_wrong(rsna, tmp_path):
    ds = dcmread(rsna.named("map")[0])
    del ds.FrameOfReferenceUID
    ds.save_as(tmp_path / "map-1.dcm")
    assert any("FrameOfReferenceUID" in line for line in complaints(tmp_path / "map-1.dcm"))


def hostile(**changes: object) -> Callable[[Path], None]:
    return lambda path: phantoms.rewrite(path, **changes)


HOSTILE = {
    "script": hostile(
        PatientName="<script>alert(1)</script>^\"'&;`$(x)",
        PatientID="<b>'\";--",
        StudyDate="2014.03.01",
        StudyTime="10:15:30",
        PatientAge="7",
        LossyImageCompression="01",
        LossyImageCompressionRatio="8",
    ),
    "long": hostile(
        PatientName="N" * 300,
        PatientID="I" * 200,
        AccessionNumber="A" * 40,
        StudyID="S" * 40,
        StudyDescription="D" * 500,
        ReferringPhysicianName="a^b^c^d^e^f^g=h=i=j",
        StudyDate="yesterday",
        StudyTime="noon",
        PatientBirthDate="1.1.1950",
        PatientSex="?",
    ),
    "empty": hostile(
        StudyDate="",
        StudyTime="",
        PatientName="",
        PatientID="",
        AccessionNumber="",
        FrameOfReferenceUID="ID_frame",
        PatientIdentityRemoved="YES",
        DeidentificationMethod="",
    ),
    "unicode": hostile(
        SpecificCharacterSet="ISO_IR 192",
        PatientName="山田^太郎=やまだ=たろう",
        PatientID="Ñ-é",
        StudyDescription="eins\\zwei",
    ),
    "two names": hostile(PatientName=["A^B", "C^D"]),
}


@pytest.mark.parametrize(
    "change",
    [pytest.param(HOSTILE[name], id=name, marks=[pytest.mark.slow] * (name != "long")) for name in HOSTILE],
)
def test_no_object_is_against_the_standard_whatever_the_sources_say(tmp_path, change):
    check(write(few_slices(tmp_path, n=4, change=change), tmp_path, most=1))


@pytest.mark.parametrize(
    ("character_set", "raw", "name"),
    [
        ("", "Mülle".encode(), "Mülle"),
        ("", "Müller".encode("latin-1"), "Müller"),
        ("ISO_IR 100", "Müller".encode("latin-1"), "Müller"),
        ("ISO_IR 144", "Иванов".encode("iso8859-5"), "Иванов"),
        ("NO SUCHSET", b"M\xfcller", "Müller"),
        ("ISO_IR 100", b"a\x07b\x00\x1bc", "a�b��c"),
    ],
)
def test_a_name_of_any_bytes_is_kept_and_valid(tmp_path, character_set, raw, name):
    def change(path: Path) -> None:
        phantoms.rewrite(path, SpecificCharacterSet="ISO_IR 100", PatientName="PLACEX", PatientID="4711")
        written = path.read_bytes().replace(b"PLACEX", raw)
        path.write_bytes(written.replace(b"ISO_IR 100", character_set.encode().ljust(10)))

    assert len(raw) == 6
    root = few_slices(tmp_path, n=3, change=change)
    prepared = prepare("unlabelled", root, tmp_path / "set", jobs=1)
    scan = result_of(prepared, str(prepared.table.scan[0]))
    context = read_context(scan, prepared)
    key = key_objects(scan, context, Identity(MODEL, "", datetime(2026, 11, 21)))
    path = tmp_path / "key-1.dcm"
    key.save_as(path)
    ds = dcmread(path)
    assert (ds.PatientName, ds.PatientID) == (name, "4711")
    assert complaints(path) == []


def test_long_texts_of_the_model_do_no_harm(rsna, tmp_path):
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
def test_no_object_of_a_real_study_is_against_the_standard(shared_data, tmp_path, folder_name):
    check(write(shared_data / folder_name, tmp_path))
