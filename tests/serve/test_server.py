"""`handheld serve`: lists the runs of a folder, serves their pages, and nothing else to nobody else."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from handheld.errors import HandheldError
from handheld.serve.folder import RunFolder
from handheld.serve.server import Server
from handheld.store.writer import RunWriter
from helpers.noisy_runs import noisy_run
from helpers.run_files import MadeRun


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Three runs, one of them in a sub-folder; a damaged one; foreign files; a secret outside and links to it."""
    outside = tmp_path_factory.mktemp("outside")
    noisy_run(outside / "secret.run", 9, settings={"what": "secret"})
    path = tmp_path_factory.mktemp("runs")
    noisy_run(path / "a.run", 1)
    noisy_run(path / "b.run", 2, slower={6: 1.2}, settings={"what": "<b>net"})
    (path / "results" / "runs").mkdir(parents=True)
    noisy_run(path / "results" / "runs" / "c d.run", 3)
    (path / "broken.run").write_bytes(b"SQLite format 3\0 and then nothing")
    (path / "notes.txt").write_text("mine")
    (path / "picture.png").write_bytes(b"\x89PNG")
    (path / ".hidden.run").write_bytes(b"")
    (path / "link.run").symlink_to(outside / "secret.run")
    (path / "away").symlink_to(outside)
    return path


@pytest.fixture(scope="module")
def server(folder) -> Iterator[Server]:
    with Server(folder, 0) as started:
        thread = threading.Thread(target=started.serve_forever, daemon=True)
        thread.start()
        yield started
        started.shutdown()
        thread.join(5)


def get(server: Server, path: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(server.address.rstrip("/") + path, headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_list_has_the_runs_and_counts_the_rest(folder):
    content = RunFolder(folder).content()
    assert [run.name for run in content.runs] == ["a.run", "b.run", "results/runs/c d.run"]
    first = content.runs[0]
    assert first.what == "net" and first.status == "complete" and first.steps == 720 and first.step_ms > 10
    ((name, why),) = content.unread
    assert name == "broken.run" and "is damaged" in why
    assert content.others == 2 and content.waiting == 0


def test_reading_is_spread_over_several_requests(folder):
    runs = RunFolder(folder)
    assert runs.content(seconds=0).waiting == 4 and not runs.content(seconds=0).runs
    assert runs.content().waiting == 0 and runs.content(seconds=0).waiting == 0


def test_a_file_is_read_again_if_it_changed(tmp_path):
    runs, path = RunFolder(tmp_path), tmp_path / "one.run"
    assert runs.content().runs == ()
    writer = RunWriter(path)
    writer.meta(status="running", process={"pid": os.getpid(), "created": 0.0}, device="adb", target="adb:R5CT10XYZ")
    writer.put("step", 0, "train", 8, 1, 2, None, None)
    writer.commit()
    assert [(run.steps, run.status) for run in runs.content().runs] == [(1, "killed")]
    assert [run.device for run in runs.content().runs] == ["adb of adb:R5CT10XYZ"]
    writer.put("step", 1, "train", 8, 3, 4, None, None)
    writer.commit()
    assert [run.steps for run in runs.content().runs] == [2]
    writer.meta(status="complete")
    writer.close()
    assert [run.status for run in runs.content().runs] == ["complete"]


def test_pages(server):
    code, text = get(server, "/")
    assert code == 200 and text.startswith("<!DOCTYPE html>") and '"kind":"index"' in text
    code, text = get(server, "/run/results/runs/c%20d.run")
    assert code == 200 and '"kind":"run"' in text and '"poll"' not in text
    code, text = get(server, "/run/b.run")
    assert code == 200 and "<b>net" not in text
    code, text = get(server, "/compare?run=a.run&run=b.run")
    assert code == 200 and '"kind":"compare"' in text and "connect-src 'self'" in text
    listed = json.loads(get(server, "/api/runs")[1])
    assert len(listed["runs"]) == 3 and listed["poll"] == "/api/runs"
    assert json.loads(get(server, "/api/run/a.run")[1])["kind"] == "run"


@pytest.mark.parametrize(
    ("path", "code", "text"),
    [
        ("/run/nothing.run", 404, "there is no run 'nothing.run'"),
        ("/run/broken.run", 422, "is damaged"),
        ("/run/link.run", 404, "there is no run"),
        ("/run/away/secret.run", 404, "there is no run"),
        ("/run/../outside/secret.run", 404, "there is no"),
        ("/run/%2e%2e/%2e%2e/etc/passwd", 404, "there is no"),
        ("/run//etc/passwd", 404, "there is no"),
        ("/run/notes.txt", 404, "there is no run"),
        ("/run/.hidden.run", 404, "there is no run"),
        ("/notes.txt", 404, "there is no page /notes.txt"),
        ("/a.run", 404, "there is no page"),
        ("/compare?run=a.run", 400, "a comparison takes 2 to 20 runs, not 1"),
        ("/compare?run=a.run&run=../x.run", 404, "there is no run"),
    ],
)
def test_only_runs_of_the_folder(server, path, code, text):
    answer = get(server, path)
    assert answer[0] == code and text in answer[1]


def test_only_this_machine_and_no_other_site(server):
    assert server.server_address[0] == "127.0.0.1"
    port = server.server_port
    assert get(server, "/", Host=f"localhost:{port}")[0] == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", ""):
        code, text = get(server, "/api/runs", Host=host)
        assert code in (400, 403) and "net" not in text
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", "/")
    assert connection.getresponse().status == 501
    connection.close()


def test_a_port_in_use_and_a_folder_that_is_none(server, tmp_path):
    with pytest.raises(HandheldError, match=rf"port {server.server_port} is in use .*--port {server.server_port + 1}"):
        Server(tmp_path, server.server_port)
    with pytest.raises(HandheldError, match=r"nothing is not a folder\. Try"):
        Server(tmp_path / "nothing", 0)


def test_ctrl_c_ends_the_command_cleanly(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "handheld", "serve", str(folder), "--port", str(port)]
    command = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = command.stdout.readline()
        assert f"http://127.0.0.1:{port}/" in line
        about = (command.stdout.readline() + command.stdout.readline()).split()  # A long path wraps the line.
        assert "4 files named .run" in " ".join(about)
        command.send_signal(signal.SIGINT)
        _, errors = command.communicate(timeout=30)
    finally:
        command.kill()
    assert command.returncode == 0 and "Traceback" not in errors and "the server has ended" in errors


def test_a_damaged_run_in_a_comparison(server, folder):
    code, text = get(server, "/compare?run=a.run&run=broken.run")
    assert code == 422 and "broken.run is damaged" in text


def test_a_run_without_steps_has_a_page(folder, server):
    path = folder / "empty.run"
    MadeRun(path).open().close()
    try:
        assert get(server, "/run/empty.run")[0] == 200
    finally:
        path.unlink()
