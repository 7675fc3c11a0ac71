"""Reader of requests, reports and covariates of scans, with a guard against texts that state the result.

In: a table `scan,text` or a folder of texts (`ich_mil.radiology_text.read`), and a table of covariates or the
DICOM headers of a prepared set. Out: `Extras`.

The request ("fall, on warfarin") is known before the scan and may predict its result. A report states the
result. The guard finds texts with a sentence that asserts or denies hemorrhage, or calls the examination
normal, unless the sentence asks a question ("rule out bleed").
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ich_mil.errors import ConfigError, DataError
from ich_mil.progress import say
from ich_mil.sets.extras import Extras
from ich_mil.sets.labels import name_some, read_label_csv
from ich_mil.sets.preparation.identifying_texts import study_texts
from ich_mil.sets.preparation.record import prepared_study
from ich_mil.sets.store import PreparedSet

if TYPE_CHECKING:  # the language of reports is an extra, which slices alone do not need
    from ich_mil.radiology_text.labels import Statement

HEADER = Path("header")
"""Source of covariates: age in years and sex (1 = female) of the DICOM headers."""
MOST_STATED = 0.2
"""Largest share of requests that state a result; above it the table is taken to hold reports. A judgement."""
_QUESTION = re.compile(
    r"\?|\b(?:(?:exclud|eval|assess|concern|suspect|question)\w*|query|rule out|r/o|(?:look|check) for)\b",
    re.I,
)
_AGE_UNITS = {"Y": 1.0, "M": 1 / 12, "W": 1 / 52.18, "D": 1 / 365.25}
_SEX = {"M": 0.0, "F": 1.0, "MALE": 0.0, "FEMALE": 1.0}


@dataclass(frozen=True)
class ExtraSources:
    """Files of the extras of one set of scans.

    Attributes:
        requests: texts known before the scan; those that state the result are left out.
        reports: texts that may state the result, which are used all the same.
        covariates: CSV with a column `scan` and a column of numbers for each covariate, or `HEADER`. A column
            `sex` may hold M and F, a column `age` DICOM ages such as 063Y.
    """

    requests: Path | None = None
    reports: Path | None = None
    covariates: Path | None = None

    def __post_init__(self) -> None:
        if self.requests and self.reports:
            raise ConfigError("requests and reports: name one table of texts, not both")

    def __bool__(self) -> bool:
        return any((self.requests, self.reports, self.covariates))

    def check_paths(self) -> None:
        """Raise `DataError` for a file that does not exist."""
        for path in (self.requests, self.reports, self.covariates):
            if path not in (None, HEADER) and not path.exists():
                raise DataError(f"{path}: no such file or folder; correct the path")

    def read(self, scans: Iterable[str], prepared: PreparedSet | None = None) -> Extras:
        """Read the extras of these scans; rows of other scans are ignored.

        Args:
            scans: scan ids.
            prepared: prepared set of the scans, for covariates of DICOM headers.

        Raises:
            DataError: a file that cannot be read, a covariate that is not a number or states the result, most
                requests state a result, or no scan is in any table.
            ConfigError: covariates of headers for a set without DICOM files; the extra `reports` is not
                installed.
        """
        wanted = list(scans)
        texts = self.requests or self.reports
        sentences = {} if texts is None else _sentences(texts, wanted, guarded=self.reports is None)
        if self.covariates is None:
            covariates = pd.DataFrame(index=[])
        elif self.covariates == HEADER:
            covariates = _header_covariates(wanted, prepared)
        else:
            covariates = read_covariates(self.covariates)
            covariates = covariates[covariates.index.isin(wanted)]
        rows = {str(scan): {str(n): float(v) for n, v in row.items()} for scan, row in covariates.iterrows()}
        for source, found in ((texts, sentences), (self.covariates, rows)):
            if source is None or len(found) == len(wanted):
                continue
            if not found and (len(wanted) > 1 or not (sentences or rows)):
                raise DataError(f"{source}: holds nothing of the scans ({name_some(wanted)}); check the ids")
            if len(wanted) > 1:
                say(f"{source}: of {len(wanted)} scans {len(found)} have an entry that is used")
        return Extras(sentences, rows)


NO_EXTRAS = ExtraSources()


def states_result(statement: "Statement") -> bool:
    """Whether a sentence asserts or denies hemorrhage, or calls the examination normal."""
    verdict = statement.verdict
    stated = verdict.label in ("present", "absent") or (verdict.normal and verdict.label == "none")
    return stated and not _QUESTION.search(statement.text)


def _sentences(source: Path, scans: list[str], *, guarded: bool) -> dict[str, tuple[str, ...]]:
    """Sentences of the texts of these scans; without texts that state the result if `guarded`."""
    from ich_mil.radiology_text.labels import read_sentences
    from ich_mil.radiology_text.read import read_reports

    wanted = set(scans)
    reports = [report for report in read_reports(source, {"report": "scan"})[0] if report.scan in wanted]
    texts = read_sentences(reports)
    stated = [text[0].scan for text in texts if any(map(states_result, text))] if guarded else []
    if len(stated) > max(2, MOST_STATED * len(texts)):
        raise DataError(
            f"{source}: {len(stated)} of {len(texts)} texts state whether there is a hemorrhage "
            f"({name_some(stated)}): these are reports; give the requests, or name the table as reports "
            "to predict from them all the same"
        )
    if stated:
        say(f"{source}: texts that state the result, which are not used: {len(stated)}, {name_some(stated)}")
    sentences: dict[str, tuple[str, ...]] = {}
    for text in texts:
        if (scan := text[0].scan) not in stated:
            sentences[scan] = sentences.get(scan, ()) + tuple(statement.text for statement in text)
    return sentences


def read_covariates(path: Path) -> pd.DataFrame:
    """Read a table of covariates: index scan, float columns, NaN for empty fields.

    Raises:
        DataError: no column but `scan`, a scan listed twice, a value that is not a finite number, or a column
            named after hemorrhage.
    """
    from ich_mil.radiology_text.context import classify

    table = read_label_csv(path, ["scan"], key="scan").set_index("scan")
    if table.shape[1] == 0:
        raise DataError(f"{path}: has no column besides scan; add one for each covariate")
    for name in table:
        if classify(str(name).replace("_", " ")).label == "present":
            raise DataError(
                f"{path}: column {name!r} names hemorrhage, the result to predict; take the column out"
            )
        table[name] = _numbers(table[name], path)
    return table


def _numbers(column: pd.Series, path: Path) -> pd.Series:
    texts = column.str.upper()
    if column.name == "sex":
        numbers = texts.map(_SEX)
    elif column.name == "age":
        numbers = texts.map(_years)
    else:
        numbers = pd.Series(np.nan, column.index)
    numbers = numbers.astype(float).fillna(pd.to_numeric(texts, errors="coerce").astype(float))
    wrong = (numbers.isna() & (texts != "")) | np.isinf(numbers)
    if wrong.any():
        raise DataError(
            f"{path}: scan {column.index[wrong][0]!r}: {column.name} must be a number; leave the field empty "
            "where it is not known"
        )
    return numbers


def _years(age: str) -> float:
    """Years of a DICOM age (PS3.5 6.2, AS) such as 063Y; NaN for another text."""
    match = re.fullmatch(r"(\d{1,3})([YMWD])", age)
    return int(match[1]) * _AGE_UNITS[match[2]] if match else np.nan


def _header_covariates(scans: list[str], prepared: PreparedSet | None) -> pd.DataFrame:
    if prepared is None:
        raise ConfigError("covariates: header needs scans with DICOM files; name a table for feature files")
    rows = []
    for scan in scans:
        texts = study_texts(prepared_study(prepared, scan))
        rows.append([_years(texts.get("PatientAge", "")), _SEX.get(texts.get("PatientSex", ""), np.nan)])
    return pd.DataFrame(rows, index=pd.Index(scans, name="scan"), columns=["age", "sex"])
