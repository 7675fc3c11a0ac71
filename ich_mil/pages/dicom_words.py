"""DICOM texts of a study in words, for pages with names: 'Patient: Doe, Jane', '12 March 2024, 63 y, F'.

In: texts by DICOM keyword (`ich_mil.sets.preparation.identifying_texts`), untrusted. Out: texts by label, and
the title of a study page. A value that is not in the form of its VR is shown as it is.

Source: DICOM PS3.5 6.2 (VR AS, DA, PN).
"""

import re
from collections.abc import Mapping
from datetime import date

from ich_mil.model.predictions import ScanPrediction

LABELS = {
    "PatientName": "Patient",
    "StudyDate": "Study",
    "PatientID": "Patient ID",
    "PatientBirthDate": "Born",
    "AccessionNumber": "Accession number",
    "StudyDescription": "Description",
    "SeriesDescription": "Series",
    "InstitutionName": "Institution",
}
"""Label of each DICOM keyword, in display order; age and sex follow the date of the study."""
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_DATE = re.compile(r"(\d{4})\.?(\d{2})\.?(\d{2})")
_AGE = re.compile(r"0*(\d+)([DWMY])")
_UNITS = {"D": "days", "W": "weeks", "M": "months", "Y": "y"}


def in_words(texts: Mapping[str, str]) -> dict[str, str]:
    """Texts by label, in display order; keywords without a label keep their names."""
    values = dict(texts)
    study = [date_in_words(values.pop("StudyDate", "")), age_in_words(texts), values.pop("PatientSex", "")]
    values.pop("PatientAge", None)
    values["StudyDate"] = ", ".join(filter(None, study))
    if "PatientName" in values:
        values["PatientName"] = name_in_words(values["PatientName"])
    if "PatientBirthDate" in values:
        values["PatientBirthDate"] = date_in_words(values["PatientBirthDate"])
    ordered = [*(name for name in LABELS if name in values), *(name for name in values if name not in LABELS)]
    return {LABELS.get(name, name): values[name] for name in ordered if values[name]}


def title_of(scan: ScanPrediction, texts: Mapping[str, str]) -> str:
    """Title of a study page: patient, date and series where texts are shown, else folder and a short key."""
    fields = [
        name_in_words(texts.get("PatientName", "")) or scan.title,
        date_in_words(texts.get("StudyDate", "")),
        texts.get("SeriesDescription", ""),
    ]
    return ", ".join(filter(None, fields))


def name_in_words(name: str) -> str:
    """'Doe, Jane' for 'DOE^JANE' in the case of the file; its forms in several scripts, joined by a slash."""
    forms = []
    for form in name.split("="):
        family, *given = [part.strip() for part in form.split("^")]
        forms.append(", ".join(filter(None, (family, " ".join(filter(None, given[:2]))))))
    return " / ".join(filter(None, forms))


def date_in_words(text: str) -> str:
    """'12 March 2024' for '20240312'; another text as it is."""
    day = _date(text)
    return text if day is None else f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def age_in_words(texts: Mapping[str, str]) -> str:
    """PatientAge as '63 y', else the age on the day of the study; '' where unknown."""
    if text := texts.get("PatientAge", ""):
        age = _AGE.fullmatch(text)
        return f"{age[1]} {_UNITS[age[2]]}" if age else text
    born, day = _date(texts.get("PatientBirthDate", "")), _date(texts.get("StudyDate", ""))
    if born is None or day is None or day < born:
        return ""
    months = 12 * (day.year - born.year) + day.month - born.month - (day.day < born.day)
    return f"{months // 12} y" if months >= 24 else f"{months} months"


def _date(text: str) -> date | None:
    match = _DATE.fullmatch(text)
    try:
        return date(*map(int, match.groups())) if match else None
    except ValueError:
        return None
