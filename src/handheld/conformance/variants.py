"""Runs op cases with every variant that the tuner may choose, for several descriptions of devices.

A case has as many turns as its node with the most candidates. In turn n, each node that has variants runs
its n-th one. The choices reach the plan through a tuning record, as the tuner's do.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from handheld.backends.opencl.programs import Kept
from handheld.conformance.case import Case
from handheld.conformance.check import Held, captured, differences, limit_of, reference, run_plan
from handheld.device import DeviceCaps
from handheld.kernels.base import Choice
from handheld.plan.lowering import candidates
from handheld.plan.signature import signature
from handheld.plan.tuning import Entry, TuningRecord
from handheld.step import Step

#: the properties that decide which variants exist; all others are those of the real device
DESCRIPTIONS: Mapping[str, Mapping[str, Any]] = {
    "own": {},
    "cpu": {"kind": "cpu", "vector_width": 8},
    "wide": {"kind": "cpu", "vector_width": 16},
    "desktop": {"kind": "gpu", "compute_units": 48, "max_work_group": 1024, "local_mem_bytes": 48 << 10},
    "textures": {
        "kind": "gpu",
        "vendor": "QUALCOMM",
        "compute_units": 6,
        "max_work_group": 1024,
        "local_mem_bytes": 32 << 10,
    },
    "least": {"kind": "gpu", "compute_units": 1, "max_work_group": 64, "local_mem_bytes": 16 << 10, "images": False},
}


def described(caps: DeviceCaps, name: str) -> DeviceCaps:
    """The real device described as another kind, within the limits of the real device."""
    changed = dict(DESCRIPTIONS[name])
    for key in ("max_work_group", "local_mem_bytes", "images"):
        if key in changed:
            changed[key] = min(changed[key], getattr(caps, key))
    return replace(caps, **changed)


class Variants:
    """The turns of a case on a device."""

    def __init__(
        self, case: Case, device: str, caps: DeviceCaps, isolate: bool = False, limit: float | None = None
    ) -> None:
        self.case, self.device, self.caps, self.isolate = case, device, caps, isolate
        self.limit = limit_of(case, exact=False) if limit is None else limit
        self.kept = Kept(device)
        self.held = Held(case)
        self.step: Step = captured(self.held, case.name)
        graph = self.step.graphs["case"]
        self.offered: dict[str, tuple[Choice, ...]] = {}
        for node in graph.nodes:
            found = candidates(node, graph, caps)
            if found:
                self.offered[signature(node, graph)] = found
        self.turns = max((len(found) for found in self.offered.values()), default=0)

    def wrong(self, turns: Iterable[int]) -> list[str]:
        """The results that differ from float64, with the choices of that turn."""
        want, start, found = reference(self.held), dict(self.step.values), []
        for turn in turns:
            self.step.values.update(start)
            choices = {key: offer[turn % len(offer)] for key, offer in self.offered.items()}
            for gap in differences(self._run(choices), want, self.limit):
                found.append(f"turn {turn}: {gap}; {list(map(dict, choices.values()))}")
        return found

    def _run(self, choices: Mapping[str, Choice]) -> Any:
        record = TuningRecord.of(self.caps)
        record.entries = {key: Entry(choice) for key, choice in choices.items()}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "record.json"
            record.write(path)
            plan = self.step.plan(self.device, caps=self.caps, tuning=path, isolate=self.isolate)
        graph = self.step.graphs["case"]
        tuned = {signature(graph.nodes[i], graph): choice for i, choice in plan.graphs["case"].tuned.items()}
        assert tuned == choices, "the plan does not take the choices that its families offer"
        return run_plan(plan, self.held, kept=self.kept)


def in_shard(name: str, shard: str) -> bool:
    """Whether a case belongs to part i of n; the shard is written `i/n`."""
    part, _, parts = shard.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise ValueError(f"--shard {shard} is not a part of the cases. Try: --shard 1/4")
    return random.Random(name).randrange(int(parts)) == int(part) - 1
