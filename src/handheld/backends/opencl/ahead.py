"""Compiles the kernels of a plan in several processes, before the plan needs them.

Some drivers compile a kernel at its first launch, one at a time in a process, and keep the result in a folder for all
processes (`compiles_at_launch` in plan/quirks.py). The first step of a plan would then wait for one kernel after the
other. So other processes, one per compute unit, build a part of the programs each and launch every kernel once, on
memory of zeros. Afterwards this process finds everything in the driver's folder.

A file in that folder marks a program whose kernels were compiled. Whatever fails here is compiled later, as usual.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from handheld.child import SILENCE_S, Child, Message, python_module
from handheld.graph.graph import Graph
from handheld.kernels.base import Buffer, Float, Int, Launch, Lowered, Workspace
from handheld.plan.quirks import compiles_at_launch
from handheld.plan.texts import ProgramText
from handheld.progress import report

if TYPE_CHECKING:
    from handheld.plan.plan import Plan

COMMAND = python_module("handheld.backends.opencl.ahead_worker")
#: Set to `off`, no other processes compile. They cost a second of processor time in all, which is lost if other work
#: keeps the cores busy.
VARIABLE = "HANDHELD_COMPILE_AHEAD"
#: A kernel takes this many times as long to compile as its text to parse.
KERNEL_COST = 4
#: Characters: below this cost, starting the processes takes longer than they save.
LEAST_COST = 400_000
#: The first launch of a kernel is not done here if it needs more memory.
MOST_BYTES = 256 << 20


class Job(NamedTuple):
    """A program, with the smallest launch of each of its kernels."""

    source: ProgramText
    kernels: tuple[Message, ...]
    cost: int

    def mark(self, folder: Path, driver: str) -> Path:
        """The file that says that all of this was compiled."""
        sizes = [(kernel["name"], kernel["local"]) for kernel in self.kernels]
        key = hashlib.sha256("\n".join((driver, json.dumps(sizes), self.source.text)).encode())
        return folder / f"handheld-{key.hexdigest()[:32]}"


def turned_off() -> bool:
    """Whether no other processes may compile."""
    return os.environ.get(VARIABLE, "").lower() in ("off", "0", "no")


def compile_ahead(plan: Plan, programs: Sequence[ProgramText]) -> int:
    """Compiles the kernels of these programs of a plan, if that saves time. Returns how many it compiled."""
    folder, units = driver_folder(), plan.caps.compute_units
    if turned_off() or units < 2 or folder is None or not compiles_at_launch(plan.caps):
        return 0
    driver = f"{plan.caps.name}; {plan.caps.driver}"
    jobs = [job for job in jobs_of(plan, programs) if not job.mark(folder, driver).exists()]
    if sum(job.cost for job in jobs) < LEAST_COST:
        return 0
    parts: list[list[Job]] = [[] for _ in range(min(units, len(jobs)))]
    for job in sorted(jobs, key=lambda job: -job.cost):
        min(parts, key=lambda part: sum(other.cost for other in part)).append(job)
    compiled = 0
    with contextlib.ExitStack() as stack:
        children = []
        for part in parts:
            with contextlib.suppress(OSError):
                child = stack.enter_context(Child(COMMAND, share_path=True))
                child.send({"device": plan.device, "programs": [_message(job) for job in part]})
                children.append((child, part))
        done = 0
        for child, part in children:
            for job in part:
                answer = _answer(child)
                if answer is None:
                    break
                if answer["complete"]:
                    with contextlib.suppress(OSError):
                        job.mark(folder, driver).touch()
                compiled += answer["kernels"]
                done += 1
                report("building", done, len(jobs))
    return compiled


def _answer(child: Child) -> Message | None:
    """The answer to the next program; None if the process has crashed or hangs."""
    try:
        return child.receive(SILENCE_S)
    except TimeoutError:
        return None


def _message(job: Job) -> Message:
    return {"text": job.source.text, "kernels": list(job.kernels)}


def driver_folder() -> Path | None:
    """The folder in which PoCL keeps what it compiled; None if it keeps nothing or has not made the folder yet."""
    if os.environ.get("POCL_KERNEL_CACHE") == "0":
        return None
    base = os.environ.get("XDG_CACHE_HOME")
    usual = (Path(base) if base else Path.home() / ".cache") / "pocl" / "kcache"
    folder = Path(os.environ.get("POCL_CACHE_DIR") or usual)
    return folder if folder.is_dir() and os.access(folder, os.W_OK) else None


def jobs_of(plan: Plan, programs: Sequence[ProgramText]) -> list[Job]:
    """One job per program. A kernel is compiled again for each size of its work-groups."""
    by_text: dict[str, dict[tuple[str, tuple[int, ...]], tuple[int, Message]]] = {}
    sources = {text: source for source in programs for text in source.members}
    for part in plan.graphs.values():
        for lowered in part.lowered:
            for launch in lowered.launches:
                if launch.text not in sources:
                    continue
                message = _first_launch(launch, sources[launch.text], part.graph, lowered)
                size = sum(value for kind, value in message["args"] if kind == "buffer")
                known = by_text.setdefault(launch.text, {})
                key = launch.kernel, launch.local_size
                if key not in known or size < known[key][0]:
                    known[key] = size, message
    jobs = []
    for source in programs:
        rows = [(len(text), *row) for text in source.members for row in by_text.get(text, {}).values()]
        cost = len(source.text) + KERNEL_COST * sum(length for length, _, _ in rows)
        jobs.append(Job(source, tuple(message for _, size, message in rows if size <= MOST_BYTES), cost))
    return jobs


def _first_launch(launch: Launch, source: ProgramText, graph: Graph, lowered: Lowered) -> Message:
    args: list[tuple[str, float]] = []
    for arg in launch.args:
        if isinstance(arg, Buffer):
            args.append(("buffer", max(graph.tensors[arg.tensor].nbytes, 4)))
        elif isinstance(arg, Workspace):
            args.append(("buffer", max(lowered.workspace[arg.index], 4)))
        elif isinstance(arg, Int | Float):
            args.append(("int" if isinstance(arg, Int) else "float", arg.value))
        else:  # Only kernels for GPUs have textures.
            args.append(("buffer", math.inf))
    return {
        "name": source.kernel(launch),
        "args": args,
        "global": list(launch.global_size),
        "local": list(launch.local_size),
    }
