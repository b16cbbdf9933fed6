"""The conditions of a run: enough to repeat it, and to decide what it can be compared with."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from handheld.cost.energy import EnergyModel
from handheld.kernels.base import Choice
from handheld.kernels.versions import current
from handheld.measure.ceilings import Ceilings, stored
from handheld.plan.arithmetic import arithmetic
from handheld.plan.fit import fit_text
from handheld.plan.lowering import family
from handheld.plan.plan import Plan
from handheld.plan.signature import signature
from handheld.profile import energy_models
from handheld.profile.machine import Machine, ThisMachine
from handheld.run.halves import half_text

PACKAGES = ("handheld", "numpy", "pyopencl", "torch")


def this_process() -> dict[str, float]:
    """The process that writes a run file. A reader can tell from it whether the run goes on."""
    process = psutil.Process()
    return {"pid": process.pid, "created": process.create_time()}


def facts(plan: Plan, code: Path, where: Machine | None = None) -> dict[str, Any]:
    """The facts of a plan that runs on a machine; by default on this one."""
    opencl = plan.caps.takes_launches
    known = stored(plan.caps) if opencl else None
    model, reason = (
        energy_models.stored(plan.caps, plan.device) if opencl else (None, "only OpenCL devices have an energy model")
    )
    where = where or ThisMachine()
    return {
        "device": plan.device,
        "caps": plan.caps.to_json(),
        "plan_options": dict(plan.options),
        "plan_bytes": plan.bytes,
        "fit": fit_text(plan.options, plan.bytes),
        "half": half_text(plan),
        "arithmetic": arithmetic(plan),
        "arena_bytes": plan.arena_bytes,
        "segments": list(plan.segments),
        "plan_hash": plan_hash(plan),
        "tuned": tuned(plan),
        "kernels": current(plan.caps.kind),
        **where.facts(),
        "versions": versions(),
        "code": code_state(code),
        "ceilings": known and rates(known),
        "energy_model": model and model.to_json(),
        "no_energy_model": reason,
        "stale_energy_model": stale_energy_model(plan, model) if model else "",
    }


def stale_energy_model(plan: Plan, model: EnergyModel) -> str:
    """Which kernels of the plan have changed since the energy model was measured, as a text, or ""."""
    used = {family(node.op) for graph_plan in plan.graphs.values() for node in graph_plan.graph.nodes}
    return energy_models.stale(model, plan.caps.kind, used)


def plan_hash(plan: Plan) -> str:
    """A hash of all launches, their programs and the places of their tensors. Equal plans have equal hashes."""
    data = plan.to_json()
    return hashlib.sha256(json.dumps([data[key] for key in ("graphs", "sources", "segments")]).encode()).hexdigest()


def tuned(plan: Plan) -> dict[str, Choice]:
    """The variants that the plan took from tuning records, by signature."""
    return {
        signature(graph_plan.graph.nodes[node], graph_plan.graph): dict(choice)
        for graph_plan in plan.graphs.values()
        for node, choice in graph_plan.tuned.items()
    }


def rates(known: Ceilings) -> dict[str, Any]:
    """The ceilings as a run file stores them: FLOP/s, B/s and seconds."""
    return {
        "flops": known.fp32.median,
        "bytes_s": known.bandwidth,
        "memory": [[level.working_set_bytes, level.copy.median] for level in known.memory],
        "to_device_bytes_s": known.to_device.median,
        "to_device_latency_s": known.to_device_latency_s.median,
        "to_host_bytes_s": known.to_host.median,
        "to_host_latency_s": known.to_host_latency_s.median,
        "launch_enqueue_s": known.launch_enqueue_s.median,
        "launch_device_s": known.launch_device_s.median,
        "launch_round_trip_s": known.launch_round_trip_s.median,
        "date": known.date,
        "others": known.others,
    }


def versions() -> dict[str, str]:
    numbers = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            numbers[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return numbers


def code_state(folder: Path) -> dict[str, Any]:
    """The git commit of the user's code, and whether it has uncommitted changes. Empty without git."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=5, check=False
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return {}
    changed = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": bool(changed)}
