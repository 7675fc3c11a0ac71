"""The queue on disk: names, silence, states, restarts, limits. No network."""

import json
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Barrier

import pytest
from pydicom import dcmread

from ich_mil.errors import DataError
from ich_mil.serve import outbox as outbox_module
from ich_mil.serve import spool as spool_module
from ich_mil.serve.failures import LEDGER_LINES
from ich_mil.serve.outbox import Outbox
from ich_mil.serve.spool import RefusedError, Spool, SpoolFullError
from tests.serve.fakes import no_room_for, unreadable
from tests.serve.judges import capture, ct_slice, uid

GB = 1e9


def open_spool(root, *, silence=0.0, most_bytes=GB, least_free=0.0, keep=3600.0):
    return Spool(
        root,
        silence=silence,
        most_bytes=most_bytes,
        least_free=least_free,
        keep=keep,
        pause=10,
        longest_pause=100,
    )


@pytest.fixture
def spool(tmp_path):
    made = open_spool(tmp_path / "spool")
    yield made
    made.close()


def store(spool, image, *, sop_uid=None):
    path = spool.incoming / f"{time.monotonic_ns()}.dcm"
    image.save_as(path, enforce_file_format=True)
    return spool.store(path, sop_uid=str(image.SOPInstanceUID) if sop_uid is None else sop_uid)


def every_file(root):
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def an_hour_ago(*paths):
    """Files as if they were last written then."""
    for path in paths:
        os.utime(path, (time.time() - 3600,) * 2)


def judge(spool, job):
    """One result, as a worker would."""
    image = ct_slice(job.study_uid, 0)
    return [
        capture(image, sorted(path.name for path in job.objects.iterdir()), spool.work(job) / "capture.dcm")
    ]


def judged_and_sent(spool, number=0):
    """A study that gets this slice, is judged, and whose result is taken."""
    store(spool, ct_slice(uid(1), number))
    job = spool.take()
    spool.judged(job, judge(spool, job))
    spool.outbox.took(spool.outbox.due())
    return job


