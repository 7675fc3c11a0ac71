"""Orthanc as a source of studies, with faults, by a server that answers as Orthanc does."""

import json
import shutil

import pytest

from ich_mil.errors import ConfigError
from ich_mil.serve import orthanc as orthanc_module
from ich_mil.serve.orthanc import LOGIN_VARIABLE, Orthanc, read_login
from tests.serve.fakes import ct_slice, key, orthanc_id, uid


def study(number, *slices, **changes):
    return [ct_slice(uid(number), index, **changes) for index in slices or (0, 1)]


def since(tmp_path):
    file = tmp_path / "out" / "orthanc.json"
    return json.loads(file.read_text())["since"] if file.exists() else 0


def status(tmp_path, number):
    return json.loads((tmp_path / "out" / key(uid(number)) / "state.json").read_text())["status"]


def test_results_return_and_are_not_judged(tmp_path, orthanc, on_orthanc, calls):
    orthanc.store(*study(1))
    orthanc.store(*study(2))
    worker = on_orthanc()
    for _ in range(3):
        worker.poll()
    assert orthanc.results() == {uid(1): 1, uid(2): 1}
    assert since(tmp_path) == 4  # with the changes that the results made
    orthanc.store(*study(1))  # the same study again
    on_orthanc().poll()
    assert (len(calls), orthanc.posts["/instances"]) == (2, 2)
    orthanc.store(*study(1, 2))  # it grows
    worker.poll()
    assert orthanc.results() == {uid(1): 2, uid(2): 1}
    (home,) = [path for path in (tmp_path / "out").iterdir() if path.name == key(uid(1))]
    sent = json.loads((home / "state.json").read_text())["sent"]
    replaced = json.loads((home / sent[1] / "replaced.json").read_text())
    assert replaced == [uid(*sorted(uid(uid(1), k) for k in (0, 1)))]


def test_overwritten_slice_is_new_and_a_ct_image_of_ours_is_not(orthanc, on_orthanc, calls):
    orthanc.store(*study(1))
    worker = on_orthanc()
    worker.poll()
    orthanc.store(ct_slice(uid(1), 7, Manufacturer="ich_mil", SeriesInstanceUID=uid("ours")))
    worker.poll()
    assert len(calls) == 1
    orthanc.store(*study(1, 0, PixelData=bytes([1]) * 128))
    worker.poll()
    assert (len(calls), orthanc.results()) == (2, {uid(1): 1})


def test_study_is_judged_when_it_is_stable(tmp_path, orthanc, on_orthanc, calls):
    orthanc.is_stable = False
    orthanc.store(*study(1), change="NewSeries")
    worker = on_orthanc()
    worker.poll()
    assert (len(calls), since(tmp_path)) == (0, 0)
    orthanc.is_stable = True  # after a restart Orthanc says so, without a change
    on_orthanc().poll()
    assert orthanc.results() == {uid(1): 1}


def test_study_without_ct_and_a_deleted_study(tmp_path, orthanc, on_orthanc, calls):
    orthanc.store(*study(1, Modality="MR"))
    orthanc.store(*study(2))
    for index in (0, 1):
        del orthanc.tags[uid(uid(2), index)]
    on_orthanc().poll()
    assert (len(calls), since(tmp_path), status(tmp_path, 1)) == (0, 2, "failed")
    assert not (tmp_path / "out" / key(uid(2))).exists()


def test_feed_is_read_in_pages(tmp_path, orthanc, on_orthanc, calls, monkeypatch):
    monkeypatch.setattr(orthanc_module, "PAGE", 2)
    for number in range(5):
        orthanc.store(*study(number, 0))
    worker = on_orthanc()
    for _ in range(6):
        worker.poll()
    assert orthanc.results() == {uid(number): 1 for number in range(5)}
    assert since(tmp_path) == 10


@pytest.mark.parametrize("path", ["/changes", "/studies", "/instances/", "/instances", "/modalities"])
@pytest.mark.parametrize("code", [401, 503, -1])
def test_archive_is_away_for_a_while(tmp_path, orthanc, on_orthanc, calls, path, code, caplog):
    orthanc.store(*study(1))
    orthanc.fault = lambda asked: code if asked.startswith(path) else 0
    worker = on_orthanc(send="PACS")
    for _ in range(20):
        worker.poll()
    assert since(tmp_path) == 0
    assert len(caplog.messages) == 1
    orthanc.fault = lambda asked: 0
    (worker if code > 0 else on_orthanc(send="PACS")).poll()
    assert (len(calls), orthanc.results()) == (1, {uid(1): 1})
    assert since(tmp_path) >= 1
    assert orthanc.bodies[-1]["Resources"]


