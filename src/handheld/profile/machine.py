"""The machine that runs the steps. Its clock, its sensors and its facts are those of the run file."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import psutil

from handheld.backends.runner.observe import Observer, observed, properties, runner_pid
from handheld.profile.sampling import Sensors, Sources, sampled, sources, summed_up
from handheld.sensors.base import Where
from handheld.sensors.cpu import core_kinds
from handheld.sensors.files import label
from handheld.sensors.mirror import Mirror
from handheld.sensors.replay import TargetSampler
from handheld.sensors.sink import RunSink
from handheld.store.writer import RunWriter
from handheld.targets.names import is_remote, is_target


class Machine(ABC):
    """Where steps run: this machine, or the machine of a target."""

    #: The name of the target; empty if it is this machine.
    target = ""

    @abstractmethod
    def now_ns(self) -> int:
        """Its CLOCK_MONOTONIC."""

    @abstractmethod
    def clock_facts(self) -> dict[str, Any] | None:
        """How its clock relates to that of this machine; None if it is the same."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What the run file says about it."""

    @abstractmethod
    def sources(self, sensors: Sensors) -> Sources:
        """Look for all its sensors, or for the given ones."""

    @abstractmethod
    def sampled(self, writer: RunWriter, found: Sources) -> AbstractContextManager[None]:
        """Sample these sensors during the context."""


class ThisMachine(Machine):
    """This machine. Sensors look at `where`."""

    def __init__(self, where: Where | None = None) -> None:
        self.where = where

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def clock_facts(self) -> None:
        return None

    def facts(self) -> dict[str, Any]:
        return {"machine": machine()}

    def sources(self, sensors: Sensors) -> Sources:
        return sources(sensors, self.where)

    def sampled(self, writer: RunWriter, found: Sources) -> AbstractContextManager[None]:
        return sampled(writer, found, self.where)


class TargetMachine(Machine):
    """The machine of a target. Use it in a `with` statement."""

    def __init__(self, observer: Observer) -> None:
        self.observer, self.target = observer, observer.name

    def __enter__(self) -> TargetMachine:
        return self

    def __exit__(self, *_: object) -> None:
        self.observer.close()

    def now_ns(self) -> int:
        return self.observer.clock.now_ns()

    def clock_facts(self) -> dict[str, Any]:
        clock = self.observer.clock
        return {"of": self.target, "ahead_ns": clock.offset_ns, "error_ns": clock.error_ns}

    def facts(self) -> dict[str, Any]:
        with Mirror(self.observer) as mirror:
            kinds = core_kinds(mirror.where)
            total = re.search(r"MemTotal:\s+(\d+) kB", label(mirror.where.path("/proc/meminfo")))
        system = self.observer.system
        return {
            "target": self.target,
            "machine": {
                **{name: system[name] for name in ("system", "release", "machine", "cores")},
                **properties(self.observer.target),
                "core_kinds": kinds,
                "memory_bytes": int(total[1]) * 1024 if total else None,
            },
            "host": machine(),
        }

    def sources(self, sensors: Sensors) -> Sources:
        found = Sources(target=self.target)
        with Mirror(self.observer) as mirror:
            for probed in mirror.find() if sensors is True else ():
                found.add(probed)
            for source in sensors if not isinstance(sensors, bool) else ():
                found.take(mirror.probe(source))
        return found

    @contextlib.contextmanager
    def sampled(self, writer: RunWriter, found: Sources) -> Iterator[None]:
        writer.meta(sensors_absent=found.absent)
        writer.commit()
        if not found.here:
            yield
            return
        with Mirror(self.observer) as mirror:
            sampler = TargetSampler(mirror, found.here, RunSink(str(writer.path)))
            with summed_up(writer, sampler):
                yield


def machine() -> dict[str, Any]:
    """The facts of this machine."""
    uname = platform.uname()
    return {
        "system": uname.system,
        "release": uname.release,
        "machine": uname.machine,
        "cores": os.cpu_count(),
        "core_kinds": core_kinds(),
        "memory_bytes": int(psutil.virtual_memory().total),
    }


def need_power(device: str) -> None:
    """Raise HandheldError if energy cannot be measured on a device. Called before anything long runs."""
    with machine_of(device) as where:
        where.sources(True).need_power()


def machine_of(device: str, where: Where | None = None, pid: int | None = None) -> AbstractContextManager[Machine]:
    """The machine that a device belongs to, for the time of the context. With `where`, it is this one.

    `pid` is the process that enqueues the steps, if it is known. Otherwise it is this process, or the runner that the
    next session on this device will use.
    """
    if where is not None or not is_target(device):
        return contextlib.nullcontext(ThisMachine(where))
    pid = runner_pid(device) if pid is None else pid
    return (
        TargetMachine(observed(device, pid))
        if is_remote(device)
        else contextlib.nullcontext(ThisMachine(Where(pid=pid)))
    )
