"""Machines behind ssh: OpenSSH's own server on the loopback address, its own client, and what they refuse."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from handheld.errors import DeviceError
from handheld.targets.find import find
from helpers.ssh_server import MISSING, SshServer, ssh_server

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING or "there is a server")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with ssh_server(tmp_path_factory.mktemp("sshd") / "server") as started:
        yield started


@pytest.fixture(autouse=True)
def client(server: SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDHELD_SSH", server.client)


def test_bytes_pass_unchanged_and_one_folder_is_left(server: SshServer, runner: Path):
    target = find(server.name)
    data = bytes(range(256)) * 1000
    with target.start("echo") as running:
        running.stdin.write(data)
        running.stdin.close()
        assert running.stdout.read() == data
        assert running.ending().code == 0
    assert [path.name for path in server.home.iterdir()] == ["handheld-runner"]
    (file,) = (server.home / "handheld-runner").iterdir()
    assert file.read_bytes() == runner.read_bytes() and os.access(file, os.X_OK)
    assert target.contents().files == {file.name: runner.stat().st_size}
    assert target.contents().folder == str(server.home / "handheld-runner")
    target.clean()
    assert list(server.home.iterdir()) == []


def test_the_runner_is_sent_once(server: SshServer):
    target = find(server.name)
    assert b"--folder" in target.ask("info")
    (file,) = (server.home / "handheld-runner").iterdir()
    before = file.stat()
    assert b"--folder" in target.ask("info")
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_what_killed_hosts_and_runners_left_is_removed(server: SshServer):
    folder = server.home / "handheld-runner"
    names = (".runner-12ab.77", "plans/x.plan.88.new", "plans/y.plan", "plans/z.plan.99.new")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("half")
        if not name.startswith("plans/z"):  # It is being written now.
            os.utime(folder / name, (0, 0))
    target = find(server.name)
    assert set(names) & set(target.contents().files) == {"plans/y.plan", "plans/z.plan.99.new"}
    target.clean()


def test_a_greeting_of_the_login_shell_is_not_taken_for_an_answer(server: SshServer):
    greeting = server.home / ".bashrc"
    greeting.write_text("echo 'Welcome!'\nprintf 'no newline'\n")
    try:
        assert find(server.name).ask("info").startswith(b"libraries=")
    finally:
        greeting.unlink()


def test_the_end_of_a_runner_is_told(server: SshServer):
    target = find(server.name)
    with pytest.raises(DeviceError, match=r"the runner ended \(code 3\): something broke"):
        target.ask("fail")
    with pytest.raises(DeviceError, match=r"the runner was killed \(SIGKILL\)"):
        target.ask("die")
    with target.start("echo") as running:
        os.killpg(running.pid, signal.SIGKILL)
        assert target.why(running) == "the connection (ssh) was ended (signal 9, SIGKILL). Try: again"
        assert not target.crashed(running)
    with target.start("die") as running:
        assert target.crashed(running)


def test_a_connection_that_the_server_drops(server: SshServer):
    target = find(server.name)
    with target.start("echo") as running:
        session = subprocess.run(
            ["pgrep", "-n", "-P", str(server.process.pid)], check=True, capture_output=True, text=True
        )
        os.kill(int(session.stdout), signal.SIGKILL)
        assert running.stdout.read() == b""
        assert "Try: ssh -p " in target.why(running)


def test_an_unknown_key_is_not_accepted(server: SshServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HANDHELD_SSH", f"{server.client} -o UserKnownHostsFile={tmp_path}/none")
    with pytest.raises(DeviceError, match=r"its host key is not known yet. Try: ssh -p \d+ \S+, and accept the key"):
        find(server.name).start("info")
    assert not (tmp_path / "none").exists()


def test_a_changed_key(server: SshServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    other = " ".join((server.folder / "user.pub").read_text().split()[:2])
    (tmp_path / "known").write_text(f"[127.0.0.1]:{server.port} {other}\n")
    monkeypatch.setenv("HANDHELD_SSH", f"{server.client} -o UserKnownHostsFile={tmp_path}/known")
    with pytest.raises(DeviceError, match=r"its host key has changed. Try: .*ssh-keygen -R"):
        find(server.name).start("info")


def test_a_login_without_a_key(server: SshServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HANDHELD_SSH", f"ssh -F none -o UserKnownHostsFile={server.folder}/known -o IdentityFile=none")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with pytest.raises(DeviceError, match=r"refused the login without a password. Try: ssh-copy-id -p \d+ "):
        find(server.name).start("info")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ssh:me@127.0.0.1:1", "no ssh server answers at port 1. Try: start sshd on it"),
        ("ssh:me@nosuch.invalid", "the host nosuch.invalid is not known. Try: check the name"),
    ],
)
def test_a_host_that_is_not_there(name: str, says: str):
    with pytest.raises(DeviceError, match=f"{name}: {says}"):
        find(name).start("info")


def test_without_a_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("HANDHELD_SSH")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match=r"the program ssh is not installed. Try: apt install openssh-client"):
        find("ssh:me@box")


def test_a_folder_that_cannot_be_written(server: SshServer):
    target = find(server.name)
    target.clean()
    (server.home / "handheld-runner").write_text("a file")
    try:
        with pytest.raises(DeviceError, match=r"cannot be written: .*Try: check the rights"):
            target.start("info")
    finally:
        (server.home / "handheld-runner").unlink()
