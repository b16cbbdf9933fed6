"""Measures the 2022 study: four perceptrons, a sweep of widths, transfers and launches.

    models × ways ──► result, a document that is written after every part ──► answers2022, page2022

All ways to run a model are open at once and take turns, round after round, so that heat and other work on the
machine affect all of them equally.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from handheld import cache, suite
from handheld.analyse.busy import others_in
from handheld.backends.base import describe, stable_name
from handheld.backends.opencl.programs import Kept
from handheld.device import canonical, takes_launches
from handheld.errors import OutOfMemory, StudyError
from handheld.measure.load import Load
from handheld.measure.transfers import SECONDS, SIZES, launch_times, transfer_times
from handheld.profile.facts import code_state, versions
from handheld.profile.machine import machine
from handheld.studies.ways2022 import APART, RECORDED, WAYS, Resident, Way, check_equal, open_way
from handheld.targets.names import is_remote, is_target

FORMAT, VERSION = "handheld study das2022", 1
RESULT, PAGE = "das2022.json", "das2022.html"
BATCH = 32
MODELS = ("m1", "m2", "m3", "m4")
WIDTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
#: The naive kernels in the per-op placement are measured only on the four models.
SWEPT = tuple(name for name in WAYS if name != APART[0])
STEPS = 500
ROUNDS = 10
CHECKED = 3  # After this many steps the ways are compared. These steps are also the warm-up.
#: Limits per way: a slow one runs fewer steps per round, and fewer rounds if one step takes that long.
ROUND_SECONDS, WAY_SECONDS, LEAST_ROUNDS = 0.3, 3.0, 2
TOO_SLOW = 1.0  # Seconds per step. A slower way is not tried with wider layers.

Row = dict[str, Any]
Tell = Callable[[str, float], None]


@dataclass(frozen=True)
class Settings:
    device: str = "opencl"
    steps: int = STEPS
    widths: Sequence[int] = WIDTHS
    models: Sequence[str] = MODELS
    sizes: Sequence[int] = SIZES
    rounds: int = ROUNDS


def begin(settings: Settings) -> Row:
    """A result without measurements: the device, the versions, the date and the settings."""
    if not takes_launches(settings.device):
        raise StudyError(
            f"the study compares OpenCL with the CPU, but {settings.device} is not an OpenCL device. Try: --on opencl"
        )
    caps = describe(settings.device)
    return {
        "handheld": FORMAT,
        "version": VERSION,
        "complete": False,
        "device": stable_name(settings.device),
        "caps": caps.to_json(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "batch": BATCH,
        "steps": settings.steps,
        "rounds": settings.rounds,
        "machine": {**machine(), "processor": _processor(), "threads": _threads()},
        "versions": versions(),
        "code": code_state(Path.cwd()),
        "cpu": describe("reference:cpu").name,
        "models": {},
        "sweep": [],
        "transfers": {},
        "launches": {},
        "others": None,
        "notes": _notes(settings.device),
    }


def _notes(device: str) -> list[str]:
    """What differs from the study if the device is reached through a runner."""
    if not is_target(device):
        return []
    notes = ["tensors at the host cross the connection to the runner, so the per-op ways include it"]
    if is_remote(device):
        notes.append(f"the CPU ways run on this computer, not on {device}: no PyTorch is needed there")
    return notes


def unfinished(path: Path, new: Row) -> Row | None:
    """The result in `path` if it can be continued: it is incomplete, and of the same device, settings and version."""
    try:
        old = read(path)
    except StudyError:
        return None
    same = ("device", "caps", "batch", "steps", "rounds", "versions", "cpu")
    ignored = ("global_mem_bytes", "max_alloc_bytes")  # What is free now is different every time.
    seen = [{**row, "caps": {k: v for k, v in row["caps"].items() if k not in ignored}} for row in (old, new)]
    continued = not old["complete"] and all(seen[0].get(name) == seen[1].get(name) for name in same)
    return old if continued else None


def parts_done(result: Row) -> int:
    """How many parts a result has."""
    skipped = [note for note in result["notes"] if note.startswith("width ")]
    return sum(map(len, (result["models"], result["sweep"], skipped))) + bool(result["launches"])


def measure(settings: Settings, result: Row, path: Path, tell: Tell = lambda what, part: None) -> None:
    """Measure the whole study into a result from `begin`, and write it to `path` after each part.

    After an interruption, the result holds everything that was measured until then. Parts that it has are not
    measured again.
    """
    kept, load = None if is_target(settings.device) else Kept(settings.device), Load()
    before = others_in(result.get("others"))  # while the parts were measured that the result has
    widths = {row["width"] for row in result["sweep"]}
    skipped = {note.partition(" was skipped")[0] for note in result["notes"]}
    jobs: list[tuple[str, bool, Callable[[], None]]] = [
        ("transfers", bool(result["launches"]), partial(_transfers, settings, result)),
        *(
            (name.upper(), name in result["models"], partial(_model, name, settings, kept, result))
            for name in settings.models
        ),
        *(
            (
                f"width {width}",
                width in widths or f"width {width}" in skipped,
                partial(_width, width, settings, kept, result),
            )
            for width in settings.widths
        ),
    ]
    for place, (what, done, job) in enumerate(jobs):
        tell(what, place / len(jobs))
        if not done:
            job()
        now = load.so_far()
        others = now.joined(before) if now else before
        result["others"] = others.to_json() if others else None
        result["complete"] = place == len(jobs) - 1
        cache.write_json(path, result)


def read(path: Path) -> Row:
    """Read a result that was written before. Raises StudyError for anything else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StudyError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise StudyError(f"{path} is not a result of this study, or damaged") from None
    if not isinstance(data, dict) or data.get("handheld") != FORMAT:
        raise StudyError(f"{path} is not a result of this study. Try: the {RESULT} that it wrote")
    if data.get("version") != VERSION:
        raise StudyError(
            f"{path} has version {data.get('version')!r:.20}; this Handheld reads version {VERSION}. Try: measure again"
        )
    return _today(data)


