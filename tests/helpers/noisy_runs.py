"""Artificial runs with the noise of real ones, for tests of comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from handheld.store.commands import LAUNCH, to_bytes
from handheld.store.commands import commands as to_commands
from handheld.store.rows import OpRow
from handheld.store.writer import RunWriter

START = 10**12

#: (path, op, phase, ms)
Spec = tuple[str, str, str, float]


def network(layers: int = 8) -> list[Spec]:
    """A network of some layers, as ops with their usual times."""
    ops: list[Spec] = []
    for layer in range(layers):
        ms = 0.3 + 0.2 * (layer % 4)
        ops += [(f"layers.{layer}", "conv", "forward", ms), (f"layers.{layer}", "map", "forward", 0.1)]
        ops += [(f"layers.{layer}", "conv_weight", "backward", ms), (f"layers.{layer}", "conv_input", "backward", ms)]
    return [*ops, ("", "map", "update", 0.2), ("loss", "reduce", "forward", 0.004)]


def noisy_run(
    path: Path,
    seed: int,
    *,
    ops: Sequence[Spec] | None = None,
    slower: Mapping[int, float] | None = None,
    whole: float = 1.0,
    windows: int = 30,
    between: int = 20,
    batch: int = 8,
    **meta: object,
) -> Path:
    """A run whose windows differ as on a real machine: each process has its own factor and each op in it too, windows
    drift, some steps are disturbed. `slower` maps positions of ops to factors; `whole` is a factor on everything."""
    specs, rng = list(ops if ops is not None else network()), np.random.default_rng(seed)
    usual = np.array([ms for *_, ms in specs]) * 1e6 * whole
    for op, factor in (slower or {}).items():
        usual[op] *= factor
    usual *= np.exp(rng.normal(0, 0.015)) * np.exp(rng.normal(0, 0.006, len(specs)))
    writer = RunWriter(path)
    writer.meta(
        **{"status": "complete", "device": "opencl", "caps": {"name": "made up"}, "settings": {"what": "net"}, **meta}
    )
    for number, (where, op, phase, _) in enumerate(specs):
        writer.add(
            OpRow(
                number, "train", number, op, f"aten.{op}", phase, where, f"{op} {where}", "default", 1, 1000, 1000, {}
            )
        )
    for at in (START, START + 3600 * 10**9):
        writer.put("clock", at, at, 500)
    now, step, drift = START, 0, 0.0
    for window in range(windows):
        drift = 0.8 * drift + rng.normal(0, 0.01)
        for inside in range(4 + between):
            recorded = inside < 4
            busy = 1 + (rng.exponential(0.8) if rng.random() < 0.05 else 0.0)
            times = usual * np.exp(drift + rng.normal(0, 0.02, len(specs))) * busy
            begin, rows = now, []
            for op, ns in enumerate(times.astype(np.int64).tolist()):
                rows.append((LAUNCH, op, 0, begin, begin + 800, begin, begin, now, now + ns))
                now += ns + 2000
            writer.put("step", step, "train", batch, begin, now, window if recorded else None, None)
            if recorded:
                writer.put("command", step, len(rows), to_bytes(to_commands(rows)))
            step += 1
    writer.close()
    return path
