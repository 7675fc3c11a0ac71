"""The queue on disk: names, silence, states and restarts. No network."""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest
from pydicom import dcmread

from ich_mil.errors import DataError
from ich_mil.serve.failures import LEDGER_LINES
from ich_mil.serve.spool import SpoolFullError
from ich_mil.serve.studies import RefusedError
from tests.serve.fakes import failed, judge, judged, no_room_for, open_spool, store, unreadable
from tests.serve.judges import capture, ct_slice, uid


def every_file(root):
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def memory(name):
    """A value of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


@pytest.fixture
def clock(monkeypatch):
    """List whose first value is the time of time.monotonic."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_study_is_taken_once_after_the_silence_period(spool, clock):
    spool.settings = replace(spool.settings, silence_seconds=30)
    image = ct_slice(uid(1), 0)
    assert store(spool, image)
    clock[0] = 29.0
    assert not store(spool, image)  # a repeated object ends the silence
    clock[0] = 31.0
    assert spool.take() is None
    clock[0] = 60.0
    job = spool.take()
    assert (job.study_uid, len(list(job.objects.glob("*.dcm")))) == (uid(1), 1)
    assert spool.take() is None
    spool.back(job)
    assert spool.take() is None
    clock[0] = 91.0
    assert spool.take() == job
    spool.judged(job, judge(spool, job))
    assert not store(spool, image)  # but a repeated object does not reopen a finished study
    assert spool.counts()["queued"] == 0


@pytest.mark.parametrize("sop_uid", ["", "1.8"])
def test_repeated_object_is_stored_once(spool, sop_uid):
    """The object's own UID counts, not that of the request."""
    image = ct_slice(uid(1), 0)
    assert store(spool, image)
    before = every_file(spool.root)
    assert not store(spool, image, sop_uid=sop_uid)
    assert every_file(spool.root) == before


def test_returned_study_is_the_last_of_the_queue(spool):
    for number in range(2):
        store(spool, ct_slice(uid(number), 0))
    job = spool.take()
    assert (job.study_uid, spool.counts()["queued"], spool.counts()["judging"]) == (uid(0), 1, 1)
    spool.back(job)
    assert (spool.counts()["queued"], spool.counts()["judging"]) == (2, 0)
    assert [spool.take().study_uid, spool.take().study_uid] == [uid(1), uid(0)]


def test_only_the_user_of_the_node_can_read_the_spool(spool):
    for folder in (spool.root, *(path for path in spool.root.iterdir() if path.is_dir())):
        assert folder.stat().st_mode & 0o077 == 0, folder


@pytest.fixture
def synced(monkeypatch):
    """Function that records each fsync: the inode, and the DICOM files below `root` at that moment."""
    calls = []

    def watch(root):
        def fsync(descriptor):
            calls.append((os.fstat(descriptor).st_ino, {path.name for path in root.rglob("*.dcm")}))

        monkeypatch.setattr(os, "fsync", fsync)
        return calls

    return watch


def test_object_is_synced_before_it_is_renamed_and_its_folders_after(spool, synced):
    calls = synced(spool.root / "studies")
    store(spool, ct_slice(uid(1), 0))
    (made,) = spool.root.glob("studies/*/objects/*.dcm")
    study = made.parent.parent
    assert (made.stat().st_ino, set()) in calls
    assert (made.parent.stat().st_ino, {made.name}) in calls
    assert {study.stat().st_ino, study.parent.stat().st_ino} <= {number for number, _ in calls}


def test_results_and_their_folders_are_synced_before_they_are_renamed(spool, synced, monkeypatch):
    store(spool, ct_slice(uid(1), 0))
    job = spool.take()
    work = spool.work(job)
    (work / "dicom" / "scan").mkdir(parents=True)
    made = capture(ct_slice(uid(1), 0), ["1.2"], work / "dicom" / "scan" / "capture.dcm")
    folders = {path.stat().st_ino for path in (work / "dicom" / "scan", work / "dicom", work)}
    calls = synced(spool.root / "results")
    spool.judged(job, [made])
    (kept,) = spool.root.glob("results/*/*/*/*.dcm")
    assert {kept.stat().st_ino, *folders} <= {number for number, found in calls if not found}
    assert ((spool.root / "results").stat().st_ino, {kept.name}) in calls


