"""The codes of the ledger: which refuse, correct, choose or note."""

from ich_mil.ledger import CHOICES, CORRECTED, INCOMPLETE, PASSING, REFUSED, Code

NOTED = {
    "series-kind",
    "contrast-unsure",
    "part-of-head",
    "gap",
    "spacing-changes",
    "tilted",
    "flipped",
    "pixels-not-square",
    "centre-moves",
    "other-picture",
    "other-rescale",
    "lossy",
    "coarse-grey",
    "sop-repeated",
    "modality-missing",
    "several-patients",
    "patient-missing",
    "same-slices",
    "learned-from",
    "unlike-training",
    "label-repeated",
    "label-clash",
    "label-unused",
}
"""Used as it is."""


def test_each_code_refuses_or_corrects_or_chooses_or_notes():
    """A new one is to be written down where it belongs; a page says 'Refused' and 'Corrected'."""
    noted = {Code(value) for value in NOTED}
    assert noted | REFUSED | CORRECTED | CHOICES == set(Code)
    assert len(noted) + len(REFUSED) + len(CORRECTED) + len(CHOICES) == len(Code)
    assert sorted(CORRECTED) == [
        "already-hu",
        "averaged",
        "hu-clipped",
        "intercept-12-bit",
        "padding",
        "thinned",
        "unused-bits",
    ]
    assert sorted(CHOICES) == ["no-head", "series-chosen", "series-joined", "series-not-chosen"]


def test_what_may_be_over_by_the_next_run_is_refused_and_leaves_a_scan_incomplete():
    assert PASSING <= REFUSED & INCOMPLETE
