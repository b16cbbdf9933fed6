"""`ShellTarget`: a target that is reached through a shell of its own, by ssh or adb.

It leaves one folder there, `handheld-runner`. The runner in it is named by the hash of its bytes, so a runner that is
already there is not sent again. Scripts are one line of POSIX sh without single quotes, because ssh passes them
through the user's login shell. They print a mark before their result: login shells may print greetings.
"""

from __future__ import annotations

import hashlib
import os
import re
import select
import subprocess
import time
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path

from handheld.child import Ending
from handheld.errors import DeviceError
from handheld.runners import find as runners
from handheld.targets.base import Contents, Running, Target, ended
from handheld.units import size as sized

FOLDER = "handheld-runner"
MARK, END = "handheld-runner: begin", "handheld-runner: end"
BEGIN_S = 60.0  # how long a connection may take to begin
LEAST_RATE = 1e4  # bytes per second that every connection reaches
GREETING = 1 << 20  # the most bytes of a greeting before the mark
SPARE = 8 << 20  # bytes of storage that a plan and the compiled kernels of a small model take
#: Which files a host or a runner that was killed has not completed: for `find`, an hour later.
REMNANTS = '\\( -name "*.new" -o -name ".runner-*" \\) -mmin +60'
#: What scripts exit with.
MISSING, NOT_EXECUTABLE, NOT_WRITTEN = 97, 98, 95
#: Where Android's vendors put OpenCL, for a runner that does not find it by itself.
LIBRARIES = "/vendor/lib64:/vendor/lib64/egl:/system/vendor/lib64:/system/vendor/lib64/egl"
#: Names the OpenCL library on a target, for all targets. The runner gets it as HANDHELD_OPENCL.
LIBRARY = "HANDHELD_TARGET_OPENCL"
_WORD = re.compile(r"[\w./:=+,-]+")


@dataclass(frozen=True)
class Facts:
    """What the first connection tells about a target."""

    platform: str
    folder: str
    free_bytes: int | None
    files: dict[str, int]


@dataclass(frozen=True)
class Reply:
    """What a script on the target printed after the mark, its exit code and its messages."""

    text: str
    code: int
    messages: str

    @property
    def last(self) -> str:
        return (self.messages.strip().splitlines() or [""])[-1].strip()


