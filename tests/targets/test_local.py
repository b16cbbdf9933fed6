"""The runner on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from handheld.errors import DeviceError
from handheld.targets.find import find


def test_it_starts_where_it_lies_and_its_folder_is_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "cache"))
    target = find("runner")
    assert target.name == "runner" and target.ask("info").endswith(f"--folder {tmp_path}/cache/runner\n".encode())
    (tmp_path / "cache" / "runner" / "plans").mkdir()
    (tmp_path / "cache" / "runner" / "plans" / "x").write_text("123")
    assert target.contents().files == {"plans/x": 3}
    assert target.clean().bytes == 3 and not (tmp_path / "cache" / "runner").exists()
    assert target.clean().bytes == 0


def test_a_command_before_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HANDHELD_RUNNER_COMMAND", "sh -e")
    with find("runner").start("echo") as running:
        assert running.command[:2] == ("sh", "-e")
        running.stdin.write(b"text")
        running.stdin.close()
        assert running.stdout.read() == b"text"


def test_its_end_is_told(runner: Path):
    with pytest.raises(DeviceError, match=r"runner: the runner ended \(code 3\): something broke"):
        find("runner").ask("fail")
    with pytest.raises(DeviceError, match=r"runner: the runner was killed \(SIGKILL\)"):
        find("runner").ask("die")
    runner.write_bytes(b"\x7fELF of another machine")
    with pytest.raises(DeviceError, match=r"does not start: .*Try: handheld runner build --for "):
        find("runner").ask("info")
