"""The codes of the ledger: which refuse, correct, choose or note."""

from collections import Counter

import pandas as pd

from ich_mil.ledger import CHOICES, CORRECTED, INCOMPLETE, PASSING, REFUSED, Code, LedgerEntry, LedgerWriter


def test_each_code_refuses_or_corrects_or_chooses_or_notes():
    """A new code is to be counted where it belongs; a page says 'Refused' and 'Corrected'."""
    assert Counter(code.kind for code in Code) == {"refused": 19, "corrected": 7, "choice": 4, "noted": 23}
    assert (len(REFUSED), len(CORRECTED), len(CHOICES), len(INCOMPLETE)) == (19, 7, 4, 17)
    assert {Code.GAP, Code.UNLIKE, Code.UNREADABLE, Code.SEVERAL_PATIENTS} <= INCOMPLETE
    assert INCOMPLETE.isdisjoint(CORRECTED | CHOICES)
    assert PASSING <= REFUSED & INCOMPLETE
    assert Code("gap") is Code.GAP


def test_entries_are_written_and_counted_whatever_the_names_of_files_hold(tmp_path):
    entries = [LedgerEntry("s", 'a\rb\n,".dcm', Code.GAP, "5 mm"), LedgerEntry("", "ä", Code.NOT_CT, "")]
    with LedgerWriter(tmp_path / "ledger.csv") as ledger:
        ledger.write(entries)
    assert ledger.codes == {"gap": 1, "not-ct": 1}
    table = pd.read_csv(tmp_path / "ledger.csv", keep_default_na=False)
    assert [LedgerEntry(*row) for row in table.itertuples(index=False)] == entries