def test_last_bytes_of_an_object_are_kept(spool):
    for index in range(2):
        store(spool, ct_slice(uid(1), index))
    first = spool.take()
    spool.back(first)
    assert store(spool, ct_slice(uid(1), 0, PixelData=bytes(range(128))))
    second = spool.take()
    assert len(list(second.objects.glob("*.dcm"))) == 2
    assert (second.key, second.mark == first.mark) == (first.key, False)
    size = sum(path.stat().st_size for path in second.objects.parent.rglob("*") if path.is_file())
    assert spool.counts()["bytes"] == pytest.approx(size, abs=200)  # without study.json


def test_last_bytes_are_kept_after_a_kill_before_the_first_were_deleted(tmp_path):
    """The sender had no answer and repeats an object that is already present."""
    first, second = ct_slice(uid(1), 0), ct_slice(uid(1), 0, PixelData=bytes([1]) * 128)
    spool = open_spool(tmp_path)
    store(spool, first)
    (old,) = spool.take().objects.iterdir()
    content = old.read_bytes()
    store(spool, second)
    spool.close()
    old.write_bytes(content)
    spool = open_spool(tmp_path)
    assert not store(spool, second)
    (kept,) = spool.take().objects.iterdir()
    assert dcmread(kept).PixelData == second.PixelData
    spool.close()


def test_slices_of_one_uid_at_several_positions_are_all_kept(spool):
    for z in (0, 1, 2, 1):
        store(spool, ct_slice(uid(1), z, ImagePositionPatient=[0, 0, z], SOPInstanceUID="1.9"))
    kept = [dcmread(path).ImagePositionPatient[2] for path in spool.take().objects.iterdir()]
    assert sorted(kept) == [0, 1, 2]


@pytest.mark.parametrize(
    "study", ["../../../etc/passwd", "/etc/passwd", "..", "a/b\\c", "1.2\n3", "ID_0a1b", "ü" * 20, "-rf *"]
)
def test_uid_does_not_lead_out_of_the_spool(tmp_path, study, recwarn):
    spool = open_spool(tmp_path / "a")
    image = ct_slice(uid(1), 0, SpecificCharacterSet="ISO_IR 192")
    image.SOPInstanceUID = image.StudyInstanceUID = study
    path = spool.incoming / "one.dcm"
    image.file_meta.MediaStorageSOPInstanceUID = uid(9)
    image.save_as(path, enforce_file_format=True)
    spool.store(path, sop_uid=study)
    job = spool.take()
    objects = f"studies/{job.key}/objects/{next(job.objects.iterdir()).name}"
    names = (".lock", f"studies/{job.key}/study.json", objects)
    assert every_file(tmp_path) == {f"a/spool/{name}" for name in names}
    assert job.key.isalnum()
    spool.close()
    recwarn.clear()  # pydicom warns of such UIDs


@pytest.mark.parametrize("study", ["", " ", "1" * 65, "1." * 5000])
def test_object_without_a_study_uid_is_refused(spool, study, recwarn):
    with pytest.raises(RefusedError):
        store(spool, ct_slice(uid(1), 0, StudyInstanceUID=study))
    assert spool.take() is None
    recwarn.clear()


@pytest.mark.parametrize("content", [b"", b"DICM", bytes(9999), bytes(128) + b"DICM" + bytes(range(256)) * 9])
def test_file_that_is_not_dicom_is_refused(spool, content):
    path = spool.incoming / "one.dcm"
    path.write_bytes(content)
    with pytest.raises(RefusedError):
        spool.store(path, sop_uid="1.2")


def test_object_without_a_uid_has_that_of_the_request(spool):
    image = ct_slice(uid(1), 0)
    del image.SOPInstanceUID
    assert [store(spool, image, sop_uid=sop_uid) for sop_uid in ("1.2", "1.2", "1.3", "")] == [
        True,
        False,
        True,
        True,
    ]


