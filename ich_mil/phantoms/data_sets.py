"""Synthetic DICOM data sets in the layouts of RSNA 2019 and CQ500.

    python -m ich_mil.phantoms.data_sets OUT [--studies-a 84 --studies-b 30 --size 256 --seed 0]

In: a seed. Out: `OUT/site_a` (RSNA 2019: one flat folder, slice labels in `stage_2_train.csv`, headers with
the faults of that set) and `OUT/site_b` (CQ500: one folder per series, three readers per scan in `reads.csv`,
several series in some studies). The content of a study depends only on (seed, site, study index). Studies can
therefore be made in any order or in parallel, and the same seed gives the same bytes.
"""

import argparse
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from pydicom.config import disable_value_validation
from pydicom.uid import CTImageStorage, generate_uid

from ich_mil.errors import DataError
from ich_mil.files import write_csv
from ich_mil.phantoms.encoding import ENCODINGS, Encoding, make_image, save_image
from ich_mil.phantoms.head import SITE_A, SITE_B, Site
from ich_mil.phantoms.study import SUBTYPES, Phantom, SeriesPlan, make_phantom, make_series

__all__ = ["SITE_A", "SITE_B", "SUBTYPES", "Phantom", "Site", "make_phantom", "write_cq500", "write_rsna"]

READER_COLUMNS = {
    "IPH": "intraparenchymal",
    "IVH": "intraventricular",
    "SDH": "subdural",
    "EDH": "epidural",
    "SAH": "subarachnoid",
}
OTHER_FINDINGS = (
    *("ChronicBleed", "Fracture", "CalvarialFracture"),
    *("OtherFracture", "MassEffect", "MidlineShift"),
)
"""CQ500 columns for findings that no phantom has: always 0."""
SUBTYPE_CHANCE = (0.15, 0.26, 0.16, 0.20, 0.23)
"""Probability of each of `SUBTYPES`; epidural is overrepresented so that it occurs even in a small set."""
POSITIVE = 0.43
"""Fraction of studies with a bleed, as in RSNA 2019."""
DISAGREE = 0.16
"""Fraction of studies in which one reader disagrees (CQ500: 78 of 491)."""
REPEATED_IMAGES = 4
"""Number of images with duplicate label rows, as in RSNA 2019."""
THIN_MM, PLAIN_MM = 2.0, 5.0


@dataclass(frozen=True)
class Study:
    """Plan of a study: index, patient number, bleed subtypes and pixel encoding."""

    index: int
    patient: int
    bleeds: tuple[str, ...]
    encoding: Encoding


def _plan_studies(n_studies: int, seed: int, site: Site) -> list[Study]:
    """Draw bleeds, patients and encodings; every encoding occurs if there are enough studies."""
    if n_studies < 1:
        raise ValueError(f"n_studies must be at least 1, got {n_studies}")
    rng = np.random.default_rng([seed, *site.name.encode(), 1])
    positive = rng.permutation(n_studies) < round(n_studies * POSITIVE)
    weights = np.array([encoding.weight for encoding in ENCODINGS])
    kinds = rng.choice(len(ENCODINGS), n_studies, p=weights / weights.sum())
    kinds[: len(ENCODINGS)] = np.arange(len(ENCODINGS))[:n_studies]
    kinds = rng.permutation(kinds)
    studies, patient = [], 0
    for index in range(n_studies):
        count = int(rng.choice([1, 2, 3], p=[0.72, 0.23, 0.05]))
        names = rng.choice(SUBTYPES, count, replace=False, p=SUBTYPE_CHANCE)
        patient += int(rng.random() > 0.12 and index != 1)  # studies 0 and 1 have the same patient
        bleeds = tuple(sorted(str(name) for name in names)) if positive[index] else ()
        studies.append(Study(index, patient, bleeds, ENCODINGS[kinds[index]]))
    return studies


def _study_rng(seed: int, site: Site, index: int) -> np.random.Generator:
    return np.random.default_rng([seed, *site.name.encode(), 2, index])


def _empty_folder(root: Path) -> None:
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise DataError(f"{root}: must be an empty folder or not exist yet; choose another or remove it")
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{root}: cannot be made ({error.strerror}); choose another folder") from error


