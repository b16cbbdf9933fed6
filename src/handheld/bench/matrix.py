"""What is to be run, and in which order: no processor gets the cool machine more often."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from handheld import cache, suite
from handheld.bench.shapes import CaseShape
from handheld.device import canonical
from handheld.errors import HandheldError
from handheld.resolve import check_model

DEVICES = ("opencl", "pytorch:cpu")


@dataclass(frozen=True)
class Case:
    """One run. A model of the user's has no size, and where `batch` is None its own batch size."""

    workload: str
    size: str
    device: str
    batch: int | None

    @property
    def key(self) -> str:
        """What a row is known by."""
        return f"{self.pair}/{self.device}"

    @property
    def pair(self) -> str:
        """What is captured once for all devices."""
        return f"{self.workload}/{self.size}/{self.batch or 'own'}"

    @property
    def file(self) -> str:
        """The key as a file's name; those of paths have a mark that tells them apart."""
        return _file(self.key, self.workload)

    @property
    def step_file(self) -> str:
        return _file(self.pair, self.workload)

    def to_json(self) -> CaseShape:
        return {"workload": self.workload, "size": self.size, "device": self.device, "batch": self.batch}


def _file(key: str, workload: str) -> str:
    mark = "" if workload in suite.WORKLOADS else f"-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
    return cache.slug(key) + mark


def file_mark(workload: str) -> str:
    """Of the file that a user's model is made of, itself and not what it imports; empty for a
    workload of the suite, and for a file that is not there."""
    path = Path(workload if workload.endswith(".step") else workload.rpartition(":")[0])
    if workload in suite.WORKLOADS or not path.is_file():
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def expand(names: Iterable[str]) -> tuple[str, ...]:
    """Workloads by name, or all that have a tag, domain or study: `text`, `liu2019`."""
    found: dict[str, None] = {}
    for name in names:
        group = (
            [w.name for w in suite.WORKLOADS.values() if name in (w.domain, *w.tags, *w.used_in)]
            if name not in suite.WORKLOADS
            else []
        )
        found |= dict.fromkeys(group or [name])
    return tuple(found) or tuple(suite.WORKLOADS)


@dataclass(frozen=True)
class Matrix:
    """Every name on every device at every batch size; without `batches` at each one's own."""

    names: tuple[str, ...]
    devices: tuple[str, ...] = DEVICES
    batches: tuple[int, ...] = ()
    size: str = "small"

    def cases(self) -> list[Case]:
        """All of them; an error names what is not known."""
        if self.size not in suite.SIZES:
            raise HandheldError(f"there is no size {self.size!r}. Try: {' or '.join(suite.SIZES)}")
        for what, given in (("workload", self.names), ("device", self.devices)):
            if not given:
                raise HandheldError(f"there is no {what} to run")
        for batch in self.batches:
            if type(batch) is not int or batch < 1:
                raise HandheldError(f"a batch of {batch!r} makes no sense: it is 1 or more")
        devices = dict.fromkeys(map(canonical, self.devices))
        found: dict[Case, None] = {}
        for name in self.names:
            own = check_model(name, self.size)
            size = self.size if name in suite.WORKLOADS else "own"
            found |= {Case(name, size, device, batch): None for batch in self.batches or (own,) for device in devices}
        return list(found)


def ordered(cases: Iterable[Case], seed: int) -> list[Case]:
    """What is captured once runs on its devices one after the other, so that they meet the same
    machine; who is first takes turns; and what comes when is drawn, so that heat and hours favour
    no workload and no batch size."""
    pairs: dict[str, list[Case]] = {}
    for case in cases:
        pairs.setdefault(case.pair, []).append(case)
    names = sorted(pairs)
    random.Random(seed).shuffle(names)
    made: list[Case] = []
    for turn, name in enumerate(names):
        group = pairs[name]
        first = turn % len(group)
        made += group[first:] + group[:first]
    return made
