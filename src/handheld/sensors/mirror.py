"""The files of a target, mirrored into a folder, so that sensors are probed and read there as on this machine.

    Machine.files ──►  Mirror: a temporary folder with the names, and the contents last read
                         │ Where(root=the folder, contents=the mirror)
                         ▼
                       Sensor.probe, Sensor.read: unchanged

A source says by patterns which files it looks at (`Sensor.files`). The folder serves for names and labels. What is read
repeatedly comes from the mirror itself, which the sampler of the target refreshes (replay.py). A file that cannot be
read raises the error that it raised on the target.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

from handheld.errors import Unavailable
from handheld.sensors.base import Sensor, SensorLost, Where
from handheld.sensors.find import SOURCES, ProbedSource, plugged_in
from handheld.sensors.track import Track

if TYPE_CHECKING:
    from handheld.sensors.files import File

#: Files that are mirrored for facts about the machine.
FACTS = (
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/sys/devices/cpu_*/cpus",
    "/sys/devices/system/cpu/cpu*/cpu_capacity",
)


class Contents(Protocol):
    """What the files of a target hold."""

    def read(self, path: Path) -> bytes:
        """The last content. Raises the OSError that reading it raised on the target."""

    def hold(self, file: File) -> None:
        """Told about every file that a sensor may read again."""

    def denied(self, folder: Path) -> bool:
        """Whether the folder may not be listed."""


@dataclass(frozen=True)
class Found:
    """A file of a target: its content, or the reason why it cannot be read (`13 Permission denied`)."""

    path: str
    content: bytes
    readable: bool = True


@dataclass(frozen=True)
class Wanted:
    """A file that is to be sampled. Files with the same upper 16 bits of `id` are read together."""

    id: int
    path: str
    period_us: int
    most_bytes: int


class Machine(Protocol):
    """A machine elsewhere that reads files for us. Every method may raise TargetLost."""

    name: str
    pid: int  # of the process that runs the steps
    page_bytes: int

    def files(self, patterns: Iterable[str]) -> list[Found]:
        """All files that match."""

    def sample(self, wanted: Sequence[Wanted]) -> None:
        """Begin to read files at their periods."""

    def samples(self) -> bytes:
        """What was read since the last call: records of replay.py."""

    def stop_sampling(self) -> bytes:
        """Read every file once more and stop. Returns the rest."""

    def clock_ns(self) -> int:
        """The machine's CLOCK_MONOTONIC, asked now."""


class Mirror:
    """The mirrored files of a machine. Use it in a `with` statement; it removes its folder."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.root = Path(tempfile.mkdtemp(prefix="handheld-mirror-"))
        self.t_ns = 0  # when the files were read, by the machine's clock
        self._contents: dict[str, bytes | OSError] = {}
        self._held: weakref.WeakSet[File] = weakref.WeakSet()
        try:
            self._fetch()
        except BaseException:
            self.close()
            raise

    @property
    def where(self) -> Where:
        return Where(self.root, self.machine.pid, self.machine.page_bytes, self)

    def _fetch(self) -> None:
        patterns = [
            pattern.replace("{pid}", str(self.machine.pid)) for source in _sources() for pattern in source.files
        ]
        begun = self.machine.clock_ns()
        found = self.machine.files(dict.fromkeys([*FACTS, *patterns]))
        self.t_ns = begun + (self.machine.clock_ns() - begun) // 2
        # A folder that may not be listed can still hold files that can be read by name.
        folders = {parent.as_posix() for file in found for parent in PurePosixPath(file.path).parents}
        for file in found:
            self.set(file.path, file.content, file.readable)
            if file.path not in folders:
                self._write(file)

    def _write(self, file: Found) -> None:
        path = self.root / file.path.lstrip("/")
        if any(part == ".." for part in path.parts):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content if file.readable else b"")

    # ── contents ──────────────────────────────────────────────────────────────────────────────

    def set(self, path: str, content: bytes, readable: bool = True) -> None:
        self._contents[path] = content if readable else _error(path, content)

    def read(self, path: Path) -> bytes:
        name = self.where.shown(path)
        content = self._contents.get(name)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        if isinstance(content, OSError):
            raise type(content)(*content.args)
        return content

    def hold(self, file: File) -> None:
        self._held.add(file)

    def denied(self, folder: Path) -> bool:
        return isinstance(self._contents.get(self.where.shown(folder)), PermissionError)

    def shown(self, text: str) -> str:
        """A message with the paths that the machine has."""
        return text.replace(str(self.root), "")

    # ── sensors ───────────────────────────────────────────────────────────────────────────────

    def find(self) -> list[ProbedSource]:
        """All sources on the machine, with those that are present first. The cost of a reading is not known yet."""
        results = [self._found(source) for source in _sources()]
        return sorted(results, key=lambda result: result.sensor is None)

    def _found(self, source: type[Sensor]) -> ProbedSource:
        try:
            sensor = self.probe(source)
            values = tuple(sensor.read())
        except (Unavailable, SensorLost, OSError) as error:
            return ProbedSource(source.name, source.about, self.shown(str(error)))
        except Exception as error:  # Unexpected contents must not hide the other sensors.
            reason = f"it cannot be opened: {type(error).__name__}: {self.shown(str(error))}"
            return ProbedSource(source.name, source.about, reason)
        return ProbedSource(source.name, source.about, "", sensor, values, self.t_ns * 1e-9)

    def probe(self, source: type[Sensor]) -> Sensor:
        """A sensor of the machine. Raises Unavailable."""
        if not source.files:
            name = self.machine.name
            raise Unavailable(f"{source.needs}, which cannot be done on {name}: there, only files are read")
        return source.probe(self.where)

    def tracked(self, number: int, source: type[Sensor]) -> tuple[Track, list[File]]:
        """A track of a source, and the files that its sensor holds: those that it may read."""
        before = set(self._held)
        track = Track(number, source, self.where)
        return track, sorted((file for file in self._held if file not in before), key=lambda file: str(file.path))

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def __enter__(self) -> Mirror:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _sources() -> list[type[Sensor]]:
    return [*SOURCES, *plugged_in()]


def _error(path: str, reason: bytes) -> OSError:
    """The error of a reason such as `13 Permission denied`. Its class follows from the number."""
    number, _, text = reason.decode("utf-8", "replace").partition(" ")
    if not number.isdigit():
        return OSError(errno.EIO, reason.decode("utf-8", "replace"), path)
    return OSError(int(number), text or os.strerror(int(number)), path)
