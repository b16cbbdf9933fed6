"""Answers the requests of a browser on this machine.

    /                      the list of runs
    /run/NAME              the page of a run; it asks for newer data while the run goes on
    /compare?run=A&run=B   a comparison
    /api/runs, /api/run/NAME   the same as JSON, for the pages themselves

The server listens on 127.0.0.1 only and answers only requests whose Host names that address, so that no other site can
read through the browser. It serves pages made from run files of one folder, and never a file itself.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

import handheld
from handheld.analyse.compare import compare_files
from handheld.analyse.run import open_run
from handheld.errors import HandheldError
from handheld.report.compare_payload import compare_payload
from handheld.report.document import document, embedded
from handheld.report.run_payload import run_payload
from handheld.serve.folder import RunFolder, status

HOST, PORT = "127.0.0.1", 8321
NAMES = ("127.0.0.1", "localhost")
MOST_RUNS = 20  # in one comparison
READ_S = 1.0  # how long a request for the list may read new files; the next request continues

Payload = dict[str, object]


class Server(ThreadingHTTPServer):
    """Serves the runs of a folder until `shutdown`. Port 0 takes any free port."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = PORT) -> None:
        if not folder.is_dir():
            raise HandheldError(f"{folder} is not a folder. Try: the folder that holds the run files")
        self.folder = RunFolder(folder)
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise HandheldError(_no_port(port, error)) from None

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that went away is no error; others are raised as usual in the thread."""


def _no_port(port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is in use by another program. Try: --port {port + 1}, or --port 0 for any free port"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port {port} may not be opened by this user. Try: --port {PORT}, or --port 0 for any free port"
    return f"port {port} cannot be opened: {error.strerror or error}. Try: --port 0 for any free port"


class _Refused(Exception):
    """A request that gets no page: the status and a text."""

    def __init__(self, code: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version = f"Handheld/{handheld.__version__}"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        try:
            self._check_host()
            url = urlsplit(self.path)
            kind, text = self._answer(unquote(url.path), parse_qs(url.query).get("run", []))
            self._send(HTTPStatus.OK, kind, text)
        except _Refused as refused:
            self._send(refused.code, "text/plain", str(refused))
        except HandheldError as error:
            self._send(HTTPStatus.UNPROCESSABLE_ENTITY, "text/plain", str(error))
        except ConnectionError:
            self.close_connection = True

    do_HEAD = do_GET

    def _check_host(self) -> None:
        name, _, port = (self.headers.get("Host") or "").rpartition(":")
        if name not in NAMES or port != str(self.server.server_port):
            raise _Refused(HTTPStatus.FORBIDDEN, f"this server answers only for {self.server.address}")

    def _answer(self, path: str, runs: Sequence[str]) -> tuple[str, str]:
        """The kind and text of the page at a path."""
        pages: dict[str, Callable[[], Payload]] = {"/": self._list, "/compare": lambda: self._compared(runs)}
        if path in pages:
            return "text/html", document(pages[path](), connect=True)
        if path.startswith("/run/"):
            return "text/html", document(self._run(path.removeprefix("/run/")), connect=True)
        if path == "/api/runs":
            return "application/json", embedded(self._list())
        if path.startswith("/api/run/"):
            return "application/json", embedded(self._run(path.removeprefix("/api/run/")))
        raise _Refused(HTTPStatus.NOT_FOUND, f"there is no page {path}")

    def _list(self) -> Payload:
        content = self.server.folder.content(READ_S)
        return {
            "kind": "index",
            "title": "Runs",
            "about": str(self.server.folder.path),
            "made": f"Served by Handheld {handheld.__version__}.",
            "served": True,
            "folder": str(self.server.folder.path),
            "runs": [run.to_json() for run in content.runs],
            "unread": content.unread,
            "waiting": content.waiting,
            "others": content.others,
            "poll": "/api/runs",
        }

    def _run(self, name: str) -> Payload:
        with open_run(self._found(name)) as run:
            going = {"poll": f"/api/run/{quote(name)}"} if status(run) == "running" else {}
            return {**run_payload(run), "back": "/", "served": True, **going}

    def _compared(self, names: Sequence[str]) -> Payload:
        if not 2 <= len(names) <= MOST_RUNS:
            raise _Refused(HTTPStatus.BAD_REQUEST, f"a comparison takes 2 to {MOST_RUNS} runs, not {len(names)}")
        comparison = compare_files([self._found(name) for name in names])
        return {**compare_payload(comparison), "back": "/", "served": True}

    def _found(self, name: str) -> Path:
        path = self.server.folder.find(name)
        if path is None:
            raise _Refused(HTTPStatus.NOT_FOUND, f"there is no run {name!r} in {self.server.folder.path}")
        return path

    def _send(self, code: HTTPStatus, kind: str, text: str) -> None:
        data = text.encode("utf-8", "replace")
        self.send_response(code)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(data))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""