class ShellTarget(Target):
    """A target with a POSIX shell. A subclass says how to reach it, and what its client's errors mean."""

    #: The folder that contains the folder of Handheld, as the target's shell writes it.
    home: str

    def __init__(self, name: str) -> None:
        self.name = name
        self._facts: Facts | None = None
        self._libraries = ""

    @abstractmethod
    def command(self, script: str) -> list[str]:
        """The command on this machine that runs a script on the target."""

    @abstractmethod
    def trouble(self, ending: Ending, messages: str) -> str | None:
        """What is wrong with the connection, with what to try; None if the target itself has answered."""

    def send(self, file: Path, to: str) -> None:
        """Copies a file into the target's folder, under the name `to`. The caller checks whether all of it arrived."""
        reply = self.script(f'{self._enter()}; cat > "$d/{to}" || exit {NOT_WRITTEN}', file.read_bytes())
        if reply.code:
            raise self._not_written(reply)

    # ── Target ────────────────────────────────────────────────────────────────────────────────

    def platform(self) -> str:
        return self.facts().platform

    def facts(self) -> Facts:
        """What the target is, asked once."""
        if self._facts is None:
            self._facts = self._ask_facts()
        return self._facts

    def start(self, *arguments: str) -> Running:
        file = runners.find(self.platform())
        name = f"runner-{hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"
        if name not in self.facts().files:
            self._put(file, name)
        running = self._started(name, arguments)
        if isinstance(running, Running):
            return running
        self._put(file, name)  # Somebody has removed it since.
        running = self._started(name, arguments)
        if isinstance(running, Running):
            return running
        raise DeviceError(f"{self.name}: the runner in {self.facts().folder} was removed while it was started")

    def more_libraries(self) -> bool:
        if self._libraries or not self.platform().startswith("android"):
            return False
        self._libraries = f'LD_LIBRARY_PATH="{LIBRARIES}:$LD_LIBRARY_PATH" '
        return True

    def contents(self) -> Contents:
        facts = self._facts = self._ask_facts()
        return Contents(facts.folder, facts.files)

    def clean(self) -> Contents:
        contents = self.contents()
        reply = self.script(f'd="{self.home}/{FOLDER}"; rm -rf "$d"; [ ! -e "$d" ]')
        self._facts = None
        if reply.code:
            raise DeviceError(f"{self.name}: {contents.folder} could not be removed: {reply.last}")
        return contents

    def why(self, running: Running) -> str:
        ending = running.ending()
        trouble = self.trouble(ending, running.messages())
        if trouble is not None:
            return trouble
        if ending.code in (126, 127):
            return self._does_not_start(ending.last)
        return ended(ending, "the runner")

    def crashed(self, running: Running) -> bool:
        return self.trouble(running.ending(), running.messages()) is None

    # ── parts ─────────────────────────────────────────────────────────────────────────────────

    def script(self, script: str, feed: bytes = b"") -> Reply:
        """Runs a script on the target to its end. Raises DeviceError if the connection fails."""
        # A client may end with 0 although the connection was lost in the middle, so the end has a mark too.
        command = self.command(f"echo; echo {MARK}; ({script}); c=$?; echo; echo {END}; exit $c")
        patience = BEGIN_S + len(feed) / LEAST_RATE
        try:
            done = subprocess.run(command, check=False, input=feed, capture_output=True, timeout=patience)
        except subprocess.TimeoutExpired:
            raise DeviceError(
                f"{self.name} does not answer within {patience:.0f} s. Try: check its connection, then again"
            ) from None
        except OSError as error:
            raise DeviceError(f"{self.name}: {command[0]} cannot be started: {error.strerror}") from None
        messages = done.stderr.decode(errors="replace").strip()
        before, mark, text = done.stdout.decode(errors="replace").replace("\r\n", "\n").partition(f"{MARK}\n")
        text, complete, _ = text.rpartition(f"\n{END}\n")
        trouble = None if complete else self.trouble(Ending(done.returncode, messages), messages)
        if not complete:
            raise DeviceError(f"{self.name}: {trouble or self._no_shell(before if not mark else '', messages)}")
        return Reply(text, done.returncode, messages)

    def _no_shell(self, printed: str, messages: str) -> str:
        said = (f"{printed}\n{messages}".strip().splitlines() or ["nothing"])[-1].strip()
        return f"its login runs no commands; it printed: {said}. Try: a login with a shell"

    def _ask_facts(self) -> Facts:
        reply = self.script(
            f'd="{self.home}/{FOLDER}"; echo "$d"; uname -s; uname -m; '
            "if [ -e /system/bin/linker64 ]; then echo android; else echo other; fi; "
            "getconf LONG_BIT 2>/dev/null || echo 64; "
            f'df -Pk "{self.home}" 2>/dev/null | tail -n 1; '
            f'cd "$d" 2>/dev/null && {{ find . -type f {REMNANTS} -exec rm -f {{}} \\; 2>/dev/null; '
            "find . -type f -exec wc -c {} +; }"
        )
        lines = reply.text.splitlines()
        if len(lines) < 5:
            raise DeviceError(f"{self.name}: its shell does not know `uname`: {reply.last}. Try: a login with a shell")
        folder, system, machine, android, bits = lines[:5]
        system = "Android" if android == "android" else system
        if bits == "32":
            machine = f"{machine} with 32-bit programs"  # As on a Raspberry Pi with a 64-bit kernel alone.
        found = re.search(r"\s(\d+)\s+\d+%\s", lines[5]) if len(lines) > 5 else None
        listed = (re.fullmatch(r"\s*(\d+) \./(.+)", line) for line in lines[5:])
        try:
            platform = runners.platform_of(system, machine)
        except DeviceError as error:
            raise DeviceError(f"{self.name}: {error}") from None
        return Facts(
            platform=platform,
            folder=folder,
            free_bytes=int(found[1]) * 1024 if found else None,
            files={match[2]: int(match[1]) for match in listed if match},
        )

    def _enter(self) -> str:
        return f'd="{self.home}/{FOLDER}"; mkdir -p "$d" || exit {NOT_WRITTEN}'

    def _put(self, file: Path, name: str) -> None:
        """Sends the runner. It gets its name only if all of it has arrived, and then older ones are removed."""
        facts, size = self.facts(), file.stat().st_size
        if facts.free_bytes is not None and facts.free_bytes < size + SPARE:
            raise DeviceError(
                f"{self.name} has {sized(facts.free_bytes)} of free storage for {facts.folder}, and a runner with a "
                f"small plan needs {sized(size + SPARE)}. Try: free some storage on it"
            )
        arriving = f".{name}.{os.getpid()}"
        self.send(file, arriving)
        reply = self.script(
            f'd="{self.home}/{FOLDER}"; t="$d/{arriving}"; r="$d/{name}"; '
            f'[ "$(wc -c < "$t")" -eq {size} ] || {{ rm -f "$t"; exit {NOT_WRITTEN}; }}; '
            f'chmod 755 "$t" && mv -f "$t" "$r" || exit {NOT_WRITTEN}; '
            'for o in "$d"/runner-*; do [ "$o" = "$r" ] || rm -f "$o"; done; '
            f'[ -x "$r" ] || exit {NOT_EXECUTABLE}; "$r" --version'
        )
        if reply.code == NOT_WRITTEN:
            raise self._not_written(reply)
        if reply.code == NOT_EXECUTABLE:
            raise self._not_executable()
        if reply.code:
            raise DeviceError(f"{self.name}: {self._does_not_start(reply.last)}")
        self._facts = Facts(facts.platform, facts.folder, facts.free_bytes, {**facts.files, name: size})

    def _started(self, name: str, arguments: tuple[str, ...]) -> Running | None:
        """The runner, which has begun; None if it is not there."""
        assert all(_WORD.fullmatch(word) for word in arguments), arguments
        library = os.environ.get(LIBRARY, "")
        if library and not _WORD.fullmatch(library):
            raise DeviceError(
                f"{LIBRARY}={library!r:.60} is no path of a library. Try: {LIBRARY}=/vendor/lib64/NAME.so"
            )
        named = f"HANDHELD_OPENCL={library} " if library else ""
        # The shell waits for the runner, so that the exit code tells how the runner ended.
        script = (
            f'd="{self.home}/{FOLDER}"; r="$d/{name}"; [ -f "$r" ] || exit {MISSING}; '
            f'[ -x "$r" ] || exit {NOT_EXECUTABLE}; echo; echo {MARK}; '
            f'{named}{self._libraries}"$r" {" ".join(arguments)} --folder "$d"; exit $?'
        )
        running = Running(self.command(script))
        try:
            if _begins(running, BEGIN_S):
                return running
            ending = running.ending()
            if ending.code is None:
                raise DeviceError(
                    f"{self.name} does not answer within {BEGIN_S:.0f} s. Try: check its connection, then again"
                )
            if ending.code == MISSING:
                running.close()
                return None
            if ending.code == NOT_EXECUTABLE:
                raise self._not_executable()
            trouble = self.trouble(ending, running.messages())
            raise DeviceError(f"{self.name}: {trouble or self._no_shell('', running.messages())}")
        except BaseException:
            running.close(0.0)
            raise

    def _not_written(self, reply: Reply) -> DeviceError:
        folder = self.facts().folder
        if "No space left" in reply.messages or "quota" in reply.messages:
            return DeviceError(
                f"{self.name} has too little free storage for the runner in {folder}. Try: free some storage on it"
            )
        return DeviceError(
            f"{self.name}: {folder} cannot be written: {reply.last or 'the runner did not arrive completely'}. "
            f"Try: check the rights of that folder and its free storage"
        )

    def _not_executable(self) -> DeviceError:
        return DeviceError(
            f"{self.name} does not run programs in {self.facts().folder}: its file system is mounted with noexec. "
            "Try: a login whose home may run programs, or mount it with exec"
        )

    def _does_not_start(self, message: str) -> str:
        platform = self.facts().platform
        return (
            f"the runner for {platform} does not start on it ({message or 'no message'}). "
            f"Try: handheld runner build --for {platform} with its C library, or see docs/targets.md"
        )


def _begins(running: Running, patience: float) -> bool:
    """Whether the mark comes. Reads exactly to the end of it, because what follows belongs to the protocol."""
    line, seen, end = b"", 0, time.monotonic() + patience
    poll = select.poll()
    poll.register(running.stdout.fileno(), select.POLLIN)
    while seen < GREETING:
        if not poll.poll(1000 * max(end - time.monotonic(), 0.0)):
            return False
        byte = os.read(running.stdout.fileno(), 1)
        if not byte:
            return False
        seen += 1
        if byte != b"\n":
            line += byte
        elif line.rstrip(b"\r") == MARK.encode():
            return True
        else:
            line = b""
    return False
