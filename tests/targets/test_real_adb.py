"""Android's own adb client, with a stand-in for adbd behind it: bytes, exit codes, files, a cable that is pulled."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from handheld.errors import DeviceError
from handheld.targets.find import find
from helpers.adbd import ADB, Phone, adb_server

pytestmark = pytest.mark.skipif(ADB is None, reason="adb is not installed")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with adb_server() as port:
        yield port


@pytest.fixture
def phone(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Phone]:
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
    monkeypatch.delenv("ANDROID_SERIAL", raising=False)
    with Phone(tmp_path / "phone") as phone:
        subprocess.run(["adb", "connect", phone.serial], check=True, capture_output=True)
        yield phone
        subprocess.run(["adb", "disconnect", phone.serial], check=False, capture_output=True)


def test_the_runner_is_pushed_and_bytes_pass_unchanged(phone: Phone, runner: Path):
    target = find("adb")
    assert target.name == phone.name
    data = os.urandom(300_000)
    with target.start("echo") as running:
        running.stdin.write(data)
        running.stdin.close()
        assert running.stdout.read() == data
        assert running.ending().code == 0
    (file,) = (phone.storage / "handheld-runner").iterdir()
    assert file.read_bytes() == runner.read_bytes() and os.access(file, os.X_OK)
    assert target.contents().files == {file.name: runner.stat().st_size}
    target.clean()
    assert list(phone.storage.iterdir()) == []


def test_the_end_of_a_runner_is_told(phone: Phone):
    target = find("adb")
    with pytest.raises(DeviceError, match=r"the runner ended \(code 3\): something broke"):
        target.ask("fail")
    with pytest.raises(DeviceError, match=r"the runner was killed \(SIGKILL\)"):
        target.ask("die")


def test_a_folder_that_cannot_be_written(phone: Phone):
    (phone.storage / "handheld-runner").write_text("a file")
    with pytest.raises(DeviceError, match=r"cannot be written: .*Try: check the rights"):
        find("adb").start("info")


def test_a_cable_that_is_pulled(phone: Phone):
    target = find("adb")
    with target.start("echo") as running:
        phone.unplug()
        assert running.stdout.read() == b""
        why = target.why(running)
        assert running.ending().code == 0, "the client says nothing about it"
        assert f"adb connect {phone.serial}" in why and ("no longer attached" in why or "is offline" in why)
        assert not target.crashed(running)
    with pytest.raises(DeviceError, match=r"(no longer attached|is offline|not found).*Try: "):
        target.contents()
