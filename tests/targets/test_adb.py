"""Phones behind adb. The real client says what it says without a phone; stand-in phones show the rest."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from handheld.errors import DeviceError
from handheld.targets import adb
from handheld.targets.base import Target
from handheld.targets.find import find
from helpers.phones import AddPhone

needs_adb = pytest.mark.skipif(shutil.which("adb") is None, reason="adb is not installed")


def opened(name: str) -> Target:
    return find(name)


# ── the real client ───────────────────────────────────────────────────────────────────────────


@needs_adb
def test_without_a_phone_the_real_client_lists_none():
    assert adb.phones() == [] or all(phone.serial for phone in adb.phones())


@needs_adb
def test_the_real_client_takes_our_command_lines(tmp_path: Path):
    """It refuses the phone, not the words."""
    file = tmp_path / "file"
    file.write_text("text")
    for words in (["shell", "-T", "echo begin; exit 3"], ["push", str(file), "/data/local/tmp/x"]):
        done = subprocess.run(["adb", "-s", "nosuch", *words], check=False, capture_output=True, text=True)
        assert done.returncode == 1 and "device 'nosuch' not found" in done.stdout + done.stderr
    # The client asks the phone for its features before it reads the options of shell, so its help must know them.
    text = subprocess.run(["adb", "--help"], check=False, capture_output=True, text=True)
    assert "-T: disable pty allocation" in text.stdout + text.stderr


# ── which phone ───────────────────────────────────────────────────────────────────────────────


def test_without_adb_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match=r"adb is not installed. Try: apt install adb"):
        opened("adb")


def test_no_phone(phones: AddPhone):
    with pytest.raises(DeviceError, match=r"no phone is attached. Try: plug it in, and switch on USB debugging"):
        opened("adb")


def test_several_phones_are_named(phones: AddPhone):
    phones("AAA"), phones("BBB", model="SM_S911B")
    text = r"2 phones are attached: adb:AAA \(Pixel 7\), adb:BBB \(SM S911B\). Try: --on adb:AAA or --on adb:BBB"
    with pytest.raises(DeviceError, match=text):
        opened("adb")
    assert opened("adb:BBB").name == "adb:BBB"
    with pytest.raises(DeviceError, match=r"no phone has the serial number 'CCC'. Try: --on adb:AAA or"):
        opened("adb:CCC")


def test_the_variable_of_adb_chooses_too(phones: AddPhone, monkeypatch: pytest.MonkeyPatch):
    phones("AAA"), phones("BBB")
    monkeypatch.setenv("ANDROID_SERIAL", "BBB")
    assert opened("adb").name == "adb:BBB"


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("unauthorized", "has not allowed this computer yet. Try: unlock it"),
        ("offline", "is offline. Try: unplug it"),
        ("no permissions", "may not be opened by this user. Try: apt install"),
        ("recovery", "is in recovery mode. Try: start Android"),
        ("rescue", "is in the state 'rescue'. Try: adb reconnect"),
    ],
)
def test_a_phone_that_cannot_be_used(phones: AddPhone, state: str, says: str):
    phones(state=state)
    with pytest.raises(DeviceError, match=f"adb:R5CT10XYZ {says}"):
        opened("adb")


# ── the runner on it ──────────────────────────────────────────────────────────────────────────


def test_bytes_pass_unchanged_and_one_folder_is_left(phones: AddPhone, runner: Path):
    phone = phones()
    target = opened("adb")
    data = bytes(range(256)) * 100
    with target.start("echo") as running:
        running.stdin.write(data)
        running.stdin.close()
        assert running.stdout.read() == data
        assert running.ending().code == 0
    assert [path.name for path in phone.storage.iterdir()] == ["handheld-runner"]
    (file,) = (phone.storage / "handheld-runner").iterdir()
    assert file.read_bytes() == runner.read_bytes() and os.access(file, os.X_OK)
    assert target.contents().files == {file.name: runner.stat().st_size}
    assert target.clean().bytes == runner.stat().st_size
    assert list(phone.storage.iterdir()) == [] and target.contents().files == {}


def test_the_runner_is_sent_once_and_replaced_when_it_changes(phones: AddPhone, runner: Path):
    phone = phones()
    folder = phone.storage / "handheld-runner"
    opened("adb").ask("info")
    (first,) = folder.iterdir()
    before = first.stat()
    opened("adb").ask("info")
    assert first.stat().st_mtime_ns == before.st_mtime_ns and first.stat().st_ino == before.st_ino
    runner.write_text(runner.read_text() + "# newer\n")
    opened("adb").ask("info")
    (second,) = folder.iterdir()
    assert second.name != first.name and second.read_bytes() == runner.read_bytes()


def test_a_runner_that_somebody_removed_is_sent_again(phones: AddPhone):
    phone = phones()
    target = opened("adb")
    assert b"--folder" in target.ask("info")
    shutil.rmtree(phone.storage / "handheld-runner")
    assert b"--folder" in target.ask("info")


def test_libraries_of_the_vendor_are_tried_on_android_alone(phones: AddPhone, monkeypatch: pytest.MonkeyPatch):
    phones()
    target = opened("adb")
    assert not target.more_libraries()  # The stand-in is a Linux machine.
    monkeypatch.setattr(type(target), "platform", lambda self: "android-arm64")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert target.ask("info").startswith(b"libraries=\n")
    assert target.more_libraries() and not target.more_libraries()
    assert target.ask("info").startswith(b"libraries=/vendor/lib64:/vendor/lib64/egl:")


def test_a_library_of_the_target_can_be_named(phones: AddPhone, monkeypatch: pytest.MonkeyPatch):
    phones()
    target = opened("adb")
    monkeypatch.setenv("HANDHELD_TARGET_OPENCL", "/vendor/lib64/libOpenCL_x.so")
    assert b"opencl=/vendor/lib64/libOpenCL_x.so\n" in target.ask("info")
    monkeypatch.setenv("HANDHELD_TARGET_OPENCL", "$(rm x)")
    with pytest.raises(DeviceError, match=r"is no path of a library. Try: HANDHELD_TARGET_OPENCL=/vendor"):
        target.ask("info")


# ── what goes wrong ───────────────────────────────────────────────────────────────────────────


def test_too_little_storage_is_seen_before_anything_is_sent(phones: AddPhone):
    phone = phones()
    phone.program("df", "echo head; echo /dev/block/dm-5 1000000 999000 1000 99% /data")
    with pytest.raises(DeviceError, match=r"has 1,000.0 KiB of free storage for .*needs 8.0 MiB. Try: free some"):
        opened("adb").start("info")
    assert not (phone.storage / "handheld-runner").exists()


def test_storage_that_fills_while_the_runner_is_sent(phones: AddPhone):
    phone = phones()
    (phone.folder / "full").touch()
    with pytest.raises(DeviceError, match=r"adb:R5CT10XYZ has too little free storage for the runner in .*Try: free"):
        opened("adb").start("info")


def test_a_runner_that_arrives_in_part_is_not_used(phones: AddPhone):
    phone = phones()
    phone.program("wc", "echo 7")
    with pytest.raises(DeviceError, match=r"cannot be written: the runner did not arrive completely. Try: "):
        opened("adb").start("info")
    assert list((phone.storage / "handheld-runner").iterdir()) == []


def test_another_processor(phones: AddPhone):
    phone = phones()
    phone.program("uname", '[ "$1" = -m ] && echo riscv64 || echo Linux')
    with pytest.raises(DeviceError, match=r"adb:R5CT10XYZ: there is no runner for [Ll]inux on riscv64.*Try: "):
        opened("adb").start("info")


def test_a_runner_that_does_not_start(phones: AddPhone, runner: Path):
    phones()
    runner.write_bytes(b"\x7fELF of another machine")
    with pytest.raises(DeviceError, match=r"the runner for linux-x86_64 does not start on it \(.*\). Try: "):
        opened("adb").start("info")


def test_the_end_of_a_runner_is_told(phones: AddPhone):
    phone = phones()
    target = opened("adb")
    with pytest.raises(DeviceError, match=r"adb:R5CT10XYZ: the runner ended \(code 3\): something broke"):
        target.ask("fail")
    with pytest.raises(DeviceError, match=r"the runner was killed \(SIGKILL\), as a system does when memory runs out"):
        target.ask("die")
    with pytest.raises(DeviceError, match=r"`handheld-runner hang` did not end within 0 s\. Its OpenCL driver"):
        target.ask("hang", timeout=0.3)
    with target.start("echo") as running:
        phone.set("")
        os.killpg(running.pid, signal.SIGKILL)
        assert "the connection (adb) was ended (signal 9, SIGKILL)" in target.why(running)
    with pytest.raises(DeviceError, match=r"the phone is no longer attached. Try: plug R5CT10XYZ in again"):
        target.ask("info")
    phone.set("offline")
    with pytest.raises(DeviceError, match=r"the phone is offline. Try: "):
        target.ask("info")
    phone.set("device")
    assert b"--folder" in target.ask("info")
