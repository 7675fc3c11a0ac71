"""STOW-RS between an outbox and an HTTP server that answers as DICOM PS3.18 10.5 says."""

import base64
import socket
import ssl
import subprocess
import threading
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO

import pytest
from pydicom import Dataset, dcmread

from ich_mil.errors import ConfigError
from ich_mil.serve import archive as archive_module
from ich_mil.serve.outbox import Outbox
from ich_mil.serve.settings import SECRET_VARIABLE, ArchiveSettings, ServeSettings
from ich_mil.settings import read_settings
from tests.serve.fakes import free_port, notes, send, settings_of, wait_for
from tests.serve.judges import capture, ct_slice, uid

pytest.importorskip("dicomweb_client")


CLOSED = "closed"


class Service(ThreadingHTTPServer):
    """DICOMweb service; `failing`: UID -> failure reason or `CLOSED`, `status`: of all answers, if not 0."""

    daemon_threads = True

    def __init__(self, *, tls=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.failing, self.status, self.location = {}, 0, ""
        self.mentions, self.kind, self.body = True, "application/dicom+json; charset=utf-8", None
        self.stored, self.paths, self.headers = {}, [], []
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.url = f"http{'s' if tls else ''}://localhost:{self.server_address[1]}/dicom-web"

    def handle_error(self, request, client_address):
        """A client that refuses the certificate is no fault of the server."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self._answer(200, b"<html>log in</html>", "text/html")

    def do_POST(self):
        service = self.server
        images = self._images()
        service.paths.append(self.path)
        service.headers.append(dict(self.headers))
        if service.status:
            self._answer(service.status, b"", "text/plain")
            return
        answer = Dataset()
        answer.ReferencedSOPSequence, answer.FailedSOPSequence = [], []
        for image in images:
            item = Dataset()
            item.ReferencedSOPClassUID = image.SOPClassUID
            item.ReferencedSOPInstanceUID = image.SOPInstanceUID
            if service.failing.get(image.SOPInstanceUID) == CLOSED:
                self.close_connection = True
                return
            if reason := service.failing.get(image.SOPInstanceUID):
                item.FailureReason = reason
                answer.FailedSOPSequence.append(item)
            elif service.mentions:
                answer.ReferencedSOPSequence.append(item)
                service.stored[image.SOPInstanceUID] = image
        n_failed = len(answer.FailedSOPSequence)
        status = 200 if not n_failed else 409 if n_failed == len(images) else 202
        body = answer.to_json().encode() if service.body is None else service.body
        self._answer(status, body, service.kind)

    def _images(self):
        """Parts of the multipart/related request."""
        if self.headers.get("Transfer-Encoding") == "chunked":
            content = b""
            while size := int(self.rfile.readline(), 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            content = self.rfile.read(int(self.headers["Content-Length"]))
        whole = BytesParser().parsebytes(
            b"Content-Type: " + self.headers["Content-Type"].encode() + b"\r\n\r\n" + content
        )
        assert whole.get_content_type() == "multipart/related"
        assert {part.get_content_type() for part in whole.get_payload()} == {"application/dicom"}
        return [dcmread(BytesIO(part.get_payload(decode=True))) for part in whole.get_payload()]

    def _answer(self, status, body, kind):
        self.send_response(status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *_):
        """No access log."""


@pytest.fixture
def service():
    made = Service()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def start(send):
    """Function that starts the sender."""
    return lambda url, **values: send(ArchiveSettings(url=url, **values))


def put(outbox, study=1, *, n_files=1, **changes):
    """Results of one study; gives their SOP instance UIDs."""
    image = ct_slice(uid(study), 0)
    files = [capture(image, [str(index)], outbox.root / f"{study}-{index}.dcm") for index in range(n_files)]
    outbox.put(f"study{study}", uid(study), files)
    return [str(dcmread(path).SOPInstanceUID) for path in files]


def error_of(outbox):
    return next((delivery.error for delivery in outbox.waiting()), "")


def test_results_arrive_unchanged(service, start, outbox):
    large = ct_slice(uid(1), 0, Rows=1024, Columns=1024, PixelData=bytes(range(256)) * 8192)  # 2 MB
    large.save_as(outbox.root / "large.dcm", enforce_file_format=True)
    small = capture(large, ["small"], outbox.root / "small.dcm")
    outbox.put("study", uid(1), [outbox.root / "large.dcm", small])
    sender = start(f"{service.url}/")
    wait_for(lambda: not outbox.waiting())
    assert [*service.stored.values()] == [dcmread(outbox.root / "large.dcm"), dcmread(small)]
    assert set(service.paths) == {"/dicom-web/studies"}
    assert {headers["Host"] for headers in service.headers} == {service.url.split("/")[2]}
    assert sender._metrics.value("results_sent_total") == 2


def test_only_what_was_not_stored_is_sent_again(service, start, outbox, caplog):
    one, two, three = put(outbox, n_files=3)
    service.failing[two] = 0xA700
    start(service.url)
    wait_for(lambda: outbox.waiting()[0].attempts > 1)
    assert set(service.stored) == {one, three}
    assert [len(note["files"]) for note in notes(outbox.waiting_folder)] == [1]
    assert "0xA700" in error_of(outbox)
    assert uid(1) not in caplog.text
    service.failing.clear()
    wait_for(lambda: not outbox.waiting())
    assert list(service.stored) == [one, three, two]


def test_what_is_not_named_as_stored_was_not_sent(service, start, outbox):
    """Such as the page of a proxy with status 200."""
    service.mentions = False
    put(outbox)
    start(service.url)
    wait_for(lambda: "does not name" in error_of(outbox))
    service.body = b"<html>" + uid(1).encode()
    wait_for(lambda: "cannot be read" in error_of(outbox))
    assert uid(1) not in error_of(outbox)
    service.mentions, service.body = True, None
    wait_for(lambda: not outbox.waiting())


def test_a_status_that_cannot_heal_is_told_once(service, start, outbox, caplog):
    service.status = 413
    put(outbox, n_files=2)
    start(service.url)
    wait_for(lambda: error_of(outbox))
    service.status = 0
    sops = put(outbox, study=2)
    wait_for(lambda: set(service.stored) == set(sops))  # holds up no other study
    assert len(service.paths) == 3
    assert [record.levelname for record in caplog.records if "HTTP status 413" in record.message] == [
        "WARNING"
    ]
    assert [(one.name, one.attempts) for one in outbox.waiting()] == [("study1", 1)]
    assert Outbox(settings_of(outbox.root.parent)).due().name == "study1"  # at the next start


@pytest.mark.parametrize("status", [401, 403, 404, 409, 429, 500, 503])
def test_a_status_that_may_heal_is_tried_again(service, start, outbox, status):
    service.status = status
    put(outbox)
    start(service.url)
    wait_for(lambda: outbox.waiting()[0].attempts > 1)
    assert f"HTTP status {status}" in error_of(outbox)
    service.status = 0
    wait_for(lambda: not outbox.waiting())


def test_a_connection_closed_during_one_file_holds_up_no_other(service, start, outbox):
    one, two, three = put(outbox, n_files=3)
    service.failing[two] = CLOSED
    start(service.url)
    wait_for(lambda: "closes the connection" in error_of(outbox))
    assert set(service.stored) == {one, three}


def test_a_redirect_is_not_followed(service, start, outbox):
    service.status, service.location = 307, f"{service.url}/elsewhere/studies"
    put(outbox)
    start(service.url)
    wait_for(lambda: "redirects" in error_of(outbox))
    assert set(service.paths) == {"/dicom-web/studies"}


def test_a_service_that_is_not_there_or_silent(start, outbox, monkeypatch):
    monkeypatch.setattr(archive_module, "TIMEOUT_SECONDS", 0.3)
    put(outbox)
    start(f"http://127.0.0.1:{free_port()}/dicom-web")
    wait_for(lambda: "cannot be reached" in error_of(outbox))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start(f"http://127.0.0.1:{silent.getsockname()[1]}/dicom-web")
        wait_for(lambda: "does not answer" in error_of(outbox))


def test_a_damaged_file_holds_up_no_other_study(service, start, outbox):
    put(outbox)
    (outbox.root / "1-0.dcm").write_bytes(b"damaged")
    sops = put(outbox, study=2)
    start(service.url)
    wait_for(lambda: list(service.stored) == sops and "InvalidDicomError" in error_of(outbox))


@pytest.mark.parametrize(
    ("user", "expected"),
    [("näme", f"Basic {base64.b64encode('näme:geheim'.encode()).decode()}"), ("", "Bearer geheim")],
)
@pytest.mark.parametrize("from_file", [True, False])
def test_password_and_token(service, start, outbox, tmp_path, monkeypatch, user, expected, from_file):
    (tmp_path / "netrc").write_text("machine localhost login other password other\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    (tmp_path / "secret").write_text("geheim\n")
    if not from_file:
        monkeypatch.setenv(SECRET_VARIABLE, "geheim")
    start(service.url, user=user, secret_file=tmp_path / "secret" if from_file else None)
    put(outbox)
    wait_for(lambda: not outbox.waiting())
    assert service.headers[0]["Authorization"] == expected


def test_a_token_that_expires_is_read_again(service, start, outbox, tmp_path, caplog):
    (tmp_path / "token").write_text("old-token")
    service.status = 401
    put(outbox)
    start(service.url, secret_file=tmp_path / "token")
    wait_for(lambda: "401" in error_of(outbox))
    (tmp_path / "token").write_text("new\ntoken")  # cannot be a header
    wait_for(lambda: "holds no token" in error_of(outbox))
    (tmp_path / "token").write_text("new-token")
    service.status = 0
    wait_for(lambda: not outbox.waiting())
    assert service.headers[-1]["Authorization"] == "Bearer new-token"
    assert "old-token" not in caplog.text
    assert "new\ntoken" not in caplog.text


def test_a_certificate_of_an_own_authority(start, outbox, tmp_path):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    request = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    )
    where = f"-addext subjectAltName=DNS:localhost -out {certificate} -keyout {key}"
    subprocess.run([*request.split(), *where.split()], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    service = Service(tls=tls)
    put(outbox)
    start(service.url)
    wait_for(lambda: "certificate" in error_of(outbox))
    start(service.url, ca_bundle=certificate)
    wait_for(lambda: not outbox.waiting())
    service.shutdown()
    service.server_close()


def test_a_node_sends_by_stow(service, tmp_path, make):
    node = make(archive=ArchiveSettings(url=service.url))
    node.start()
    assert send(node.listener.port, [ct_slice(uid(1), 0)]) == [0]
    wait_for(lambda: len(service.stored) == 1)
    service.status = 503
    assert send(node.listener.port, [ct_slice(uid(2), 0)]) == [0]
    wait_for(lambda: node.health()["problems"])
    assert node.health()["problems"] == [
        f"{service.url.split('/')[2]}: the archive answers with HTTP status 503"
    ]


FILE = "spool: s\nsenders: [A]\narchive:\n"


@pytest.mark.parametrize(
    ("archive", "message"),
    [
        ("  url: http://pacs/dicom-web", "archive.url must be https"),
        ("  url: https://user:geheim@pacs/dicom-web", "archive.url must be https"),
        ("  url: https://pacs/dicom-web?key=geheim", "archive.url must be https"),
        ("  url: https://pacs:port/x", "archive.url must be https"),
        ("  url: https:///x", "archive.url must be https"),
        ("  url: pacs", "archive.url must be https"),
        ("  url: https://pacs/x\n  host: pacs", "archive needs either"),
        ("  {ae_title: A, host: h, port: 1, user: u}", "archive needs either"),
        ("  {}", "archive needs either"),
        ("  url: https://pacs/x\n  user: u", f"{SECRET_VARIABLE}: holds no password"),
        ("  url: https://pacs/x\n  secret_file: absent", "absent: cannot be read"),
        ("  url: https://pacs/x\n  secret_file: empty", "empty: holds no password"),
        ("  url: https://pacs/x\n  secret_file: two", "two: holds no token"),
        ("  url: https://pacs/x\n  ca_bundle: two", "archive.ca_bundle two"),
        ("  url: https://pacs/x\n  ca_bundle: absent", "archive.ca_bundle absent"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, monkeypatch, archive, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two").write_text("geheim\ngeheim")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "node.yaml").write_text(FILE + archive)
    with pytest.raises(ConfigError, match=message) as caught:
        read_settings(ServeSettings, ["--config", "node.yaml"])
    assert "\n" not in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_a_missing_package_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("ich_mil.serve.settings.find_spec", lambda name: None)
    (tmp_path / "node.yaml").write_text(f"{FILE}  url: https://pacs/dicom-web")
    with pytest.raises(ConfigError, match=r"dicomweb-client: pip install 'ich-mil\[dicomweb\]'") as caught:
        read_settings(ServeSettings, ["--config", str(tmp_path / "node.yaml")])
    assert "\n" not in str(caught.value)