def test_nothing_listens(tmp_path, orthanc, on_orthanc, calls, caplog):
    worker = on_orthanc()
    orthanc.stop()
    worker.poll()
    worker.poll()
    assert ["Connection refused" in message for message in caplog.messages] == [True]


def test_one_study_in_trouble_holds_only_the_number_of_its_change(tmp_path, orthanc, on_orthanc, calls):
    orthanc.store(*study(1))
    orthanc.store(*study(2))
    orthanc.fault = lambda asked: 500 if asked == f"/instances/{orthanc_id(uid(uid(1), 0))}/file" else 0
    worker = on_orthanc()
    worker.poll()
    assert (orthanc.results(), since(tmp_path)) == ({uid(2): 1}, 0)
    orthanc.fault = lambda asked: 0
    worker.poll()
    assert orthanc.results() == {uid(1): 1, uid(2): 1}
    assert since(tmp_path) >= 2


def test_results_are_forwarded_by_orthanc(orthanc, on_orthanc, calls):
    orthanc.store(*study(1))
    on_orthanc(send="PACS 1", stow="cloud").poll()
    assert orthanc.posts == {
        "/instances": 1,
        "/modalities/PACS%201/store": 1,
        "/dicom-web/servers/cloud/stow": 1,
    }
    first, second = orthanc.bodies
    assert first == second
    assert (len(first["Resources"]), first["Synchronous"]) == (1, True)


def test_results_that_wait_are_dropped_when_the_study_grows(tmp_path, orthanc, on_orthanc, calls):
    orthanc.store(*study(1))
    orthanc.fault = lambda asked: 507 if asked == "/instances" else 0
    worker = on_orthanc()
    worker.poll()
    assert status(tmp_path, 1) == "judged"
    orthanc.store(*study(1, 2))
    worker.poll()
    orthanc.fault = lambda asked: 0
    worker.poll()
    assert orthanc.results() == {uid(1): 1}
    assert len(calls) == 2


def test_new_orthanc_is_read_from_the_start(tmp_path, orthanc, on_orthanc, calls):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "orthanc.json").write_text('{"since": 5000}')
    orthanc.store(*study(1))
    worker = on_orthanc()
    worker.poll()
    worker.poll()
    assert orthanc.results() == {uid(1): 1}


@pytest.mark.parametrize("is_down", [True, False])
def test_new_database_with_more_changes_is_read_from_the_start(orthanc, on_orthanc, calls, caplog, is_down):
    orthanc.store(*study(1))
    worker = on_orthanc()
    worker.poll()
    worker.poll()
    orthanc.renew()
    for number in range(2, 9):
        orthanc.store(*study(number))
    worker = on_orthanc() if is_down else worker
    for _ in range(3):
        worker.poll()
    assert orthanc.results() == {uid(number): 1 for number in range(2, 9)}
    assert ["new database" in message for message in caplog.messages] == [True]


@pytest.mark.parametrize("deleted", [1, 2])
def test_deleted_study_is_no_sign_of_a_new_database(tmp_path, orthanc, on_orthanc, calls, caplog, deleted):
    for number in (1, 2):
        orthanc.store(*study(number))
    worker = on_orthanc()
    worker.poll()
    worker.poll()
    orthanc.delete(uid(deleted))
    on_orthanc().poll()
    orthanc.store(*study(3))
    on_orthanc().poll()
    assert orthanc.results() == {uid(3 - deleted): 1, uid(3): 1}
    assert caplog.messages == []


