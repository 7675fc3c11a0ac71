"""Source of studies: an Orthanc server (Orthanc Book, "REST API of Orthanc" and "DICOMweb plugin").

The change feed names the studies. The number of the change before the first unfinished one is stored, so that
a restarted worker misses none; with it the first and the last change, by which a new database is noticed.
"""

import base64
import json
import os
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from ich_mil.errors import ConfigError
from ich_mil.files import digest, write_json
from ich_mil.serve.folder import MANUFACTURER
from ich_mil.serve.worker import LOG, Study

LOGIN_VARIABLE = "ICH_MIL_ORTHANC_LOGIN"
SECONDS, FORWARD_SECONDS = 60.0, 600.0  # time limits of a request, and of one that forwards results
PAGE = 1000  # changes in one request


def read_login(file: Path | None) -> str:
    """`user:password` from a file, else from `LOGIN_VARIABLE`, '' without either. `ConfigError`: no login."""
    login = os.environ.get(LOGIN_VARIABLE, "") if file is None else file.read_text(errors="replace")
    login = login.strip()
    if ":" not in login and (login or file):  # the text is not shown
        raise ConfigError(f"{file or LOGIN_VARIABLE}: holds no login; write user:password in one line")
    return login


class Orthanc:
    """The studies of the server at `url`; it also sends results to its modality `send` and server `stow`."""

    def __init__(
        self, url: str, out: Path, *, login: str = "", send: str | None = None, stow: str | None = None
    ) -> None:
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname or {"@", "?", "#"} & set(url):
            # the URL is not shown: it may hold a password
            raise ConfigError(
                "--orthanc must be http(s)://HOST[:PORT][/PATH], with the login in --login FILE"
            )
        self._url, self._login, self._file = url.rstrip("/"), login, out / "orthanc.json"
        targets = [("--send", "/modalities", send, "store"), ("--stow", "/dicom-web/servers", stow, "stow")]
        self._targets = [(*words, name, end) for *words, name, end in targets if name]
        self._are_checked = False
        self._pending: dict[str, int] = {}  # study: number of its first unfinished change
        self._since, self._known = _read_progress(self._file)
        self._written = (self._since, self._known)

    def waiting(self) -> list[str]:
        """Read a page of the change feed; the Orthanc IDs of the studies with unfinished changes."""
        if not self._are_checked:
            self.check_targets()
        page = self._ask(f"/changes?since={self._since}&limit={PAGE}")
        if not (self._is_same() if self._known else page["Last"] >= self._since):
            LOG.warning("Orthanc has a new database, or its studies were deleted: it is read from the start")
            self._since, self._pending, self._known = 0, {}, []
            return []
        for change in page["Changes"]:
            if change["ChangeType"] == "StableStudy":
                self._pending.setdefault(change["ID"], change["Seq"])
            # of a study that is not stable when Orthanc is killed, this is the only sign
            elif change["ChangeType"] == "NewSeries" and (study := self._find(f"{change['Path']}/study")):
                self._pending.setdefault(study["ID"], change["Seq"])
        if page["Changes"] or not self._known:
            self._known = self._ask("/changes?since=0&limit=1")["Changes"] + page["Changes"][-1:]
        self._since = page["Last"]
        self._store()
        return list(self._pending)

    def study(self, name: str) -> Study | None:
        """The CT series of a stable study, without our own results."""
        metadata = self._find(f"/studies/{name}")
        if metadata is None:
            self.settle(name)
        if metadata is None or not metadata["IsStable"]:
            return None
        inputs = {series["ID"] for series in self._ask(f"/studies/{name}/series") if _is_input(series)}
        instances = [row for row in self._ask(f"/studies/{name}/instances") if row["ParentSeries"] in inputs]

        def fetch(folder: Path) -> None:
            for instance in instances:
                (folder / instance["ID"]).write_bytes(self._call(f"/instances/{instance['ID']}/file"))

        uid = metadata["MainDicomTags"].get("StudyInstanceUID", name)
        lines = sorted(f"{instance['ID']} {instance['FileUuid']}" for instance in instances)
        return Study(digest(uid.encode()), digest(*map(str.encode, lines)), fetch)

    def settle(self, name: str) -> None:
        """Finish the changes of a study."""
        self._pending.pop(name, None)
        self._store()

    def deliver(self, results: Sequence[Path]) -> None:
        """Store DICOM files in Orthanc, where a repeated one does no harm, and let it forward them."""
        ids = [self._ask("/instances", path.read_bytes())["ID"] for path in results]
        for _, path, name, end in self._targets:
            body = json.dumps({"Resources": ids, "Synchronous": True})
            self._call(f"{path}/{quote(name, safe='')}/{end}", body.encode(), seconds=FORWARD_SECONDS)

    def check_targets(self) -> None:
        """Require the modality `send` and the server `stow`. `ConfigError`: Orthanc knows no such name."""
        for option, path, name, _ in self._targets:
            try:
                known = self._find(path) or []  # None without the DICOMweb plugin
            except HTTPError as error:
                if error.code == 403:  # the worker may send, but not ask
                    continue
                raise
            if name not in known:
                names = ", ".join(sorted(known)) or "none"
                raise ConfigError(f"{option} {name}: is no name in {path} of Orthanc; known: {names}")
        self._are_checked = True

    def _is_same(self) -> bool:
        """Whether Orthanc has a known change. Deleting a study deletes its changes; numbers are used once."""
        for known in reversed(self._known):
            found = self._ask(f"/changes?since={known['Seq'] - 1}&limit=1")["Changes"]
            if found and found[0]["Seq"] == known["Seq"]:
                return found[0] == known
        return False

    def _store(self) -> None:
        """Store the number before the first unfinished change. Of two workers any number is right."""
        finished = min(self._pending.values(), default=self._since + 1) - 1
        if (finished, self._known) != self._written:
            write_json(self._file, {"since": finished, "known": self._known})
            self._written = (finished, self._known)

    def _find(self, path: str) -> Any | None:
        """The answer to a GET request; None if there is no such resource."""
        try:
            return self._ask(path)
        except HTTPError as error:
            if error.code == 404:
                return None
            raise

    def _ask(self, path: str, body: bytes | None = None) -> Any:
        return json.loads(self._call(path, body))

    def _call(self, path: str, body: bytes | None = None, *, seconds: float = SECONDS) -> bytes:
        """Answer to a GET request, or to a POST request of `body`. `OSError`: any failure."""
        request = Request(self._url + path, data=body)
        if self._login:
            token = base64.b64encode(self._login.encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {token}")
        try:
            with urlopen(request, timeout=seconds) as answer:
                return answer.read()
        except HTTPError as error:
            error.close()
            raise
        except HTTPException as error:
            raise ConnectionError("an answer of Orthanc was cut") from error


def _read_progress(file: Path) -> tuple[int, list[dict[str, Any]]]:
    """Number of the last finished change and known changes. `ConfigError`: the file cannot be used."""
    if not file.exists():
        return 0, []
    try:
        content = json.loads(file.read_bytes())
        since, known = content["since"], content.get("known", [])
        if not isinstance(since, int) or since < 0:
            raise TypeError("since is no whole number")
        [change["Seq"] - 1 for change in known]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        remedy = 'write {"since": N} into it, or delete it to read Orthanc from the start'
        raise ConfigError(f"{file}: cannot be used ({error}); {remedy}") from error
    return since, known


def _is_input(series: dict[str, Any]) -> bool:
    tags = series["MainDicomTags"]
    return tags.get("Modality", "CT") in ("", "CT") and tags.get("Manufacturer") != MANUFACTURER
