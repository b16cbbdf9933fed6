"""What is to be run, and in which order, so that no device gets the cool machine more often."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from handheld import cache, suite
from handheld.bench.shapes import CaseShape
from handheld.device import canonical
from handheld.errors import HandheldError
from handheld.resolve import check_model

DEVICES = ("opencl", "pytorch:cpu")
OWN = "own"  # the size of a model of the user


@dataclass(frozen=True)
class Case:
    """One run. A user's model has no size. If `batch` is None, the model's own batch size is used."""

    workload: str
    size: str
    device: str
    batch: int | None

    @property
    def key(self) -> str:
        """The identity of a row."""
        return f"{self.pair}/{self.device}"

    @property
    def pair(self) -> str:
        """What is captured once for all devices."""
        return f"{self.workload}/{self.size}/{self.batch or 'own'}"

    @property
    def file(self) -> str:
        """The key as a file name. A key of a path gets a hash, because different paths may look alike."""
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
    """A hash of a user's model file (not of its imports); "" for a workload of the suite or a missing file."""
    path = Path(workload if workload.endswith(".step") else workload.rpartition(":")[0])
    if workload in suite.WORKLOADS or not path.is_file():
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def expand(names: Iterable[str]) -> tuple[str, ...]:
    """Workload names, with a tag, domain or study replaced by its workloads: `text`, `liu2019`."""
    names_found: dict[str, None] = {}
    for name in names:
        group = (
            [w.name for w in suite.WORKLOADS.values() if name in (w.domain, *w.tags, *w.used_in)]
            if name not in suite.WORKLOADS
            else []
        )
        names_found |= dict.fromkeys(group or [name])
    return tuple(names_found) or tuple(suite.WORKLOADS)


@dataclass(frozen=True)
class Matrix:
    """Every name on every device at every batch size; without `batches`, at each model's own batch size."""

    names: tuple[str, ...]
    devices: tuple[str, ...] = DEVICES
    batches: tuple[int, ...] = ()
    size: str = "small"
    #: The device that `auto` stands for, by name.
    places: Mapping[str, str] = field(default_factory=dict)

    def cases(self) -> list[Case]:
        """All cases. Raises HandheldError for an unknown name."""
        if self.size not in suite.SIZES:
            raise HandheldError(f"there is no size {self.size!r}. Try: {' or '.join(suite.SIZES)}")
        for what, values in (("workload", self.names), ("device", self.devices)):
            if not values:
                raise HandheldError(f"there is no {what} to run")
        for batch in self.batches:
            if type(batch) is not int or batch < 1:
                raise HandheldError(f"the batch size {batch!r} must be 1 or more")
        cases: dict[Case, None] = {}
        for name in self.names:
            chosen = [self.places.get(name, device) if device == "auto" else device for device in self.devices]
            devices = dict.fromkeys(map(canonical, chosen))
            own = check_model(name, self.size)
            size = self.size if name in suite.WORKLOADS else OWN
            cases |= {Case(name, size, device, batch): None for batch in self.batches or (own,) for device in devices}
        return list(cases)


def ordered(cases: Iterable[Case], seed: int) -> list[Case]:
    """The cases in the order of their runs.

    All devices of one captured step run directly after each other, so that they meet the machine in the
    same state. The device that goes first alternates. The rest is in random order, so that heat and time
    of day favour no workload and no batch size.
    """
    pairs: dict[str, list[Case]] = {}
    for case in cases:
        pairs.setdefault(case.pair, []).append(case)
    names = sorted(pairs)
    random.Random(seed).shuffle(names)
    order: list[Case] = []
    for turn, name in enumerate(names):
        group = pairs[name]
        first = turn % len(group)
        order += group[first:] + group[:first]
    return order
