"""Phones behind adb: the command-line client of Android's platform tools.

`adb shell -T` passes bytes unchanged and returns the exit code of the command (Android 7 and newer).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from handheld.child import Ending
from handheld.errors import DeviceError
from handheld.targets.names import TargetName
from handheld.targets.shell import FOLDER, NOT_WRITTEN, Reply, ShellTarget

LIST_S = 20.0  # how long adb may take to list the phones; it may have to start its server first
_INSTALL = "Try: apt install adb, or Android's platform tools (developer.android.com/tools/releases/platform-tools)"
_NO_PHONE = "Try: plug it in, and switch on USB debugging in its developer options; `adb devices` must list it"
#: What to do about a phone in a state other than `device`.
_STATES = {
    "unauthorized": "has not allowed this computer yet. Try: unlock it and accept the question about USB debugging",
    "authorizing": "is still being asked for its permission. Try: unlock it and accept the question, then again",
    "offline": "is offline. Try: unplug it and plug it in again, or: adb reconnect",
    "connecting": "is still connecting. Try: again in a few seconds",
    "no permissions": "may not be opened by this user. Try: apt install android-sdk-platform-tools-common, then plug "
    "it in again",
    "recovery": "is in recovery mode. Try: start Android on it",
    "sideload": "is in sideload mode. Try: start Android on it",
    "bootloader": "is in its bootloader. Try: start Android on it",
}


@dataclass(frozen=True)
class Phone:
    """A line of `adb devices -l`: the serial number, the state (`device` if it can be used) and the model."""

    serial: str
    state: str
    model: str = ""

    def __str__(self) -> str:
        return f"adb:{self.serial}" + (f" ({self.model})" if self.model else "")


def phones(timeout: float = LIST_S) -> list[Phone]:
    """The attached phones, in any state. Raises DeviceError if there is no adb, or if it does not answer."""
    if shutil.which("adb") is None:
        raise DeviceError(f"the program adb is not installed. {_INSTALL}")
    try:
        done = _adb("devices", "-l", timeout=timeout)
    except subprocess.TimeoutExpired:
        raise DeviceError(f"adb does not answer within {timeout:.0f} s. Try: adb kill-server, then again") from None
    except OSError as error:
        raise DeviceError(f"adb cannot be started: {error.strerror}. {_INSTALL}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise DeviceError(f"adb cannot list the phones: {last}. Try: adb kill-server, then again")
    listed = done.stdout.partition("List of devices attached")[2]
    return [phone for line in listed.splitlines() if (phone := _phone(line)) is not None]


def _adb(*arguments: str, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    command = ["adb", *arguments]
    return subprocess.run(command, check=False, capture_output=True, timeout=timeout, text=True, errors="replace")


def _phone(line: str) -> Phone | None:
    match = re.match(r"(\S+)\s+(no permissions|\S+)", line)
    if match is None or line.startswith("*"):
        return None
    model = re.search(r"\bmodel:(\S+)", line)
    return Phone(match[1], match[2], model[1].replace("_", " ") if model else "")


def chosen(serial: str) -> Phone:
    """The phone with this serial number, or the only one. Raises DeviceError unless it can be used."""
    every = phones()
    wanted = serial or os.environ.get("ANDROID_SERIAL", "")  # adb itself follows this variable.
    if not every:
        raise DeviceError(f"no phone is attached{f', so not {wanted!r} either' if wanted else ''}. {_NO_PHONE}")
    named = [phone for phone in every if not wanted or phone.serial == wanted]
    if not named:
        raise DeviceError(f"no phone has the serial number {wanted!r}. Try: {_either(every)}")
    if len(named) > 1:
        raise DeviceError(f"{len(named)} phones are attached: {', '.join(map(str, named))}. Try: {_either(named)}")
    (phone,) = named
    if phone.state != "device":
        raise DeviceError(f"{phone} {problem_of(phone.state, phone.serial)}")
    return phone


def problem_of(state: str, serial: str = "") -> str:
    """What keeps a phone in this state from being used, and what to try."""
    if state == "offline" and _is_network(serial):
        return f"is offline. Try: adb disconnect {serial}, then adb connect {serial}"
    return _STATES.get(state, f"is in the state {state!r}. Try: adb reconnect")


def _is_network(serial: str) -> bool:
    """Whether the phone is reached over a network: its serial number is then an address and a port."""
    return re.fullmatch(r"\S+:\d+", serial) is not None


def _either(every: list[Phone]) -> str:
    return " or ".join(f"--on adb:{phone.serial}" for phone in every)


class AdbTarget(ShellTarget):
    """A phone behind adb. Its folder is in /data/local/tmp, where programs that adb starts may lie."""

    home = "/data/local/tmp"

    def __init__(self, name: TargetName) -> None:
        self.phone = chosen(name.where)
        super().__init__(f"adb:{self.phone.serial}")

    def command(self, script: str) -> list[str]:
        return ["adb", "-s", self.phone.serial, "shell", "-T", script]

    def send(self, file: Path, to: str) -> None:
        reply = self.script(self._enter())
        if reply.code:
            raise self._not_written(reply)
        done = _adb("-s", self.phone.serial, "push", str(file), f"{self.home}/{FOLDER}/{to}")
        if done.returncode:
            messages = f"{done.stdout}\n{done.stderr}".strip()
            trouble = self.trouble(Ending(done.returncode, messages), messages)
            if trouble is not None:
                raise DeviceError(f"{self.name}: {trouble}")
            raise self._not_written(Reply("", NOT_WRITTEN, messages))

    def trouble(self, ending: Ending, messages: str) -> str | None:
        """adb has no exit code of its own, and a phone that goes away ends its commands with 0 and without a message.
        So after an ending that may be adb's, the list of phones is asked. A runner or a script that has done its work
        is no trouble; the caller knows that."""
        last = (messages.strip().splitlines() or [""])[-1].strip()
        if ending.code is None:
            return "it does not answer. Try: check the cable, then: adb reconnect"
        if ending.code < 0:
            return f"{Ending(ending.code).describe('the connection (adb)')}. Try: again"
        if ending.code not in (0, 1, 255):
            return None
        state, serial = self._state(), self.phone.serial
        if state == "":
            again = f"adb connect {serial}" if _is_network(serial) else f"plug {serial} in again"
            return f"the phone is no longer attached. Try: {again}"
        if state != "device":
            return f"the phone {problem_of(state, serial)}"
        if last.startswith(("adb:", "error:")) and "failed to copy" not in last:
            return f"{last.removeprefix('adb:').removeprefix('error:').strip()}. Try: adb reconnect"
        return "the connection was closed. Try: check the cable, then again" if ending.code == 0 else None

    def _state(self) -> str:
        """The present state of the phone; empty if it is not listed."""
        return next((phone.state for phone in phones() if phone.serial == self.phone.serial), "")