def test_judged_study_is_judged_again_after_new_objects_only(spool):
    job = judged(spool)
    assert not store(spool, ct_slice(uid(1), 0))
    assert spool.take() is None
    again = failed(spool, number=1)
    assert (again.key, again.mark == job.mark) == (job.key, False)
    assert spool.take() is None
    assert [delivery.name for delivery in spool.outbox.waiting()] == [job.name]
    note = json.loads((spool.root / "failed" / f"{again.name}.json").read_bytes())
    assert (note["reason"], note["study_uid"], note["ledger"]) == ("why", uid(1), [])


@pytest.mark.parametrize("n_lines", [1, 1000])
def test_failure_record_has_the_last_lines_of_the_ledger_and_no_paths_of_the_work_folder(spool, n_lines):
    store(spool, ct_slice(uid(1), 0))
    job = spool.take()
    work = spool.work(job)
    ledger = work / "prepared" / "ledger.csv"
    ledger.parent.mkdir()
    lines = ["scan,file,code,detail", *(f"s,{number},flat,\xe4" for number in range(n_lines))]
    ledger.write_bytes("".join(f"{line}\n" for line in lines).encode("latin-1"))
    spool.fail(job, f"{job.objects}: no CT slice; {ledger} says why; {work}/features: bad; {work}: bad")
    assert not work.exists()
    note = json.loads((spool.root / "failed" / f"{job.name}.json").read_bytes())
    assert str(work) not in note["reason"]
    assert f"{job.objects}: no CT slice" in note["reason"]
    assert (note["key"], note["mark"], note["objects"]) == (job.key, job.mark, str(job.objects))
    kept = [line.replace("\xe4", "\ufffd") for line in lines[1:][-LEDGER_LINES:]]
    assert note["ledger"] == [lines[0], *kept]


def test_study_with_lost_results_is_judged_again(spool):
    job = judged(spool)
    delivery = spool.outbox.due()
    (spool.root / delivery.files[0]).unlink()
    with unreadable(job.objects.parent / "study.json"):  # for a while
        spool.lost(delivery)
    assert (spool.outbox.waiting(), spool.outbox.due()) == ([], None)
    assert every_file(spool.root / "outbox") == every_file(spool.root / "results") == set()
    again = spool.take()
    assert again == job
    spool.judged(again, judge(spool, again))
    assert [waiting.files for waiting in spool.outbox.waiting()] == [delivery.files]
    assert spool.take() is None


def test_object_received_during_judging_is_not_forgotten(spool):
    store(spool, ct_slice(uid(1), 0))
    job = spool.take()
    store(spool, ct_slice(uid(1), 1))
    assert spool.take() is None
    spool.judged(job, judge(spool, job))
    assert len(list(spool.take().objects.iterdir())) == 2


def test_own_results_sent_back_are_not_judged_also_after_a_restart(tmp_path):
    spool = open_spool(tmp_path)
    store(spool, ct_slice(uid(1), 0))
    job = spool.take()
    spool.judged(job, judge(spool, job, "a", "b"))
    spool.outbox.took(spool.outbox.due())
    for _ in range(2):
        for result in spool.root.glob("results/*/*.dcm"):
            path = spool.incoming / "one.dcm"
            path.write_bytes(result.read_bytes())
            assert not spool.store(path, sop_uid="")
            assert spool.take() is None
            assert not path.exists()
        spool.close()
        spool = open_spool(tmp_path)
    spool.close()


def kill(spool):
    """Release the lock, which is all that kill -9 does."""
    spool._held.close()


def test_restart_finds_every_state(tmp_path):
    spool = open_spool(tmp_path)
    for number in range(4):
        store(spool, ct_slice(uid(number), 0))
    done, lost, working = spool.take(), spool.take(), spool.take()
    spool.judged(done, judge(spool, done))
    spool.fail(lost, "why")
    (spool.work(working) / "half.dcm").write_bytes(b"half")
    (spool.incoming / "half.dcm").write_bytes(b"half")
    kill(spool)
    spool = open_spool(tmp_path)
    kept = [path for name in ("studies", "results") for path in (spool.root / name).rglob("*.*")]
    counts = spool.counts()
    assert counts["bytes"] == sum(path.stat().st_size for path in kept if path.is_file())
    assert counts["queued"] == 2
    assert {spool.take().study_uid, spool.take().study_uid} == {uid(2), uid(3)}
    assert spool.take() is None
    assert not list(spool.incoming.iterdir())
    assert not list((spool.root / "work").iterdir())
    assert [delivery.study_uid for delivery in spool.outbox.waiting()] == [uid(0)]
    spool.close()