def _today(result: Row) -> Row:
    """The result with today's name `reference:cpu`; older results have `torch:cpu`."""
    for row in (*result.get("models", {}).values(), *result.get("sweep", [])):
        if isinstance(row, dict) and isinstance(row.get("ways"), dict):
            row["ways"] = {canonical(name): way for name, way in row["ways"].items()}
    return result


# ── parts ─────────────────────────────────────────────────────────────────────────────────────


def _transfers(settings: Settings, result: Row) -> None:
    seconds = SECONDS * min(1.0, settings.steps / STEPS)
    times = transfer_times(settings.device, settings.sizes, seconds)
    result["transfers"] = {
        direction: [{"bytes": row["bytes"], **spread(row["seconds"])} for row in rows]
        for direction, rows in times.items()
    }
    result["launches"] = {
        name: {"median": times.median, "spread": times.spread} for name, times in launch_times(settings.device).items()
    }


def _model(name: str, settings: Settings, kept: Kept | None, result: Row) -> None:
    workload = suite.get(name)
    result["models"][name] = _measured(workload, WAYS, settings, kept, result)


def _width(width: int, settings: Settings, kept: Kept | None, result: Row) -> None:
    """Two layers of one width, so that a step has all three products: the output, the gradient of the weights, and the
    gradient of the input."""
    slow = {
        name
        for row in result["sweep"]
        for name, way in row["ways"].items()
        if way["times"]["step"]["median"] > TOO_SLOW
    }
    ways = [name for name in SWEPT if name not in slow]
    workload = suite.get("m1", widths=(width, width, width))
    try:
        row = _measured(workload, ways, settings, kept, result)
    except OutOfMemory as error:
        result["notes"].append(f"width {width} was skipped: {error}")
        return
    row["left_out"] = sorted(slow)
    result["sweep"].append({"width": width, **row})


def _measured(workload: Any, names: Sequence[str], settings: Settings, kept: Kept | None, result: Row) -> Row:
    """Measure all ways to run a workload, in turns."""
    step = workload.step(BATCH)
    with contextlib.ExitStack() as stack:
        ways: dict[str, Way] = {}
        for name in names:
            ways[name] = way = open_way(name, workload, step, BATCH, settings.device, kept)
            stack.callback(way.close)
        for way in ways.values():
            way.run(CHECKED)
        gaps = check_equal(ways)
        counts = {name: _count(way, settings) for name, way in ways.items()}
        for way in ways.values():
            way.samples.clear()
        for turn in range(settings.rounds):
            for name in _turned(counts, turn):
                ways[name].time(counts[name][0])
        for turn in range(-(-settings.rounds // 2)):  # Each inspection runs many steps, so half the rounds are enough.
            for name in _turned(counts, turn):
                way, count = ways[name], counts[name][0]
                way.inspect(min(RECORDED, count))
                if isinstance(way, Resident):
                    way.time_parts(count)
        return {
            "widths": list(workload.options["widths"]),
            "ways": {name: _row(way, math.prod(counts[name]), gaps.get(name)) for name, way in ways.items()},
        }


def _count(way: Way, settings: Settings) -> tuple[int, int]:
    """Steps per round and rounds: as in the settings, or as many as there is time for."""
    way.time(1)
    took = max(min(way.samples["step"]), 1e-9)
    rounds = max(min(settings.rounds, int(WAY_SECONDS / took)), min(LEAST_ROUNDS, settings.rounds))
    return max(1, min(settings.steps // settings.rounds, int(ROUND_SECONDS / took))), rounds


def _turned(counts: Mapping[str, tuple[int, int]], turn: int) -> list[str]:
    """The ways that take part in a round. Each round begins with another way."""
    names = [name for name, (_, rounds) in counts.items() if turn < rounds]
    first = turn % max(len(names), 1)
    return names[first:] + names[:first]


def _row(way: Way, steps: int, gap: float | None) -> Row:
    return {
        "steps": steps,
        "parameters_differ": gap,
        "facts": way.facts(),
        "times": {name: spread(values) for name, values in way.samples.items()},
    }


def spread(values: Sequence[float]) -> Row:
    """The median in seconds, with the quartiles."""
    low, middle, high = np.percentile(values, (25, 50, 75))
    return {"median": float(middle), "p25": float(low), "p75": float(high), "n": len(values)}


def _processor() -> str:
    """The name of the CPU, if the system reports it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return line.partition(":")[2].strip()
    return "not known"


def _threads() -> int:
    import torch

    return int(torch.get_num_threads())
