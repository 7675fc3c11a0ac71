"""A few kills of prepare do no harm; `python -m tests.data.kills` does fifty."""

import pytest

from tests import phantoms
from tests.data.kills import SIGNS, kill_runs

KILLS = 4


@pytest.mark.slow
def test_killed_runs_leave_whole_files_and_are_mended(tmp_path):
    root = phantoms.rsna(tmp_path / "set", studies=3)
    tally = kill_runs(root, tmp_path, kills=KILLS, seed=0, jobs=1)
    assert tally.wrong == []
    assert tally.runs == KILLS > len(SIGNS)
    assert tally.killed > 0