def test_study_that_is_deleted_and_sent_again_gets_its_results_back(tmp_path, orthanc, on_orthanc, calls):
    orthanc.store(*study(1))
    orthanc.store(*study(2))
    worker = on_orthanc(send="PACS")
    worker.poll()
    for number in (1, 2):
        orthanc.delete(uid(number))  # as Orthanc does when its disk is full
    worker.poll()
    assert orthanc.results() == {}
    orthanc.store(*study(1))
    for _ in range(3):
        worker.poll()
    assert orthanc.results() == {uid(1): 1}
    assert (len(calls), orthanc.posts["/instances"], len(orthanc.bodies)) == (2, 3, 3)
    assert status(tmp_path, 1) == "done"


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"since": "608"}', '{"since": -1}', '{"since": 1, "known": [0]}']
)
def test_damaged_number_of_the_feed(tmp_path, orthanc, on_orthanc, content):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "orthanc.json").write_text(content)
    with pytest.raises(ConfigError, match=r"orthanc\.json: .*delete it"):
        on_orthanc()


def test_number_of_the_feed_can_be_set(tmp_path, orthanc, on_orthanc, calls):
    for number in (1, 2):
        orthanc.store(*study(number))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "orthanc.json").write_text('{"since": 1}')
    worker = on_orthanc()
    for _ in range(3):
        worker.poll()
    assert orthanc.results() == {uid(2): 1}


@pytest.mark.parametrize(("option", "known"), [("send", "PACS, PACS 1"), ("stow", "cloud")])
def test_unknown_name_of_a_modality_or_server(orthanc, tmp_path, on_orthanc, option, known):
    source = Orthanc(orthanc.url, tmp_path, **{option: "PASC"})
    with pytest.raises(ConfigError, match=rf"--{option} PASC.*; known: {known}$"):
        source.check_targets()
    worker = on_orthanc(**{option: "PASC"})  # Orthanc was away when it was started
    with pytest.raises(ConfigError, match=f"--{option} PASC"):
        worker.poll()


def test_name_that_the_worker_may_not_ask_for_is_used(orthanc, on_orthanc, calls):
    orthanc.store(*study(1))
    orthanc.fault = lambda asked: 403 if asked == "/modalities" else 0
    on_orthanc(send="PASC").poll()
    assert orthanc.posts["/modalities/PASC/store"] == 1


def test_slices_are_named_by_the_id_of_orthanc(tmp_path, orthanc):
    orthanc.store(*study(1))
    orthanc_id_of_study = orthanc_id(uid(1))
    Orthanc(orthanc.url, tmp_path / "out").study(orthanc_id_of_study).fetch(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {orthanc_id(uid(uid(1), index)) for index in (0, 1)}


def test_two_workers_share_the_studies(tmp_path, orthanc, on_orthanc, calls):
    one, two = on_orthanc(), on_orthanc()
    for number in range(4):
        orthanc.store(*study(number))
        (one if number % 2 else two).poll()
    one.poll()
    two.poll()
    assert len(calls) == 4
    assert orthanc.results() == {uid(number): 1 for number in range(4)}
    assert orthanc.posts["/instances"] == 4


def test_lost_output_gives_the_same_uids(tmp_path, orthanc, on_orthanc, calls):
    orthanc.store(*study(1))
    on_orthanc().poll()
    shutil.rmtree(tmp_path / "out")
    on_orthanc().poll()
    assert (len(calls), orthanc.posts["/instances"]) == (2, 2)
    assert orthanc.results() == {uid(1): 1}


@pytest.mark.parametrize("source", ["file", "variable"])
def test_login_is_sent_and_not_logged(tmp_path, orthanc, on_orthanc, calls, monkeypatch, caplog, source):
    monkeypatch.setenv(LOGIN_VARIABLE, "a:secret")
    file = tmp_path / "login"
    file.write_text("a:secret\n")
    orthanc.fault = lambda asked: 401
    on_orthanc(login=read_login(file if source == "file" else None)).poll()
    assert orthanc.logins == {"Basic YTpzZWNyZXQ="}
    assert len(caplog.messages) == 1
    assert "secret" not in caplog.text


def test_login_that_cannot_be_used_is_not_shown(tmp_path, monkeypatch):
    monkeypatch.delenv(LOGIN_VARIABLE, raising=False)
    assert read_login(None) == ""
    for content in (b"secret", b"", b"\xff"):
        (tmp_path / "login").write_bytes(content)
        with pytest.raises(ConfigError, match="user:password") as caught:
            read_login(tmp_path / "login")
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["localhost:8042", "ftp://host", "http://a:secret@host", "http://host?x=1"])
def test_unusable_url(tmp_path, url):
    with pytest.raises(ConfigError, match="--orthanc") as caught:
        Orthanc(url, tmp_path)
    assert "secret" not in str(caught.value)
