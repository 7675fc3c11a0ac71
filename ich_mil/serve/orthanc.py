"""Source of studies: an Orthanc server (Orthanc Book, "REST API of Orthanc" and "DICOMweb plugin").

The change feed names the studies. The number of the change before the first unfinished one is stored, so that
a restarted worker misses none.
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
        self._targets = [f"/modalities/{quote(send, safe='')}/store"] if send else []
        self._targets += [f"/dicom-web/servers/{quote(stow, safe='')}/stow"] if stow else []
        self._pending: dict[str, int] = {}  # study: number of its first unfinished change
        self._since: int = json.loads(self._file.read_bytes())["since"] if self._file.exists() else 0
        self._written = self._since

    def waiting(self) -> list[str]:
        """Read a page of the change feed; the Orthanc IDs of the studies with unfinished changes."""
        page = self._ask(f"/changes?since={self._since}&limit={PAGE}")
        if page["Last"] < self._since:
            LOG.warning("Orthanc has fewer changes than before: it is a new one, and is read from the start")
            self._since, self._pending = 0, {}
            return []
        for change in page["Changes"]:
            if change["ChangeType"] == "StableStudy":
                self._pending.setdefault(change["ID"], change["Seq"])
            # of a study that is not stable when Orthanc is killed, this is the only sign
            elif change["ChangeType"] == "NewSeries" and (study := self._find(f"{change['Path']}/study")):
                self._pending.setdefault(study["ID"], change["Seq"])
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
            for number, instance in enumerate(instances):
                (folder / f"{number:05}.dcm").write_bytes(self._call(f"/instances/{instance['ID']}/file"))

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
        for target in self._targets:
            body = json.dumps({"Resources": ids, "Synchronous": True})
            self._call(target, body.encode(), seconds=FORWARD_SECONDS)

    def _store(self) -> None:
        """Store the number before the first unfinished change. Of two workers any number is right."""
        finished = min(self._pending.values(), default=self._since + 1) - 1
        if finished != self._written:
            write_json(self._file, {"since": finished})
            self._written = finished

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


def _is_input(series: dict[str, Any]) -> bool:
    tags = series["MainDicomTags"]
    return tags.get("Modality", "CT") in ("", "CT") and tags.get("Manufacturer") != MANUFACTURER
