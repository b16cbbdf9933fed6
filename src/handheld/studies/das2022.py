"""The 2022 study, measured: four perceptrons, a sweep of widths, transfers and launches.

    models × ways ──► result, a document that is written after every part ──► answers2022, page2022

All ways of a model are open at once and take turns, round after round, so that heat and whatever
else the machine does meets all of them.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from handheld import cache, suite
from handheld.backends.base import describe
from handheld.backends.opencl.devices import find
from handheld.backends.opencl.programs import Kept
from handheld.device import canonical
from handheld.errors import OutOfMemory, StudyError
from handheld.measure.transfers import SECONDS, SIZES, launch_times, transfer_times
from handheld.profile.facts import code_state, machine, versions
from handheld.studies.ways2022 import APART, RECORDED, WAYS, Resident, Way, check_equal, open_way

FORMAT, VERSION = "handheld study das2022", 1
RESULT, PAGE = "das2022.json", "das2022.html"
BATCH = 32
MODELS = ("m1", "m2", "m3", "m4")
WIDTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
#: the naive kernels in the per-op placement are measured on the four models only
SWEPT = tuple(name for name in WAYS if name != APART[0])
STEPS = 500
ROUNDS = 10
CHECKED = 3  # steps after which all ways are compared; they are warm-up, too
#: of one way: a slow one makes fewer steps a round, and fewer rounds where one step takes that long
ROUND_SECONDS, WAY_SECONDS, LEAST_ROUNDS = 0.3, 3.0, 2
LOADED = 0.5  # processes a core before the study begins
TOO_SLOW = 1.0  # seconds a step: wider layers are not tried in that way

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
    """A result in which nothing is measured yet: on what, with what, when."""
    if settings.device.partition(":")[0] != "opencl":
        raise StudyError(
            f"the study compares OpenCL with the CPU, and {settings.device} is no OpenCL device. Try: --on opencl"
        )
    found, (busy, cores) = find(settings.device), _load()
    return {
        "handheld": FORMAT,
        "version": VERSION,
        "complete": False,
        "device": f"opencl:{found.name}",
        "caps": found.caps.to_json(),
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
        "notes": []
        if busy < LOADED * cores
        else [
            f"the machine was busy with other work when the study began (load {busy:.1f} on "
            f"{cores} cores): times are too long, those of the CPU most"
        ],
    }


def measure(settings: Settings, result: Row, path: Path, tell: Tell = lambda what, part: None) -> None:
    """The whole study into a result that was begun, written to `path` after each of its parts.
    Whoever is interrupted has in it what was measured until then."""
    kept = Kept(settings.device)
    jobs: list[tuple[str, Callable[[], None]]] = [
        ("transfers", partial(_transfers, settings, result)),
        *((name.upper(), partial(_model, name, settings, kept, result)) for name in settings.models),
        *((f"width {width}", partial(_width, width, settings, kept, result)) for width in settings.widths),
    ]
    for place, (what, job) in enumerate(jobs):
        tell(what, place / len(jobs))
        job()
        result["complete"] = place == len(jobs) - 1
        cache.write_json(path, result)


def read(path: Path) -> Row:
    """A result that was written before; StudyError for anything else."""
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
            f"{path} is of version {data.get('version')!r:.20}, and this Handheld reads {VERSION}. Try: measure again"
        )
    return _today(data)


def _today(result: Row) -> Row:
    """With the name that the way `reference:cpu` has today; results before it say `torch:cpu`."""
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
        name: {"median": one.median, "spread": one.spread} for name, one in launch_times(settings.device).items()
    }


def _model(name: str, settings: Settings, kept: Kept, result: Row) -> None:
    workload = suite.get(name)
    result["models"][name] = _measured(workload, WAYS, settings, kept, result)


def _width(width: int, settings: Settings, kept: Kept, result: Row) -> None:
    """Two layers of a width, so that a step has all three products: of the output, of the gradient
    of the weights, and of the gradient of the input."""
    slow = {
        name
        for row in result["sweep"]
        for name, one in row["ways"].items()
        if one["times"]["step"]["median"] > TOO_SLOW
    }
    ways = [name for name in SWEPT if name not in slow]
    workload = suite.get("m1", widths=(width, width, width))
    try:
        row = _measured(workload, ways, settings, kept, result)
    except OutOfMemory as error:
        result["notes"].append(f"width {width} was left out: {error}")
        return
    row["left_out"] = sorted(slow)
    result["sweep"].append({"width": width, **row})


def _measured(workload: Any, names: Sequence[str], settings: Settings, kept: Kept, result: Row) -> Row:
    """All ways of a workload, in turns."""
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
        for turn in range(-(-settings.rounds // 2)):  # each of them runs a step many times over
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
    """Steps of a round and rounds: those asked for, or as many as there is time for."""
    way.time(1)
    took = max(min(way.samples["step"]), 1e-9)
    rounds = max(min(settings.rounds, int(WAY_SECONDS / took)), min(LEAST_ROUNDS, settings.rounds))
    return max(1, min(settings.steps // settings.rounds, int(ROUND_SECONDS / took))), rounds


def _turned(counts: Mapping[str, tuple[int, int]], turn: int) -> list[str]:
    """The ways that take part in a round, each time beginning with another."""
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
    """A median in seconds, with the quarters around it."""
    low, middle, high = np.percentile(values, (25, 50, 75))
    return {"median": float(middle), "p25": float(low), "p75": float(high), "n": len(values)}


def _processor() -> str:
    """The CPU's own name, where the system tells it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return line.partition(":")[2].strip()
    return "not known"


def _load() -> tuple[float, int]:
    """Processes that want to run, over the last minute, and cores; 0 where no one counts them."""
    with contextlib.suppress(OSError, AttributeError):
        return os.getloadavg()[0], os.cpu_count() or 1
    return 0.0, os.cpu_count() or 1


def _threads() -> int:
    import torch

    return int(torch.get_num_threads())
