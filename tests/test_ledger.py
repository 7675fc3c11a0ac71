"""Vocabulary: kinds and weights of the codes, wordings of codes and decisions, and the ledger file."""

from collections import Counter

import pandas as pd
import pytest

from ich_mil.ledger import (
    BY_INTERVAL,
    CHOICES,
    CORRECTED,
    DECISIONS,
    GUARANTEED,
    INCOMPLETE,
    LOOK,
    MARK,
    NEGATIVE,
    PASSING,
    PLAIN,
    POSITIVE,
    PROBLEMS,
    REFUSED,
    Code,
    LedgerEntry,
    LedgerWriter,
    decision_words,
    in_no_study,
    incomplete,
    problems,
    reasons,
    routine,
    stated,
    whole_only,
)


def entries(*codes, scan="s"):
    return [LedgerEntry(scan, "DOE^JANE.dcm", code, "DOE^JANE") for code in codes]


def test_every_code_has_kind_weight_and_wording():
    assert Counter(code.kind for code in Code) == {"refused": 20, "corrected": 8, "choice": 4, "noted": 23}
    assert Counter(code.weight for code in Code) == {"incomplete": 18, "problem": 13, "routine": 24}
    assert len({code.text for code in Code}) == len(Code)
    assert {Code.GAP, Code.UNLIKE, Code.UNREADABLE, Code.SEVERAL_PATIENTS} <= INCOMPLETE <= PROBLEMS
    assert INCOMPLETE.isdisjoint(CORRECTED | CHOICES)
    assert PASSING <= REFUSED & INCOMPLETE
    assert Code("gap") is Code.GAP


def test_wording_of_decisions_depends_on_the_guarantee():
    for words in (GUARANTEED, PLAIN):
        assert set(words) == set(MARK) == set(DECISIONS)
        assert len(set(words.values())) == len(set(MARK.values())) == 3
    assert decision_words("thresholds")[POSITIVE] == "Intracranial hemorrhage likely"
    assert decision_words(f"{BY_INTERVAL}; more")[POSITIVE] == "Probability above 50 %"


@pytest.mark.parametrize(
    ("codes", "problem", "other"),
    [
        ([Code.LOCALIZER, Code.DUPLICATE], ["Refused: a repeated slice"], ["Refused: a localizer"]),
        ([Code.GAP] * 3, ["Gap between slices (3 times)"], []),
        ([Code.PART_OF_HEAD] * 2, ["Only part of the head"], []),  # two reasons for one fault
        (
            [Code.HU_CLIPPED, Code.PADDING],
            ["Corrected: extreme values cut"],
            ["Corrected: padding set to air"],
        ),
        (
            [Code.SERIES_CHOSEN, Code.SERIES_KIND],
            ["Not a plain axial head series"],
            ["Series chosen by rule"],
        ),
        (
            [Code.SEVERAL_PATIENTS, Code.FLIPPED],  # in the order of the codes
            [
                "Corrected: images stored mirrored or turned, shown with the patient's left at the right",
                "Several patient identifiers in one study",
            ],
            [],
        ),
    ],
)
def test_lines_on_the_input(codes, problem, other):
    assert (problems(entries(*codes)), routine(entries(*codes))) == (problem, other)


def test_lines_hold_no_text_of_a_file():
    of_all = [
        *entries(*Code),
        LedgerEntry("s", "", Code.SERIES_KIND, "series 'DOE) is J' (1.2) is bone, not axial"),
    ]
    lines = problems(of_all) + routine(of_all)
    assert len(lines) == len(Code) - 1  # one file has one of DUPLICATE and OTHER_PICTURE
    assert "Not a plain axial head series (bone, not axial) (2 times)" in lines
    assert "DOE" not in " ".join(lines)


def test_lines_say_how_much_of_a_scan_is_missing():
    one = "40.00 mm between this slice and DOE/021.dcm, 5.00 mm is regular"
    many = "17 steps of up to 10.00 mm between slices 5 mm thick: the anatomy between them is not seen"
    for details, line in (
        ([one], "Gap between slices (a step of 40 mm)"),
        ([one, f"frame 3: {many}"], "Gap between slices (18 steps of up to 40 mm)"),
        (["2 slices below this one and 0 above DOE are not used"], "Gap between slices"),
    ):
        ledger = [LedgerEntry("s", "f", Code.GAP, detail) for detail in details]
        assert problems(ledger) == [line]
        assert reasons(ledger) == [line[0].lower() + line[1:]]


def test_a_file_with_another_image_is_no_repeated_slice():
    both = [LedgerEntry("s", file, Code.DUPLICATE, "") for file in "ab"]
    both.append(LedgerEntry("s", "b", Code.OTHER_PICTURE, ""))
    assert stated(both) == [both[0], both[2]]
    assert problems(both) == [
        "Refused: a repeated slice",
        "Two different images at one position, one of them used",
    ]


def test_an_incomplete_scan_is_never_negative():
    whole, part = entries(Code.PADDING, Code.TILTED), entries(Code.PADDING, Code.UNREADABLE, Code.GAP)
    assert (incomplete(whole), incomplete(part)) == ([], [Code.GAP, Code.UNREADABLE])
    assert [whole_only(decision, part) for decision in DECISIONS] == [POSITIVE, LOOK, LOOK]
    assert whole_only(NEGATIVE, whole) == NEGATIVE


def test_files_of_no_study():
    nameless = entries(Code.NO_UID, scan="")
    assert in_no_study(nameless + entries(Code.NOT_DICOM, scan="") + entries(Code.NO_UID)) == nameless


def test_entries_are_written_and_counted(tmp_path):
    lines = [LedgerEntry("s", 'a\rb\n,".dcm', Code.GAP, "5 mm"), LedgerEntry("", "ä", Code.NOT_CT, "")]
    with LedgerWriter(tmp_path / "ledger.csv") as ledger:
        ledger.write(lines)
    assert ledger.codes == {"gap": 1, "not-ct": 1}
    table = pd.read_csv(tmp_path / "ledger.csv", keep_default_na=False)
    assert [LedgerEntry(*row) for row in table.itertuples(index=False)] == lines
