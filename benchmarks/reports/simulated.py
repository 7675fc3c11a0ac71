"""Simulate radiology reports of the CT-ICH patients of part a from their slice labels.

In: `hemorrhage_diagnosis.csv`. Out: `Simulated` reports with their expected labels. Sentences come from two
sources: templates written for this file, in the forms of real reports (negation, hedging, earlier
examinations, other locations, sections), and the labelled real sentences of `headct_gold.csv`, read at run
time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

KINDS = {
    "edh": "Epidural",
    "iph": "Intraparenchymal",
    "ivh": "Intraventricular",
    "sah": "Subarachnoid",
    "sdh": "Subdural",
}
BLEEDS = {
    "edh": (
        "Lens-shaped {size} mm epidural hematoma over the {side} temporal convexity.",
        "{side} epidural hemorrhage, {size} mm thick, deep to the fracture.",
        "Again seen is the {side} EDH, now {size} mm, not significantly changed.",
        "There is an extra-axial collection of acute blood on the {side}, epidural in shape, {size} mm.",
    ),
    "iph": (
        "{size} x {other} mm intraparenchymal hematoma in the {side} thalamus with surrounding edema.",
        "Hemorrhagic contusions in the {side} frontal lobe, the largest {size} mm.",
        "The {side} basal ganglia hemorrhage is no larger, {size} mm (previously {other} mm).",
        "Evolving parenchymal bleed of the {side} temporal lobe without midline shift.",
        "There is hemorrhagic transformation of the {side} MCA infarct.",
    ),
    "ivh": (
        "Blood layers in the occipital horns of both lateral ventricles.",
        "Small intraventricular hemorrhage on the {side}, unchanged.",
        "Hemorrhage within the {side} lateral ventricle has increased.",
        "IVH persists, without hydrocephalus.",
    ),
    "sah": (
        "Diffuse subarachnoid hemorrhage in the basal cisterns.",
        "Trace SAH in the {side} sylvian fissure.",
        "There is subarachnoid blood along the {side} parietal sulci, more than yesterday.",
        "Scattered sulcal subarachnoid hemorrhage, not present on the prior study.",
    ),
    "sdh": (
        "Acute on chronic {side} subdural hematoma, {size} mm, with {other} mm midline shift.",
        "Thin {side} SDH along the tentorium, {size} mm.",
        "No significant change of the {side} subdural hematoma, {size} mm (previously {other} mm).",
        "Residual {side} subdural blood measures {size} mm status post burr hole drainage.",
        "Hyperdense subdural collection on the {side}, up to {size} mm thick.",
    ),
}
DENIALS = (
    "No acute intracranial hemorrhage.",
    "There is no evidence of intracranial hemorrhage, mass effect or midline shift.",
    "No acute infarct, hemorrhage, extra-axial collection or hydrocephalus.",
    "Negative for intracranial bleed.",
    "No subdural, epidural or subarachnoid hemorrhage is identified.",
    "Without evidence of acute hemorrhage; gray-white differentiation is preserved.",
    "Hemorrhage: none.",
    "The previously seen subdural hematoma has resolved; no intracranial hemorrhage remains visible.",
)
HEDGES = (
    "Possible trace {kind} hemorrhage on the {side}.",
    "A {size} mm density may represent {kind} hemorrhage or artifact.",
    "Small {kind} hemorrhage cannot be excluded.",
    "Findings are suspicious for {kind} hemorrhage on the {side}.",
    "Subtle hyperdensity, {kind} hemorrhage versus calcification.",
)
BESIDE = (
    "The ventricles are normal in size.",
    "No midline shift.",
    "{side} parietal scalp hematoma, {size} mm thick.",
    "Soft tissue swelling and periorbital hematoma on the {side}.",
    "No new hemorrhage since the prior study.",
    "Mild chronic small vessel disease.",
    "No hyperdense vessel.",
    "Mucosal thickening of the {side} maxillary sinus.",
    "There is no skull fracture.",
    "Calcification of the carotid siphons.",
)
HISTORIES = (
    "CLINICAL HISTORY: Fall, rule out subdural hematoma.",
    "INDICATION: Follow-up of subarachnoid hemorrhage.",
    "HISTORY: Headache, evaluate for bleed.",
    "REASON FOR EXAM: Altered mental status.",
)
HEDGED = 0.1
"""Share of reports with hedged statements only, which must be left out."""
NAMES = {
    "edh": "epidural",
    "iph": "parenchymal",
    "ivh": "intraventricular",
    "sah": "subarachnoid",
    "sdh": "subdural",
}


@dataclass(frozen=True)
class Simulated:
    """Simulated report with its expected `outcome` (positive, negative or uncertain) and kinds of bleed."""

    scan: str
    text: str
    outcome: str
    kinds: tuple[str, ...] = ()


def patients_of(table: Path) -> dict[int, tuple[str, ...]]:
    """Kinds of bleed of each patient of part a, as defined by `shared/tools/ctich_to_dicom.py`."""
    slices = pd.read_csv(table, encoding="utf-8-sig")
    kinds = slices.groupby("PatientNumber")[list(KINDS.values())].max()
    bleed = slices.groupby("PatientNumber").No_Hemorrhage.min().eq(0)
    chosen = []
    for ids in (bleed.index[bleed], bleed.index[~bleed]):
        chosen += list(ids[: round(len(ids) * 2 / 3)])
    return {
        int(patient): tuple(short for short, name in KINDS.items() if kinds.loc[patient, name])
        for patient in sorted(chosen)
    }


def from_templates(patients: Mapping[int, Sequence[str]], *, draws: int, seed: int) -> list[Simulated]:
    """Simulate `draws` reports of each patient from templates."""
    rng = np.random.default_rng(seed)

    def fill(template: str, kind: str = "sdh") -> str:
        size, other = rng.integers(3, 40, 2)
        return template.format(size=size, other=other, side=rng.choice(["left", "right"]), kind=NAMES[kind])

    reports = []
    for patient, kinds in patients.items():
        for _ in range(draws):
            body = [fill(one) for one in rng.choice(BESIDE, rng.integers(2, 5), replace=False)]
            outcome: str = "positive" if kinds else "negative"
            if rng.random() < HEDGED:
                outcome = "uncertain"
                body.append(fill(str(rng.choice(HEDGES)), str(rng.choice(kinds or list(KINDS)))))
            elif kinds:
                body += [fill(str(rng.choice(BLEEDS[kind])), kind) for kind in kinds]
            else:
                body.append(fill(str(rng.choice(DENIALS))))
            rng.shuffle(body)
            text = "\n".join([str(rng.choice(HISTORIES)), "FINDINGS:", " ".join(body)])
            told = tuple(kinds) if outcome == "positive" else ()
            reports.append(Simulated(str(patient), text, outcome, told))
    return reports


def from_gold(
    patients: Mapping[int, Sequence[str]], gold: pd.DataFrame, *, draws: int, seed: int
) -> list[Simulated]:
    """Simulate reports from real sentences.

    A report has a sentence for each kind of bleed of the patient, or a denial, and two other sentences.
    """
    rng = np.random.default_rng(seed)
    beside = gold[gold.label.isin(["none", "other"])].sentence.to_numpy()
    denials = gold[gold.label == "absent"].sentence.to_numpy()
    reports = []
    for patient, kinds in patients.items():
        for _ in range(draws):
            body = list(rng.choice(beside, 2, replace=False))
            for kind in kinds:
                named = gold[(gold.label == "present") & (gold.subtype == kind)].sentence.to_numpy()
                if len(named):
                    body.append(rng.choice(named))
            if not kinds:
                body.append(rng.choice(denials))
            elif len(body) == 2:
                continue  # no real sentence names a kind of this patient
            rng.shuffle(body)
            text = "\n".join([str(rng.choice(HISTORIES)), "FINDINGS:", *(str(one) for one in body)])
            reports.append(Simulated(str(patient), text, "positive" if kinds else "negative", tuple(kinds)))
    return reports
