"""Deliveries: order, pauses, superseded states, and kills between two steps."""

import json
import math
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from ich_mil.errors import DataError
from ich_mil.serve import outbox as outbox_module
from ich_mil.serve.outbox import Outbox
from tests.serve.fakes import judge, judged, no_room_for, settings_of, store
from tests.serve.judges import capture, ct_slice, uid


def open_outbox(folder):
    return Outbox(settings_of(folder, retry_seconds=10, longest_retry_seconds=100))


@pytest.fixture
def outbox(tmp_path):
    return open_outbox(tmp_path)


def put(outbox, name="a", study=1, *, n_files=1):
    files = [
        capture(ct_slice(uid(study), 0), [str(i)], outbox.root / f"{name}{i}.dcm") for i in range(n_files)
    ]
    outbox.put(name, uid(study), files)


def names(outbox):
    return [delivery.name for delivery in outbox.waiting()]


def sent(outbox):
    return [path.stem for path in outbox.sent_folder.glob("*.json")]


def test_pauses_grow_up_to_the_longest(outbox, tmp_path):
    put(outbox)
    pauses = []
    delivery = outbox.due()
    for _ in range(6):
        pauses.append(outbox.postpone(delivery, delivery.files, "down"))
        assert outbox.due() is None
        (delivery,) = outbox.waiting()
    assert pauses == [10, 20, 40, 80, 100, 100]
    again = open_outbox(tmp_path).due()  # due at once after a restart
    assert (again.attempts, again.error, again.files) == (6, "down", delivery.files)
    assert outbox.postpone(replace(again, attempts=5000), again.files, "down") == 100


def test_only_files_that_were_not_accepted_are_sent_again_after_a_restart(outbox, tmp_path):
    put(outbox, n_files=2)
    delivery = outbox.due()
    outbox.postpone(delivery, delivery.files[1:], "down")
    again = open_outbox(tmp_path)
    assert again.due().files == delivery.files[1:]
    again.took(again.due())
    assert open_outbox(tmp_path).due() is None


def test_delivery_that_has_waited_longest_is_due_first(outbox, monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    put(outbox, "a", 1)
    put(outbox, "b", 2)
    first, second = outbox.waiting()
    outbox.postpone(second, second.files, "down")
    now = 5.0
    outbox.postpone(first, first.files, "down")
    now = 20.0
    assert outbox.due().name == second.name


def test_delivery_whose_end_cannot_be_written_is_still_waiting(outbox, tmp_path):
    put(outbox)
    delivery = outbox.due()
    with no_room_for(outbox.sent_folder), pytest.raises(DataError):
        outbox.took(delivery)
    assert outbox.due() == open_outbox(tmp_path).due() == delivery


@pytest.mark.parametrize(
    "note", ["{", "[]", '{"name": "x", "files": [], "sops": []}', '{"files": 1, "sops": 1}']
)
def test_damaged_record_is_named(outbox, tmp_path, note):
    (outbox.waiting_folder / "x.json").write_text(note)
    with pytest.raises(DataError, match=r"x\.json"):
        open_outbox(tmp_path)


def test_results_of_a_more_complete_state_supersede_older_ones(outbox, tmp_path):
    """Otherwise the archive would receive the result of a part of the study last."""
    put(outbox, "a")
    outbox.postpone(outbox.due(), ["a0.dcm"], "no archive")
    put(outbox, "b")
    again = open_outbox(tmp_path)
    assert names(outbox) == names(again) == ["b"]
    assert sent(again) == ["a"]  # so that it is deleted in time
    assert again.knows("a")


@pytest.fixture
def killed_at(monkeypatch):
    """Function that kills the outbox before its step of this number that writes or deletes a record."""

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
    ("step", "waiting", "finished"), [(0, ["a"], []), (1, [], ["a"]), (2, [], ["a"])], ids=str
)
@pytest.mark.parametrize("newer", ["0", "b"])
def test_kill_while_results_are_superseded(outbox, tmp_path, killed_at, step, waiting, finished, newer):
    """The older results are sent first or not at all, and the newer ones are made again."""
    put(outbox, "a")
    killed_at(step)
    with pytest.raises(KeyboardInterrupt):
        put(outbox, newer)
    again = open_outbox(tmp_path)
    assert (names(again), sent(again)) == (waiting, finished)
    assert (again.knows("a"), again.knows(newer)) == (True, False)
    put(again, newer)
    assert names(again) == names(open_outbox(tmp_path)) == [newer]


def test_kill_after_a_send_was_recorded(outbox, tmp_path, killed_at):
    put(outbox)
    killed_at(1)
    with pytest.raises(KeyboardInterrupt):
        outbox.took(outbox.due())
    again = open_outbox(tmp_path)
    assert (again.due(), sent(again)) == (None, ["a"])
    assert not list(again.waiting_folder.iterdir())


def test_newer_results_are_made_again_if_older_ones_cannot_be_superseded(spool):
    first = judged(spool)
    store(spool, ct_slice(uid(1), 1))
    second = spool.take()
    with no_room_for(spool.outbox.sent_folder), pytest.raises(DataError):
        spool.judged(second, judge(spool, second))
    spool.back(second)
    assert names(spool.outbox) == [first.name]
    assert spool.take() == second
    spool.judged(second, judge(spool, second))
    assert names(spool.outbox) == [second.name]


def test_what_the_archive_has_of_a_study(spool):
    """Not what waits, what was superseded before it was sent, and what belongs to another study."""
    judged(spool, 2, sent=True)
    store(spool, ct_slice(uid(1), 0))
    first = spool.take()
    spool.judged(first, judge(spool, first, "a", "b"))
    outbox = spool.outbox
    assert outbox.sent(first.key) == []
    delivery = outbox.due()
    outbox.postpone(delivery, delivery.files[1:], "the archive has no room")
    second = judged(spool, 1, 1)  # supersedes the rest of the first
    assert [path.name for path in outbox.sent(first.key)] == ["a.dcm"]
    outbox.took(outbox.due())
    assert {(path.parent.name, path.name) for path in outbox.sent(first.key)} == {
        (first.name, "a.dcm"),
        (second.name, "capture.dcm"),
    }


def test_without_hope_a_delivery_waits_for_the_next_start(outbox, tmp_path):
    put(outbox, "a")
    delivery = outbox.due()
    assert outbox.postpone(delivery, delivery.files, "too large", may_heal=False) == math.inf
    assert outbox.due() is None
    assert [one.error for one in outbox.waiting()] == ["too large"]
    assert open_outbox(tmp_path).due().name == "a"


@pytest.mark.parametrize("taken", [False, True])
def test_results_superseded_during_their_send(outbox, tmp_path, taken):
    put(outbox, "a")
    sending = outbox.due()
    put(outbox, "b")
    if taken:
        outbox.took(sending)
    else:
        outbox.postpone(sending, sending.files, "no archive")
    assert names(outbox) == names(open_outbox(tmp_path)) == ["b"]
    (note,) = outbox.sent_folder.glob("*.json")
    assert (json.loads(note.read_bytes())["error"] == "") == taken