def _write_rsna_study(folder: Path, study: Study, seed: int, size: int) -> list[list[tuple[str, int]]]:
    phantom = make_phantom(_study_rng(seed, SITE_A, study.index), bleeds=study.bleeds, site=SITE_A, size=size)

    def name(length: int, level: str, *numbers: int) -> str:
        text = "/".join(map(str, (seed, SITE_A.name, level, *numbers)))
        return "ID_" + hashlib.sha256(text.encode()).hexdigest()[:length]

    uids = {level: name(10, level, study.index) for level in ("study", "series")}
    rows = []
    with disable_value_validation():  # RSNA 2019 uses 'ID_...', which is not a valid UID
        for index, labels in enumerate(phantom.subtype_labels.tolist()):
            sop = name(9, "sop", study.index, index)
            image = make_image(phantom, index, study.encoding, sop=sop, **uids)
            image.PatientID = name(8, "patient", study.patient)
            image.StudyID = ""
            if study.encoding.explicit:
                image.WindowCenter, image.WindowWidth = "30", "80"
            else:
                image.WindowCenter, image.WindowWidth = ["00040", "00040"], ["00080", "00080"]
            save_image(image, folder / f"{sop}.dcm")
            kinds = zip((*SUBTYPES, "any"), (*labels, max(labels)), strict=True)
            rows.append([(f"{sop}_{kind}", label) for kind, label in kinds])
    return rows


