"""Deletion of finished studies: by age, in a nearly full spool, and what must stay."""

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import pytest

from ich_mil.serve.spool import SpoolFullError
from tests.serve.fakes import failed, judge, judged, open_spool, store
from tests.serve.judges import ct_slice, uid


def hours_ago(hours, *paths):
    for path in paths:
        os.utime(path, (time.time() - 3600 * hours,) * 2)


def limit(spool, **changes):
    spool.settings = replace(spool.settings, **changes)


def test_full_spool_refuses_objects_until_there_is_room(spool):
    limit(spool, spool_gb=1.5e-6)
    for index in range(2):
        store(spool, ct_slice(uid(1), index))
    with pytest.raises(SpoolFullError):
        store(spool, ct_slice(uid(1), 2))
    job = spool.take()
    spool.judged(job, judge(spool, job))
    spool.clean(stale=60)
    assert spool.problem()  # its results are not sent yet
    spool.outbox.took(spool.outbox.due())
    spool.clean(stale=60)
    assert not spool.problem()
    assert spool.counts()["bytes"] == 0
    assert store(spool, ct_slice(uid(1), 2))


def test_oldest_failed_studies_make_room_and_leave_their_records(spool, caplog):
    jobs = [failed(spool, number) for number in range(4)]
    for number, job in enumerate(jobs):
        hours_ago(number / 3600, spool.root / "failed" / f"{job.name}.json")
    store(spool, ct_slice(uid(3), 1))  # the oldest waits in another state
    spool.clean(stale=60)
    assert all(job.objects.exists() for job in jobs)

    size = spool.counts()["bytes"]
    limit(spool, spool_gb=size * 0.9e-9)  # full, and nearly full above 81 %: one of five objects is enough
    assert spool.problem()
    for _ in range(2):
        spool.clean(stale=60)
        assert [job.objects.exists() for job in jobs] == [True, True, False, True]
    assert not spool.problem()
    assert spool.counts()["bytes"] == spool._size() <= 0.81 * size
    assert spool.counts()["failed"] == 4
    assert caplog.text.count(jobs[2].key) == 1
    assert store(spool, ct_slice(uid(2), 0))  # the same again: its failure is recorded
    assert spool.take().study_uid == uid(3)
    assert spool.take() is None


def test_objects_of_a_failed_study_stay_while_results_of_another_state_wait(spool):
    first = judged(spool)
    failed(spool, number=1)
    limit(spool, spool_gb=1e-9)
    spool.clean(stale=60)
    assert len(list(first.objects.iterdir())) == 2


def test_finished_studies_and_stale_files_are_deleted(spool):
    for number in range(4):
        store(spool, ct_slice(uid(number), 0))
    sent, lost, waiting = spool.take(), spool.take(), spool.take()
    spool.judged(sent, judge(spool, sent))
    spool.outbox.took(spool.outbox.due())
    spool.fail(lost, "why")
    spool.judged(waiting, judge(spool, waiting))
    for name in ("old", "young"):
        (spool.incoming / f"{name}.dcm").touch()
        (spool.incoming / name).mkdir()
        (spool.incoming / name / "file").touch()
    hours_ago(2, spool.incoming / "old.dcm", spool.incoming / "old")
    hours_ago(2, *spool.outbox.sent_folder.iterdir(), *(spool.root / "failed").iterdir())
    spool.clean(stale=1800)
    keys = {path.name for path in (spool.root / "studies").iterdir()}
    assert keys == {waiting.key, spool.take().key}
    assert {path.name for path in (spool.root / "results").iterdir()} == {waiting.name}
    assert {path.name for path in spool.incoming.iterdir()} == {"young", "young.dcm"}
    assert store(spool, ct_slice(uid(0), 0))  # the same study, from the beginning
    assert spool.take().name == sent.name


@pytest.mark.parametrize("years", [1, -1])
def test_clock_that_jumps_deletes_nothing_early(spool, monkeypatch, years):
    """Neither what is from before the jump, nor from after it."""
    before, after = failed(spool, study=1), failed(spool, study=2)
    (spool.incoming / "before.dcm").touch()
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + years * 365 * 86400)
    hours_ago(0, spool.root / "failed" / f"{after.name}.json")
    spool.clean(stale=60.0)
    assert {path.stem for path in (spool.root / "failed").iterdir()} == {before.name, after.name}
    assert [path.name for path in spool.incoming.iterdir()] == ["before.dcm"]


def test_study_that_waits_again_is_not_deleted(spool):
    limit(spool, keep_hours=0.0)
    first = judged(spool, sent=True)
    hours_ago(1, *spool.outbox.sent_folder.iterdir())
    store(spool, ct_slice(uid(1), 1))
    spool.clean(stale=60)
    assert len(list(spool.take().objects.iterdir())) == 2
    spool.clean(stale=60)  # nor while it is judged
    assert len(list(first.objects.iterdir())) == 2


@pytest.mark.parametrize("second", ["sent", "failed"])
def test_objects_stay_while_another_state_needs_them(spool, second):
    first = judged(spool, sent=True)
    hours_ago(2, *spool.outbox.sent_folder.iterdir())
    again = judged(spool, number=1, sent=True) if second == "sent" else failed(spool, number=1)
    spool.clean(stale=60)
    kept = {path.name for path in (spool.root / "results").iterdir()}
    assert kept == ({again.name} if second == "sent" else set())
    assert len(list(first.objects.iterdir())) == 2


@pytest.mark.parametrize("sent", [True, False])
def test_object_received_during_deletion_is_kept(spool, monkeypatch, sent):
    if sent:
        judged(spool, sent=True)
        hours_ago(2, *spool.outbox.sent_folder.iterdir())
    else:
        failed(spool)
        limit(spool, spool_gb=spool.counts()["bytes"] * 1e-9 / 0.95)  # nearly full
    remove, pool, comes = shutil.rmtree, ThreadPoolExecutor(1), []

    def slowly(folder, **values):
        if folder.parent.name == "studies":
            comes.append(pool.submit(store, spool, ct_slice(uid(1), 1)))
            wait(comes, timeout=0.1)
        remove(folder, **values)

    monkeypatch.setattr(shutil, "rmtree", slowly)
    spool.clean(stale=60)
    assert [one.result(60) for one in comes] == [True]
    assert len(list(spool.take().objects.iterdir())) == 1
    pool.shutdown()


def test_empty_spool_leaves_nothing(tmp_path):
    open_spool(tmp_path / "new").close()
    assert not (tmp_path / "new").exists()