def test_results_without_a_delivery_are_made_again(tmp_path, monkeypatch):
    """Killed in between, or the delivery cannot be written."""
    spool = open_spool(tmp_path)
    store(spool, ct_slice(uid(1), 0))
    job = spool.take()
    with no_room_for(spool.outbox.waiting_folder), pytest.raises(DataError):
        spool.judged(job, judge(spool, job))
    spool.back(job)
    assert spool.take() == job
    monkeypatch.setattr(spool.outbox, "put", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        spool.judged(job, judge(spool, job))
    kill(spool)
    spool = open_spool(tmp_path)
    again = spool.take()
    assert again == job
    spool.judged(again, judge(spool, again))
    assert [Path(spool.root / delivery.files[0]).is_file() for delivery in spool.outbox.waiting()] == [True]
    spool.close()


@pytest.mark.parametrize("part", ["study.json", "objects"])
def test_unreadable_study_waits_behind_the_others(tmp_path, part):
    spool = open_spool(tmp_path)
    for number in range(2):
        store(spool, ct_slice(uid(number), 0))
    first = spool.take()
    spool.back(first)
    spool.back(spool.take())
    with unreadable(first.objects.parent / part):
        with pytest.raises(OSError, match="symbolic links"):
            spool.take()
        assert spool.take().study_uid == uid(1)
        assert spool.counts()["queued"] == 1
    assert spool.take() == first
    spool.close()
    with (
        unreadable(first.objects.parent / part),
        pytest.raises(DataError),
    ):  # nor is it forgotten at the start
        open_spool(tmp_path)
    spool = open_spool(tmp_path)
    assert spool.counts()["queued"] == 2
    spool.close()


def test_results_of_a_study_that_cannot_be_read_at_the_end_are_kept(spool):
    store(spool, ct_slice(uid(1), 0))
    job = spool.take()
    with unreadable(job.objects.parent / "study.json"):
        spool.judged(job, judge(spool, job))
    assert [delivery.name for delivery in spool.outbox.waiting()] == [job.name]
    assert spool.take() is None
    assert (spool.counts()["queued"], spool.counts()["judging"]) == (0, 0)


@pytest.fixture
def often():
    """Make threads take turns often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_threads_store_each_object_and_take_each_study_once(spool, often):
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


@pytest.mark.parametrize("read", [lambda box: box.is_ours("1"), lambda box: box.knows_any("b")])
def test_outbox_is_read_while_it_is_written(spool, often, read):
    result = capture(ct_slice(uid(1), 0), [], spool.root / "results" / "result.dcm")
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [spool.outbox.put(f"a-{n}", uid(n), [result]) for n in range(40)])
        while not writing.done():
            read(spool.outbox)
            spool.outbox.due()
    assert len(spool.outbox.waiting()) == 40


def test_folders_that_cannot_be_a_spool(spool, tmp_path):
    with pytest.raises(DataError):  # of another node
        open_spool(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file"):
        open_spool(tmp_path, spool=tmp_path / "file")


@pytest.mark.parametrize("free", [1e6, None])
def test_spool_without_room_or_folder_refuses_objects(spool, monkeypatch, free):
    """Whatever `free_gb` is."""
    if free is None:
        spool.incoming.rename(spool.root / "gone")
    else:
        monkeypatch.setattr(spool, "free_bytes", lambda: free)
    path = spool.root / "one.dcm"
    ct_slice(uid(1), 0).save_as(path, enforce_file_format=True)
    with pytest.raises(SpoolFullError):
        spool.store(path, sop_uid="1.2")
    assert str(spool.root) in spool.problem()
    if free is None:
        (spool.root / "gone").rename(spool.incoming)
