"""Tiny data sets for tests: phantom studies of few, small slices."""

from pathlib import Path

from pydicom import dcmread
from pydicom.config import disable_value_validation

from ich_mil.phantoms.data_sets import write_cq500, write_rsna

SIZE = 64


def rsna(root: Path, *, studies: int, seed: int = 0) -> Path:
    """A tiny RSNA-layout set."""
    write_rsna(root, n_studies=studies, seed=seed, size=SIZE)
    return root


def cq500(root: Path, *, studies: int, seed: int = 0) -> Path:
    """A tiny CQ500-layout set."""
    write_cq500(root, n_studies=studies, seed=seed, size=SIZE)
    return root


def rewrite(path: Path, target: Path | None = None, **changes: object) -> None:
    """Change some elements of a file, in place or in a copy."""
    with disable_value_validation():
        image = dcmread(path)
        for keyword, value in changes.items():
            setattr(image, keyword, value)
        image.save_as(target or path)


def second_name(root: Path, out: Path) -> Path:
    """The files below `root` again, of other studies and patients, as after another pseudonymisation."""
    out.mkdir(parents=True)
    for number, path in enumerate(sorted(root.rglob("*.dcm"))):
        with disable_value_validation():
            image = dcmread(path, stop_before_pixels=True)
            names = ("PatientID", "StudyInstanceUID", "SeriesInstanceUID")
            others = {name: f"{image[name].value}9" for name in names}
        rewrite(path, out / f"{number}.dcm", **others, SOPInstanceUID=f"9.{number}")
    return out