def write_rsna(root: Path, *, n_studies: int, seed: int, size: int = 256, n_jobs: int = -1) -> None:
    """Write a synthetic data set in the layout of RSNA 2019, with labels in `root/stage_2_train.csv`.

    Raises:
        DataError: `root` exists and is not an empty folder, or cannot be created.
    """
    _empty_folder(root)
    folder = root / "stage_2_train"
    folder.mkdir()
    studies = _plan_studies(n_studies, seed, SITE_A)
    made = Parallel(n_jobs)(delayed(_write_rsna_study)(folder, study, seed, size) for study in studies)
    images = sorted((rows for study in made for rows in study), key=lambda rows: rows[0][0])
    rng = np.random.default_rng([seed, *SITE_A.name.encode(), 3])
    images = [images[k] for k in rng.permutation(len(images))]
    for k in range(min(REPEATED_IMAGES, len(images) // 2)):
        images.insert(len(images) // 2 + k, images[k])
    table = pd.DataFrame([row for rows in images for row in rows], columns=["ID", "Label"])
    write_csv(root / "stage_2_train.csv", table)


def _series_of(study: Study, n_studies: int, order: int) -> list[tuple[str, SeriesPlan]]:
    """Names and plans of a study's series, plain first; `order` is the rank of the study in a shuffle."""
    plain = ("CT 5mm" if study.index % 3 == 0 else "CT PLAIN", SeriesPlan(spacing=PLAIN_MM))
    thin = ("CT PLAIN THIN", SeriesPlan(spacing=THIN_MM))
    contrast = ("CT POST CONTRAST", SeriesPlan(spacing=PLAIN_MM, contrast=True))
    bone = ("CT BONE", SeriesPlan(spacing=PLAIN_MM, bone=True))
    if order == 5 and n_studies >= 10:
        return [thin]
    extra = {0: [thin], 1: [contrast], 2: [bone], 3: [contrast, bone]}
    return [plain, *extra.get(order % 8, [])]


def _write_cq500_study(
    root: Path, study: Study, plans: list[tuple[str, SeriesPlan]], seed: int, size: int
) -> dict[str, int]:
    rng = _study_rng(seed, SITE_B, study.index)
    cuts = make_series(rng, [plan for _, plan in plans], bleeds=study.bleeds, site=SITE_B, size=size)
    folder = root / f"CQ500CT{study.index} CQ500CT{study.index}" / "Unknown Study"
    encoding = ENCODINGS[1 + study.index % 2]
    key = ("cq500", str(seed), SITE_B.name, str(study.index))
    for (name, plan), phantom in zip(plans, cuts, strict=True):
        (folder / name).mkdir(parents=True)
        n = len(phantom.hu)
        for number in range(n):
            index = number if study.index % 2 else n - 1 - number  # some scanners start at the top
            sources = {"sop": [name, str(index)], "study": ["study"], "series": [name]}
            uids = {level: generate_uid(entropy_srcs=[*key, *source]) for level, source in sources.items()}
            image = make_image(phantom, index, encoding, **uids)
            image.SOPClassUID = CTImageStorage
            image.file_meta.MediaStorageSOPInstanceUID = image.SOPInstanceUID
            image.ImageType = ["ORIGINAL", "PRIMARY", "AXIAL"]
            image.PatientID = image.PatientName = f"CQ500-CT-{study.index}"
            image.StudyID, image.SeriesDescription = "", name
            image.SeriesNumber, image.InstanceNumber = plans.index((name, plan)) + 2, number + 1
            image.FrameOfReferenceUID = generate_uid(entropy_srcs=[*key, "frame"])
            image.SliceThickness = f"{phantom.spacing:.3f}"
            image.GantryDetectorTilt = f"{phantom.tilt:.3f}"
            image.ConvolutionKernel = "BONE" if plan.bone else "STANDARD"
            if plan.contrast:
                image.ContrastBolusAgent = "CONTRAST"
            image.WindowCenter, image.WindowWidth = ("500", "2000") if plan.bone else ("40", "80")
            save_image(image, folder / name / f"CT{number:06d}.dcm")
    masks = cuts[0].masks
    reads = {short: int((masks == SUBTYPES.index(name) + 1).any()) for short, name in READER_COLUMNS.items()}
    half = masks.shape[2] // 2  # the patient's left is at the right of the picture
    left, right = int(masks[:, :, half:].any()), int(masks[:, :, :half].any())
    return {"ICH": cuts[0].label} | reads | {"BleedLocation-Left": left, "BleedLocation-Right": right}


def _reads(
    rng: np.random.Generator, study: Study, truth: dict[str, int], dissent: bool
) -> dict[str, str | int]:
    """One row of `reads.csv` for three readers; with `dissent` one of them reports the wrong ICH finding."""
    wrong = dict.fromkeys(truth, 0)
    if not truth["ICH"]:
        called = str(rng.choice(list(READER_COLUMNS)))
        wrong |= {"ICH": 1, called: 1, "BleedLocation-Left": 1}
    dissenter, category = int(rng.integers(1, 4)), f"B{rng.integers(1, 3)}"
    row: dict[str, str | int] = {"name": f"CQ500-CT-{study.index}", "Category": category}
    for reader in (1, 2, 3):
        seen = wrong if dissent and reader == dissenter else truth
        row |= {f"R{reader}:{name}": value for name, value in seen.items()}
        row |= {f"R{reader}:{name}": 0 for name in OTHER_FINDINGS}
    return row


def write_cq500(root: Path, *, n_studies: int, seed: int, size: int = 256, n_jobs: int = -1) -> None:
    """Write a synthetic data set in the layout of CQ500, with the readers' findings in `root/reads.csv`.

    Raises:
        DataError: `root` exists and is not an empty folder, or cannot be created.
    """
    _empty_folder(root)
    studies = _plan_studies(n_studies, seed, SITE_B)
    rng = np.random.default_rng([seed, *SITE_B.name.encode(), 4])
    orders = rng.permutation(n_studies).tolist()
    dissent = rng.permutation(n_studies) < max(round(DISAGREE * n_studies), 1)
    plans = [_series_of(study, n_studies, order) for study, order in zip(studies, orders, strict=True)]
    truths = Parallel(n_jobs)(
        delayed(_write_cq500_study)(root, study, plan, seed, size)
        for study, plan in zip(studies, plans, strict=True)
    )
    rows = [_reads(rng, *arguments) for arguments in zip(studies, truths, dissent.tolist(), strict=True)]
    table = pd.DataFrame([rows[k] for k in rng.permutation(n_studies)])
    write_csv(root / "reads.csv", table)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: write both synthetic data sets and print one line with their sizes."""
    parser = argparse.ArgumentParser(
        description="Write synthetic head CT: OUT/site_a (RSNA), OUT/site_b (CQ500)."
    )
    parser.add_argument("out", type=Path)
    for option, default in (("--studies-a", 84), ("--studies-b", 30), ("--size", 256), ("--seed", 0)):
        parser.add_argument(option, type=int, default=default)
    args = parser.parse_args(argv)
    counts = []
    for name, write, n_studies in (
        ("site_a", write_rsna, args.studies_a),
        ("site_b", write_cq500, args.studies_b),
    ):
        try:
            write(args.out / name, n_studies=n_studies, seed=args.seed, size=args.size)
        except (DataError, ValueError) as error:
            parser.exit(2, f"{error}\n")
        files = sum(1 for _ in (args.out / name).rglob("*.dcm"))
        counts.append(f"{name} {n_studies} studies, {files} slices")
    print(f"{args.out}: {'; '.join(counts)} of {args.size}x{args.size} pixels, seed {args.seed}")


if __name__ == "__main__":
    main()
