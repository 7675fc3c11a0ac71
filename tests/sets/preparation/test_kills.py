"""Kills of prepare do no harm."""

import shutil
from contextlib import suppress

import pytest

from ich_mil.errors import DataError
from ich_mil.sets.preparation import prepare
from ich_mil.sets.store import open_prepared
from tests import phantoms
from tests.sets.kills import kill_runs


@pytest.mark.slow
def test_killed_runs_leave_whole_files_and_are_mended(tmp_path):
    root = phantoms.rsna(tmp_path / "set", studies=3)
    killed, wrong = kill_runs(root, tmp_path, kills=4, seed=0, jobs=1)
    assert wrong == []
    assert killed > 0


def test_half_updated_set_is_not_opened(rsna_root, tmp_path, monkeypatch):
    """A run over an older set ends after its scans and before its tables."""
    root = shutil.copytree(rsna_root, tmp_path / "set")
    prepare.prepare("rsna", root, tmp_path / "out", jobs=1)
    for path in sorted(root.rglob("*.dcm"))[::9]:
        path.unlink()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare, "_write_tables", killed)
    with pytest.raises(KeyboardInterrupt):
        prepare.prepare("rsna", root, tmp_path / "out", jobs=1)
    with suppress(DataError):
        half = open_prepared(tmp_path / "out")
        assert [len(half.slices(scan)) for scan in half.scans.index] == [
            len(half.hu(scan)) for scan in half.scans.index
        ]