def test_a_study_waits_for_silence_and_is_taken_once(tmp_path, monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    spool = open_spool(tmp_path, silence=30)
    assert store(spool, ct_slice(uid(1), 0))
    assert store(spool, ct_slice(uid(1), 1))
    assert spool.take() is None
    now = 31.0
    job = spool.take()
    assert (job.study_uid, len(list(job.objects.glob("*.dcm")))) == (uid(1), 2)
    assert spool.take() is None
    spool.back(job)
    assert spool.take() is None
    now = 62.0
    assert spool.take() == job
    spool.close()


def test_the_same_object_twice_is_stored_once(spool):
    image = ct_slice(uid(1), 0)
    assert store(spool, image)
    before = every_file(spool.root)
    assert not store(spool, image)
    assert every_file(spool.root) == before


def test_an_object_is_known_by_its_own_name_whatever_the_request_calls_it(spool):
    image = ct_slice(uid(1), 0)
    assert store(spool, image, sop_uid="1.8")
    assert not store(spool, image, sop_uid="1.9")


def test_an_object_that_comes_twice_is_no_silence_but_wakes_no_finished_study(tmp_path, monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    spool = open_spool(tmp_path, silence=30)
    image = ct_slice(uid(1), 0)
    store(spool, image)
    now = 29.0
    assert not store(spool, image)
    now = 31.0
    assert spool.take() is None
    now = 59.0
    job = spool.take()
    spool.judged(job, judge(spool, job))
    assert not store(spool, image)
    assert spool.counts()["queued"] == 0
    spool.close()


def test_what_goes_back_is_the_last_of_the_queue(spool):
    for number in range(2):
        store(spool, ct_slice(uid(number), 0))
    job = spool.take()
    assert (job.study_uid, spool.counts()["queued"], spool.counts()["judging"]) == (uid(0), 1, 1)
    spool.back(job)
    assert (spool.counts()["queued"], spool.counts()["judging"]) == (2, 0)
    assert [spool.take().study_uid, spool.take().study_uid] == [uid(1), uid(0)]


def test_only_the_user_of_the_node_reads_the_spool(spool):
    for folder in (spool.root, *(path for path in spool.root.iterdir() if path.is_dir())):
        assert folder.stat().st_mode & 0o077 == 0, folder


@pytest.fixture
def synced(monkeypatch):
    """What was waited for: the number of each file or folder, and which DICOM files were kept by then."""
    calls = []

    def watch(root):
        def fsync(descriptor):
            calls.append((os.fstat(descriptor).st_ino, {path.name for path in root.rglob("*.dcm")}))

        monkeypatch.setattr(os, "fsync", fsync)
        return calls

    return watch


def test_an_object_is_on_disk_before_it_has_its_name_and_then_the_name_is(spool, synced):
    calls = synced(spool.root / "studies")
    store(spool, ct_slice(uid(1), 0))
    (made,) = spool.root.glob("studies/*/objects/*.dcm")
    study = made.parent.parent
    assert (made.stat().st_ino, set()) in calls
    assert (made.parent.stat().st_ino, {made.name}) in calls
    assert {study.stat().st_ino, study.parent.stat().st_ino} <= {number for number, _ in calls}


def test_results_are_on_disk_before_they_are_kept(spool, synced):
    store(spool, ct_slice(uid(1), 0))
    job = spool.take()
    made = judge(spool, job)
    calls = synced(spool.root / "results")
    spool.judged(job, made)
    (kept,) = spool.root.glob("results/*/*.dcm")
    assert (kept.stat().st_ino, set()) in calls


def test_of_one_uid_the_last_bytes_count(spool):
    store(spool, ct_slice(uid(1), 0))
    store(spool, ct_slice(uid(1), 1))
    first = spool.take()
    spool.back(first)
    assert store(spool, ct_slice(uid(1), 0, PixelData=bytes(range(128))))
    second = spool.take()
    assert len(list(second.objects.glob("*.dcm"))) == 2
    assert (second.key, second.mark == first.mark) == (first.key, False)
    size = sum(path.stat().st_size for path in second.objects.parent.rglob("*") if path.is_file())
    assert spool.counts()["bytes"] == pytest.approx(size, abs=200)  # the name of the study is not counted


def test_slices_of_one_uid_at_several_positions_are_all_kept(spool):
    same = {"SOPInstanceUID": "1.9"}
    for z in range(3):
        assert store(spool, ct_slice(uid(1), z, ImagePositionPatient=[0, 0, z], **same))
    assert not store(spool, ct_slice(uid(1), 1, ImagePositionPatient=[0, 0, 1], **same))
    kept = [dcmread(path).ImagePositionPatient[2] for path in spool.take().objects.iterdir()]
    assert sorted(kept) == [0, 1, 2]


def test_of_one_uid_the_last_bytes_count_also_after_a_kill_before_the_first_were_gone(tmp_path):
    """The sender had no answer: it sends again what is there already."""
    first, second = ct_slice(uid(1), 0), ct_slice(uid(1), 0, PixelData=bytes([1]) * 128)
    spool = open_spool(tmp_path / "spool")
    store(spool, first)
    (old,) = spool.take().objects.iterdir()
    content = old.read_bytes()
    store(spool, second)
    spool.close()
    old.write_bytes(content)
    spool = open_spool(tmp_path / "spool")
    assert not store(spool, second)
    (kept,) = spool.take().objects.iterdir()
    assert dcmread(kept).PixelData == second.PixelData
    spool.close()


@pytest.mark.parametrize(
    "study",
    [
        "../../../etc/passwd",
        "/etc/passwd",
        "..",
        ".",
        "a/b\\c",
        "1.2\n3",
        "ID_0a1b",
        "ü" * 20,
        "-rf *",
        "%00",
    ],
)
def test_no_uid_leads_out_of_the_spool(tmp_path, study, recwarn):
    spool = open_spool(tmp_path / "a" / "spool")
    image = ct_slice(uid(1), 0, SpecificCharacterSet="ISO_IR 192")
    image.SOPInstanceUID = image.StudyInstanceUID = study
    path = spool.incoming / "one.dcm"
    image.file_meta.MediaStorageSOPInstanceUID = uid(9)
    image.save_as(path, enforce_file_format=True)
    spool.store(path, sop_uid=study)
    job = spool.take()
    assert every_file(tmp_path) == {
        f"a/spool/{name}"
        for name in (
            ".lock",
            f"studies/{job.key}/study.json",
            f"studies/{job.key}/objects/{next(job.objects.iterdir()).name}",
        )
    }
    assert job.key.isalnum()
    assert len(job.key) == 24
    spool.close()
    recwarn.clear()  # pydicom remarks on such UIDs


@pytest.mark.parametrize("study", ["", " ", "1" * 65, "1." * 5000])
def test_no_study_uid_is_refused(spool, study, recwarn):
    with pytest.raises(RefusedError, match="StudyInstanceUID has"):
        store(spool, ct_slice(uid(1), 0, StudyInstanceUID=study))
    assert spool.take() is None
    recwarn.clear()


@pytest.mark.parametrize(
    "content", [b"", b"DICM", bytes(10_000), bytes(128) + b"DICM" + bytes(range(256)) * 9]
)
def test_what_is_no_data_set_is_refused(spool, content):
    path = spool.incoming / "one.dcm"
    path.write_bytes(content)
    with pytest.raises(RefusedError):
        spool.store(path, sop_uid="1.2")


def test_an_object_without_a_name_has_that_of_the_request(spool):
    image = ct_slice(uid(1), 0)
    del image.SOPInstanceUID
    path = spool.incoming / "one.dcm"
    image.save_as(path, enforce_file_format=True)
    copy = path.read_bytes()
    assert spool.store(path, sop_uid="1.2")
    path.write_bytes(copy)
    assert not spool.store(path, sop_uid="1.2")
    path.write_bytes(copy)
    assert spool.store(path, sop_uid="1.3")
    path.write_bytes(copy)
    assert spool.store(path, sop_uid="")


def test_a_judged_study_is_judged_again_only_if_more_came(spool):
    image = ct_slice(uid(1), 0)
    store(spool, image)
    job = spool.take()
    spool.judged(job, judge(spool, job))
    assert not store(spool, image)
    assert spool.take() is None
    store(spool, ct_slice(uid(1), 1))
    again = spool.take()
    assert (again.key, again.mark == job.mark) == (job.key, False)
    spool.fail(again, "why")
    assert spool.take() is None
    assert [delivery.name for delivery in spool.outbox.waiting()] == [job.name]
    note = json.loads((spool.root / "failed" / f"{again.name}.json").read_bytes())
    assert (note["reason"], note["study_uid"]) == ("why", uid(1))


def fail_with_ledger(spool, lines):
    """A study with a ledger fails; returns its note."""
    store(spool, ct_slice(uid(1), 0))
    job = spool.take()
    work = spool.work(job)
    ledger = work / "prepared" / "ledger.csv"
    ledger.parent.mkdir()
    ledger.write_bytes("".join(f"{line}\n" for line in lines).encode("latin-1"))
    spool.fail(job, f"{job.objects}: no CT slice; {ledger} says why; {work}/features: bad; {work}: bad")
    assert not work.exists()
    note = json.loads((spool.root / "failed" / f"{job.name}.json").read_bytes())
    assert note["reason"] == (
        f"{job.objects}: no CT slice; the ledger below says why; features: bad; its work folder: bad"
    )
    assert (note["key"], note["mark"], note["objects"]) == (job.key, job.mark, str(job.objects))
    return note


def test_a_failed_study_keeps_what_its_ledger_said(spool):
    lines = ["scan,file,code,detail", "s,a.dcm,not-ct,the modality is 'MR'"]
    assert fail_with_ledger(spool, lines)["ledger"] == lines


def test_of_a_long_ledger_the_last_lines_are_kept(spool):
    lines = ["scan,file,code,detail", *(f"s,{number},flat,\xe4" for number in range(1000))]
    kept = fail_with_ledger(spool, lines)["ledger"]
    assert kept == [lines[0], *(f"s,{number},flat,\ufffd" for number in range(1000 - LEDGER_LINES, 1000))]


def test_a_study_that_fails_without_a_ledger(spool):
    store(spool, ct_slice(uid(1), 0))
    job = spool.take()
    spool.fail(job, "why")
    note = json.loads((spool.root / "failed" / f"{job.name}.json").read_bytes())
    assert (note["reason"], note["ledger"]) == ("why", [])


def test_the_folders_of_results_are_synced_before_they_are_kept(spool, monkeypatch):
    store(spool, ct_slice(uid(1), 0))
    job = spool.take()
    work = spool.work(job)
    (work / "dicom" / "scan").mkdir(parents=True)
    (work / "pages").mkdir()
    made = capture(ct_slice(uid(1), 0), ["1.2"], work / "dicom" / "scan" / "capture.dcm")
    synced = []
    monkeypatch.setattr(spool_module, "sync_folder", lambda path: synced.append((path, path.exists())))
    spool.judged(job, [made])
    assert set(synced[:-1]) == {(work / "dicom" / "scan", True), (work / "dicom", True), (work, True)}
    assert synced[-1] == (spool.root / "results", True)


def test_a_study_whose_results_are_lost_is_judged_again(spool):
    image = ct_slice(uid(1), 0)
    store(spool, image)
    job = spool.take()
    spool.judged(job, judge(spool, job))
    delivery = spool.outbox.due()
    (spool.root / delivery.files[0]).unlink()
    spool.lost(delivery)
    assert (spool.outbox.waiting(), spool.outbox.due()) == ([], None)
    assert every_file(spool.root / "outbox") == every_file(spool.root / "results") == set()
    again = spool.take()
    assert again == job
    spool.judged(again, judge(spool, again))
    assert [waiting.files for waiting in spool.outbox.waiting()] == [delivery.files]
    assert spool.take() is None


def test_what_came_while_a_study_was_judged_is_not_forgotten(spool):
    store(spool, ct_slice(uid(1), 0))
    job = spool.take()
    store(spool, ct_slice(uid(1), 1))
    assert spool.take() is None
    spool.judged(job, judge(spool, job))
    assert len(list(spool.take().objects.iterdir())) == 2


def test_our_own_results_that_come_back_are_not_judged(spool):
    store(spool, ct_slice(uid(1), 0))
    job = spool.take()
    work = spool.work(job)
    made = [capture(ct_slice(uid(1), 0), [name], work / f"{name}.dcm") for name in ("a", "b")]
    contents = [path.read_bytes() for path in made]
    spool.judged(job, made)
    for content in contents:
        path = spool.incoming / "one.dcm"
        path.write_bytes(content)
        assert not spool.store(path, sop_uid="")
        assert spool.take() is None
        assert not path.exists()


def test_what_was_sent_is_known_after_a_restart(tmp_path):
    spool = open_spool(tmp_path)
    judged_and_sent(spool)
    spool.close()
    spool = open_spool(tmp_path)
    assert spool.take() is None
    (result,) = tmp_path.glob("results/*/*.dcm")
    assert spool.outbox.is_ours(str(dcmread(result).SOPInstanceUID))
    spool.close()


def test_a_restart_finds_every_state(tmp_path):
    spool = open_spool(tmp_path)
    for number in range(4):
        store(spool, ct_slice(uid(number), 0))
    done, failed, working = spool.take(), spool.take(), spool.take()
    spool.judged(done, judge(spool, done))
    spool.fail(failed, "why")
    (spool.work(working) / "half.dcm").write_bytes(b"half")
    (spool.incoming / "half.dcm").write_bytes(b"half")
    spool._held.close()  # all that kill -9 does

    spool = open_spool(tmp_path)
    counts = spool.counts()
    kept = [
        path for name in ("studies", "results") for path in (tmp_path / name).rglob("*") if path.is_file()
    ]
    assert (counts["queued"], counts["bytes"]) == (2, sum(path.stat().st_size for path in kept))
    left = {spool.take().study_uid, spool.take().study_uid}
    assert left == {uid(2), uid(3)}
    assert spool.take() is None
    assert not list(spool.incoming.iterdir())
    assert not list((tmp_path / "work").iterdir())
    assert [delivery.study_uid for delivery in spool.outbox.waiting()] == [uid(0)]
    spool.close()


def test_killed_between_result_and_note_it_is_judged_again(tmp_path, monkeypatch):
    spool = open_spool(tmp_path)
    store(spool, ct_slice(uid(1), 0))
    job = spool.take()
    monkeypatch.setattr(spool.outbox, "put", lambda *_: (_ for _ in ()).throw(OSError("killed")))
    with pytest.raises(OSError, match="killed"):
        spool.judged(job, judge(spool, job))
    spool._held.close()
    spool = open_spool(tmp_path)
    again = spool.take()
    assert again == job
    spool.judged(again, judge(spool, again))
    assert [Path(tmp_path / delivery.files[0]).is_file() for delivery in spool.outbox.waiting()] == [True]
    spool.close()


def test_results_whose_note_cannot_be_written_are_made_again(spool):
    store(spool, ct_slice(uid(1), 0))
    job = spool.take()
    with no_room_for(spool.outbox.waiting_folder), pytest.raises(DataError):
        spool.judged(job, judge(spool, job))
    spool.back(job)
    assert spool.take() == job
    spool.judged(job, judge(spool, job))
    assert [delivery.name for delivery in spool.outbox.waiting()] == [job.name]


@pytest.mark.parametrize("part", ["study.json", "objects"])
def test_a_study_that_cannot_be_read_for_a_while_waits_behind_the_others(spool, part):
    for number in range(2):
        store(spool, ct_slice(uid(number), 0))
    first = spool.take()
    spool.back(first)
    spool.back(spool.take())
    with unreadable(first.objects.parent / part):
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            spool.take()
        assert spool.take().study_uid == uid(1)
        assert spool.counts()["queued"] == 1
    assert spool.take() == first


@pytest.mark.parametrize("part", ["study.json", "objects"])
def test_a_study_that_cannot_be_read_at_the_start_is_not_forgotten(tmp_path, part):
    spool = open_spool(tmp_path)
    store(spool, ct_slice(uid(1), 0))
    job = spool.take()
    spool.close()
    with unreadable(job.objects.parent / part), pytest.raises(DataError, match="cannot be used as a spool"):
        open_spool(tmp_path)
    spool = open_spool(tmp_path)
    assert spool.take() == job
    spool.close()


def test_results_are_kept_of_a_study_that_cannot_be_read_by_then(spool):
    store(spool, ct_slice(uid(1), 0))
    job = spool.take()
    with unreadable(job.objects.parent / "study.json"):
        spool.judged(job, judge(spool, job))
    assert [delivery.name for delivery in spool.outbox.waiting()] == [job.name]
    assert spool.take() is None
    assert (spool.counts()["queued"], spool.counts()["judging"]) == (0, 0)


def test_a_study_that_cannot_be_read_when_its_results_are_lost_is_judged_again(spool):
    store(spool, ct_slice(uid(1), 0))
    job = spool.take()
    spool.judged(job, judge(spool, job))
    with unreadable(job.objects.parent / "study.json"):
        spool.lost(spool.outbox.due())
    assert spool.take() == job


@pytest.fixture
def often():
    """Threads take turns often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_of_many_threads_one_stores_an_object_and_one_takes_a_study(spool, often):
    images = [ct_slice(uid(number), index) for number in range(3) for index in range(8)]
    n_threads = 4
    for number, image in enumerate(images):
        for thread in range(n_threads):
            image.save_as(spool.incoming / f"{thread}-{number}", enforce_file_format=True)
    together = Barrier(n_threads)

    def store_all(thread):
        files = [spool.incoming / f"{thread}-{number}" for number in range(len(images))]
        together.wait()
        return sum(spool.store(file, sop_uid="") for file in files)

    def take_one(_):
        together.wait()
        return spool.take()

    with ThreadPoolExecutor(n_threads) as pool:
        assert sum(pool.map(store_all, range(n_threads))) == len(images)
        jobs = [job for job in pool.map(take_one, range(n_threads)) if job is not None]
    assert sorted(job.study_uid for job in jobs) == sorted(uid(number) for number in range(3))
    kept = list(spool.root.glob("studies/*/objects/*"))
    assert (len(kept), spool.counts()["bytes"]) == (len(images), sum(path.stat().st_size for path in kept))


@pytest.mark.parametrize(
    "read", [lambda box: box.is_ours("1.2.3"), lambda box: box.knows_any("b"), lambda box: box.due()]
)
def test_the_outbox_is_read_while_it_is_written(spool, often, read):
    result = capture(ct_slice(uid(1), 0), [], spool.root / "results" / "result.dcm")
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [spool.outbox.put(f"a-{n}", uid(n), [result]) for n in range(40)])
        while not writing.done():
            read(spool.outbox)
    assert len(spool.outbox.waiting()) == 40


@pytest.mark.parametrize("sent", [True, False])
def test_an_object_that_comes_while_its_study_is_removed_is_kept(tmp_path, monkeypatch, sent):
    spool = open_spool(tmp_path, keep=1800)
    if sent:
        judged_and_sent(spool)
        an_hour_ago(*spool.outbox.sent_folder.iterdir())
    else:
        store(spool, ct_slice(uid(1), 0))
        spool.fail(spool.take(), "why")
        spool._most_bytes = spool.counts()["bytes"] / 0.95  # heavy, not full
    remove, pool, comes = shutil.rmtree, ThreadPoolExecutor(1), []

    def slowly(folder, **values):
        if folder.parent.name == "studies":
            comes.append(pool.submit(store, spool, ct_slice(uid(1), 1)))
            wait(comes, timeout=0.1)
        remove(folder, **values)

    monkeypatch.setattr(shutil, "rmtree", slowly)
    spool.clean(stale=60)
    assert [one.result(10) for one in comes] == [True]
    assert len(list(spool.take().objects.iterdir())) == 1
    pool.shutdown()
    spool.close()


def test_one_node_a_spool(spool):
    with pytest.raises(DataError, match="another process is using it"):
        open_spool(spool.root)


def test_a_spool_that_cannot_be(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file: cannot be written \(File exists\); choose another"):
        open_spool(tmp_path / "file")


def test_a_full_spool_takes_nothing_until_there_is_room(tmp_path):
    spool = open_spool(tmp_path, most_bytes=1500)
    store(spool, ct_slice(uid(1), 0))
    store(spool, ct_slice(uid(1), 1))
    assert spool.is_full()
    with pytest.raises(SpoolFullError):
        store(spool, ct_slice(uid(1), 2))
    job = spool.take()
    spool.judged(job, judge(spool, job))
    spool.clean(stale=60)
    assert spool.is_full()  # its results are not sent yet
    spool.outbox.took(spool.outbox.due())
    spool.clean(stale=60)
    assert not spool.is_full()
    assert spool.counts()["bytes"] == 0
    assert store(spool, ct_slice(uid(1), 2))
    spool.close()


def test_of_failed_studies_the_oldest_make_room_and_leave_their_notes(tmp_path, capfd):
    spool = open_spool(tmp_path, most_bytes=1e9)
    jobs = []
    for number in range(4):
        store(spool, ct_slice(uid(number), 0))
        job = spool.take()
        spool.fail(job, "why")
        os.utime(tmp_path / "failed" / f"{job.name}.json", (time.time() - number, time.time() - number))
        jobs.append(job)
    store(spool, ct_slice(uid(3), 1))  # the oldest waits with another state
    spool.clean(stale=60)
    assert all(job.objects.exists() for job in jobs)

    size = spool.counts()["bytes"]
    spool._most_bytes = size * 0.9  # full, and heavy above 81 %: one of five objects is enough
    assert spool.is_full()
    spool.clean(stale=60)
    assert [job.objects.exists() for job in jobs] == [True, True, False, True]
    assert not spool.is_full()
    assert spool.counts()["bytes"] == spool._size() <= 0.81 * size
    assert spool.counts()["failed"] == 4
    assert capfd.readouterr().out.count(jobs[2].key) == 1
    spool.clean(stale=60)
    assert [job.objects.exists() for job in jobs] == [True, True, False, True]
    assert store(spool, ct_slice(uid(2), 0))  # the same once more: it failed, and the note says why
    assert spool.take().study_uid == uid(3)
    assert spool.take() is None
    spool.close()


def test_objects_of_a_failed_study_stay_while_results_of_another_state_wait(tmp_path):
    spool = open_spool(tmp_path)
    store(spool, ct_slice(uid(1), 0))
    first = spool.take()
    spool.judged(first, judge(spool, first))
    store(spool, ct_slice(uid(1), 1))
    spool.fail(spool.take(), "why")
    spool._most_bytes = 1.0
    spool.clean(stale=60)
    assert len(list(first.objects.iterdir())) == 2
    spool.close()


def test_a_folder_in_incoming_is_removed_when_it_is_old(spool):
    old, young = spool.incoming / "old", spool.incoming / "young"
    for folder in (old, young):
        folder.mkdir()
        (folder / "file").touch()
    os.utime(old, (0, 0))
    spool.clean(stale=60)
    assert [path.name for path in spool.incoming.iterdir()] == ["young"]


def test_a_disk_without_room(tmp_path):
    spool = open_spool(tmp_path, least_free=1e18)
    with pytest.raises(SpoolFullError):
        store(spool, ct_slice(uid(1), 0))
    spool.close()


def test_finished_studies_go_when_their_time_is_over(tmp_path):
    spool = open_spool(tmp_path, keep=1800)
    for number in range(4):
        store(spool, ct_slice(uid(number), 0))
    sent, failed, waiting = spool.take(), spool.take(), spool.take()
    spool.judged(sent, judge(spool, sent))
    spool.outbox.took(spool.outbox.due())
    spool.fail(failed, "why")
    spool.judged(waiting, judge(spool, waiting))
    old, young = (spool.incoming / f"{name}.dcm" for name in ("old", "young"))
    old.touch()
    young.touch()
    an_hour_ago(old, *spool.outbox.sent_folder.iterdir(), *(spool.root / "failed").iterdir())
    spool.clean(stale=1800)
    keys = {path.name for path in (tmp_path / "studies").iterdir()}
    assert keys == {waiting.key, spool.take().key}
    assert {path.name for path in (tmp_path / "results").iterdir()} == {waiting.name}
    assert (old.exists(), young.exists()) == (False, True)
    assert store(spool, ct_slice(uid(0), 0))  # the same study, once more from the beginning
    assert spool.take().name == sent.name
    spool.close()


def test_a_study_that_waits_again_is_not_removed(tmp_path):
    spool = open_spool(tmp_path, keep=0.0)
    first = judged_and_sent(spool)
    store(spool, ct_slice(uid(1), 1))
    time.sleep(0.01)
    spool.clean(stale=60)
    assert len(list(spool.take().objects.iterdir())) == 2
    spool.clean(stale=60)  # nor while it is judged
    assert len(list(first.objects.iterdir())) == 2
    spool.close()


def test_the_objects_stay_while_another_state_of_the_study_needs_them(tmp_path):
    spool = open_spool(tmp_path, keep=1800)
    judged_and_sent(spool)
    an_hour_ago(*spool.outbox.sent_folder.iterdir())
    second = judged_and_sent(spool, 1)
    spool.clean(stale=60)
    assert {path.name for path in (tmp_path / "results").iterdir()} == {second.name}
    assert len(list(second.objects.iterdir())) == 2
    spool.close()


def test_the_objects_of_a_study_that_failed_stay_when_its_earlier_results_go(tmp_path):
    spool = open_spool(tmp_path, keep=1800)
    first = judged_and_sent(spool)
    an_hour_ago(*spool.outbox.sent_folder.iterdir())
    store(spool, ct_slice(uid(1), 1))
    spool.fail(spool.take(), "why")
    spool.clean(stale=60)
    assert list((tmp_path / "results").iterdir()) == []
    assert len(list(first.objects.iterdir())) == 2
    spool.close()


def test_outbox_pauses_grow_and_stay_below_the_longest(spool):
    store(spool, ct_slice(uid(1), 0))
    job = spool.take()
    spool.judged(job, judge(spool, job))
    pauses = []
    delivery = spool.outbox.due()
    for _ in range(6):
        pauses.append(spool.outbox.postpone(delivery, delivery.files, "down"))
        assert spool.outbox.due() is None
        (delivery,) = spool.outbox.waiting()
    assert pauses == [10, 20, 40, 80, 100, 100]
    again = Outbox(spool.root, pause=10, longest_pause=100).due()  # a restart tries at once
    assert (again.attempts, again.error, again.files) == (6, "down", delivery.files)
    assert spool.outbox.postpone(replace(again, attempts=5000), again.files, "down") == 100


def test_only_what_was_not_taken_is_sent_again_also_after_a_restart(spool):
    store(spool, ct_slice(uid(1), 0))
    job = spool.take()
    work = spool.work(job)
    spool.judged(job, [capture(ct_slice(uid(1), 0), [name], work / f"{name}.dcm") for name in ("a", "b")])
    delivery = spool.outbox.due()
    spool.outbox.postpone(delivery, delivery.files[1:], "down")
    again = Outbox(spool.root, pause=10, longest_pause=100)
    assert again.due().files == delivery.files[1:]
    again.took(again.due())
    assert Outbox(spool.root, pause=10, longest_pause=100).due() is None


def test_of_results_whose_pause_is_over_the_first_goes_first(spool, monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for number in range(2):
        store(spool, ct_slice(uid(number), 0))
        job = spool.take()
        spool.judged(job, judge(spool, job))
    first, second = spool.outbox.waiting()
    spool.outbox.postpone(second, second.files, "down")
    now = 5.0
    spool.outbox.postpone(first, first.files, "down")
    now = 20.0
    assert spool.outbox.due().name == second.name


def test_results_whose_last_note_cannot_be_written_wait_also_after_a_restart(spool):
    store(spool, ct_slice(uid(1), 0))
    job = spool.take()
    spool.judged(job, judge(spool, job))
    delivery = spool.outbox.due()
    with no_room_for(spool.outbox.sent_folder), pytest.raises(DataError):
        spool.outbox.took(delivery)
    assert spool.outbox.due() == delivery
    assert Outbox(spool.root, pause=10, longest_pause=100).due() == delivery


@pytest.mark.parametrize(
    "note", ["{", "[]", "{}", '{"name": "x", "files": [], "sops": []}', '{"files": 1, "sops": 1}']
)
def test_a_damaged_note_of_the_outbox_is_named(tmp_path, note):
    (tmp_path / "outbox").mkdir()
    (tmp_path / "outbox" / "x.json").write_text(note)
    with pytest.raises(DataError, match=r"x\.json: is no delivery"):
        Outbox(tmp_path, pause=1, longest_pause=1)


def test_results_that_wait_are_not_sent_after_those_of_more_of_the_study(spool, capfd):
    """Else the archive would get the result of a part last."""
    states = []
    for number in range(2):
        store(spool, ct_slice(uid(1), number))
        states.append(spool.take())
        spool.judged(states[-1], judge(spool, states[-1]))
        if number == 0:
            spool.outbox.postpone(spool.outbox.due(), ["a"], "no archive")
    (left,) = spool.outbox.waiting()
    assert left.name == states[1].name
    assert f"{states[0].name}: not sent" in capfd.readouterr().out
    again = Outbox(spool.root, pause=10, longest_pause=100)
    assert [one.name for one in again.waiting()] == [states[1].name]
    assert [name for name, _ in again.sent()] == [states[0].name]  # so that it is cleaned in its time
    assert again.knows(states[0].name)


@pytest.fixture
def killed_at(monkeypatch):
    """Kills what writes or removes notes before its step of this number."""

    def at(step):
        steps = count()

        def killing(does):
            def one(path, *args, **kwargs):
                if path.suffix == ".json" and next(steps) == step:
                    raise KeyboardInterrupt
                return does(path, *args, **kwargs)

            return one

        monkeypatch.setattr(outbox_module, "write_json", killing(outbox_module.write_json))
        monkeypatch.setattr(Path, "unlink", killing(Path.unlink))

    return at


@pytest.mark.parametrize(
    ("step", "waiting", "sent"),
    [(0, ["a"], []), (1, [], ["a"]), (2, [], ["a"])],
    ids=["before the note", "after it", "before the newer ones"],
)
@pytest.mark.parametrize("newer", ["0", "b"])
def test_killed_while_newer_results_come_the_older_ones_go_first_or_not_at_all(
    tmp_path, killed_at, step, waiting, sent, newer
):
    outbox = Outbox(tmp_path, pause=10, longest_pause=100)
    result = capture(ct_slice(uid(1), 0), [], tmp_path / "capture.dcm")
    outbox.put("a", uid(1), [result])
    killed_at(step)
    with pytest.raises(KeyboardInterrupt):
        outbox.put(newer, uid(1), [result])
    again = Outbox(tmp_path, pause=10, longest_pause=100)
    assert [one.name for one in again.waiting()] == waiting
    assert [name for name, _ in again.sent()] == sent
    assert (again.knows("a"), again.knows(newer)) == (True, False)  # newer ones are made again, and go last
    again.put(newer, uid(1), [result])
    for box in (again, Outbox(tmp_path, pause=10, longest_pause=100)):
        assert [one.name for one in box.waiting()] == [newer]


def test_what_was_sent_a_moment_before_a_kill_and_noted_is_not_sent_again(tmp_path, killed_at):
    outbox = Outbox(tmp_path, pause=10, longest_pause=100)
    outbox.put("a", uid(1), [capture(ct_slice(uid(1), 0), [], tmp_path / "capture.dcm")])
    killed_at(1)
    with pytest.raises(KeyboardInterrupt):
        outbox.took(outbox.due())
    again = Outbox(tmp_path, pause=10, longest_pause=100)
    assert (again.due(), [name for name, _ in again.sent()]) == (None, ["a"])
    assert not list(again.waiting_folder.iterdir())


def test_without_room_to_note_that_older_results_are_not_sent_newer_ones_are_made_again(spool):
    states = []
    for number in range(2):
        store(spool, ct_slice(uid(1), number))
        states.append(spool.take())
        if number == 0:
            spool.judged(states[0], judge(spool, states[0]))
    with no_room_for(spool.outbox.sent_folder), pytest.raises(DataError):
        spool.judged(states[1], judge(spool, states[1]))
    spool.back(states[1])
    assert [one.name for one in spool.outbox.waiting()] == [states[0].name]
    assert spool.take() == states[1]
    spool.judged(states[1], judge(spool, states[1]))
    assert [one.name for one in spool.outbox.waiting()] == [states[1].name]


@pytest.mark.parametrize("taken", [False, True])
def test_results_that_are_being_sent_when_newer_ones_come(spool, taken):
    store(spool, ct_slice(uid(1), 0))
    first = spool.take()
    spool.judged(first, judge(spool, first))
    sending = spool.outbox.due()
    store(spool, ct_slice(uid(1), 1))
    second = spool.take()
    spool.judged(second, judge(spool, second))
    if taken:
        spool.outbox.took(sending)
    else:
        spool.outbox.postpone(sending, sending.files, "no archive")
    for outbox in (spool.outbox, Outbox(spool.root, pause=10, longest_pause=100)):
        assert [one.name for one in outbox.waiting()] == [second.name]
    (note,) = spool.outbox.sent_folder.glob("*.json")
    assert (json.loads(note.read_bytes())["error"] == "") == taken
