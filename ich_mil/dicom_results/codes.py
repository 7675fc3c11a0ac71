"""Coded concepts of the DICOM results.

Standard codes of DICOM (DCM), SNOMED CT (SCT), LOINC (LN) and UCUM where their meaning fits, else private
codes of the scheme `99ICHMIL`.
"""

from highdicom.coding_schemes import CodingSchemeIdentificationItem
from highdicom.sr import CodedConcept
from pydicom.sr.codedict import codes

from ich_mil.ledger import LOOK, NEGATIVE, POSITIVE

SCHEME = "99ICHMIL"


def coding_scheme() -> CodingSchemeIdentificationItem:
    """Identification of the private coding scheme, required in each object that uses it."""
    return CodingSchemeIdentificationItem(SCHEME, name="ich_mil results", responsible_organization="ich_mil")


def _private(value: str, meaning: str) -> CodedConcept:
    return CodedConcept(value, SCHEME, meaning)


HEMORRHAGE = CodedConcept("1386000", "SCT", "Intracranial hemorrhage")
HEAD = CodedConcept.from_code(codes.SCT.Head)
CT_HEAD = CodedConcept("24725-4", "LN", "CT Head")
COMMENT = CodedConcept.from_code(codes.DCM.Comment)
OF_INTEREST = CodedConcept.from_code(codes.DCM.OfInterest)

PROBABILITY = CodedConcept("122157", "DCM", "Probability")
"""Probability of hemorrhage in the scan or in the slice."""
OF_HEMORRHAGE = _private("OF-HEMORRHAGE", "Posterior probability of intracranial hemorrhage")
"""Measurement method of a probability: names the event without asserting a finding."""
MEAN = CodedConcept.from_code(codes.SCT.Mean)
"""Mean over posterior samples; `STD` likewise."""
STD = CodedConcept.from_code(codes.SCT.StandardDeviation)
LOW = _private("LOW-95", "Lower end of central 95 % of posterior samples")
HIGH = _private("HIGH-95", "Upper end of central 95 % of posterior samples")
SCAN_WITHOUT = _private("SCAN-WITHOUT", "Probability of the scan without this slice")
NO_UNITS = CodedConcept.from_code(codes.UCUM.NoUnits)

DECISION = _private("DECISION", "Decision on intracranial hemorrhage")
DECISIONS = {
    POSITIVE: CodedConcept("10828004", "SCT", "Positive"),
    NEGATIVE: CodedConcept("260385009", "SCT", "Negative"),
    LOOK: _private("LOOK", "Undecided, please look"),
}

LOCATION = _private("LOCATION", "Probability of intracranial hemorrhage at this place")
LOCATION_STD = _private("LOCATION-STD", "Standard deviation of the probability of hemorrhage here")
