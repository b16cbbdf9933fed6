"""Compares runs: the step, its ops and modules, memory and energy; aligned by the graph and judged against noise.

    comparison = handheld.compare("a.run", "b.run")
    for op in comparison.pairs[0].ops:
        print(op.title, op.ratio, op.verdict)

Ratios are b divided by a. judge.py says what counts as a difference, align.py which ops belong together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from handheld.analyse import judge
from handheld.analyse.align import Alignment, align
from handheld.analyse.conditions import differences, too_few, warnings
from handheld.analyse.quantities import JoulesChange, Quantity, energies, memories, op_joules
from handheld.analyse.run import Run, open_run
from handheld.analyse.window_times import batch_of, count, op_windows, per_sample, start_ms, step_blocks, step_ms, total
from handheld.errors import RunFileError
from handheld.store.record import Record
from handheld.store.rows import OpRow

LEAST_SHARE = 0.005  # Ops below this share of the step's ops are too short to judge.
SLOWER, FASTER, SAME, SHORT, FEW = "slower", "faster", "same", "too short", "too few windows"
RESHAPED = "other shapes"  # the note of an op
BATCHES = "other batch"  # of a step: its time per sample is judged instead


@dataclass(frozen=True, slots=True)
class Timing(Record):
    """The time of something in both runs, in ms. `ratio` is b divided by a. `beyond` is the ratio without what all ops
    have in common, with its 95% interval; for a whole step it is the ratio itself. `verdict` is `slower` or `faster` if
    the difference is more than noise, `same` if it is not, and otherwise the reason why it is not judged."""

    optional: ClassVar[frozenset[str]] = frozenset({"low", "high", "p"})

    a_ms: float
    b_ms: float
    ratio: float
    beyond: float
    low: float | None
    high: float | None
    p: float | None
    verdict: str

    @property
    def differs(self) -> bool:
        return self.verdict in (SLOWER, FASTER)


@dataclass(frozen=True, slots=True)
class OpChange(Timing):
    """An op that both runs have. `note` says what else is different about it: shapes, or the kernel's variant."""

    id_a: int
    id_b: int
    graph: str
    phase: str
    path: str
    op: str
    source: str
    share: float  # of the time of all ops, in the run where it is larger
    note: str = ""

    @property
    def title(self) -> str:
        return f"{self.path or '(model)'} {self.op}"

    @property
    def reshaped(self) -> bool:
        return self.note == RESHAPED

    @property
    def variants(self) -> str:
        """The kernel's variants in both runs if they differ, else ""."""
        return "" if self.reshaped else self.note


@dataclass(frozen=True, slots=True)
class ModuleChange(Timing):
    """A module that both runs have: the sum of its ops and of those in the modules inside it. `complete` is false if
    some of these ops have no partner."""

    path: str
    complete: bool


@dataclass(frozen=True, slots=True)
class LoneOp(Record):
    """An op that only one run has."""

    id: int
    graph: str
    phase: str
    path: str
    op: str
    source: str
    ms: float | None

    @property
    def title(self) -> str:
        return f"{self.path or '(model)'} {self.op}"


@dataclass(frozen=True, slots=True)
class Pair(Record):
    """Two runs. Ops and modules are sorted by how much time they gained or lost. `common` is the ratio that most ops
    have in common. `step` is the time from step to step, `device` that of all ops together.

    If the batches of the runs differ, `sample` is the time of a step divided by its samples. It is judged instead of
    the step, and all times but that of `step` are per sample. `few` says why ops have too few windows, else "".
    """

    a: str
    b: str
    device_a: str
    device_b: str
    batch_a: int | None
    batch_b: int | None
    step: Timing | None
    sample: Timing | None
    device: Timing | None
    common: float
    ops: tuple[OpChange, ...]
    modules: tuple[ModuleChange, ...]
    few: str
    only_a: tuple[LoneOp, ...]
    only_b: tuple[LoneOp, ...]
    memory: tuple[Quantity, ...]
    energy: tuple[Quantity, ...]
    joules: tuple[JoulesChange, ...]
    differences: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def per_sample(self) -> bool:
        """Whether times are per sample because the batches differ."""
        return _batches_differ(self.batch_a, self.batch_b)

    def wholes(self) -> tuple[tuple[str, Timing | None], ...]:
        """What is judged about the whole runs, with names."""
        first = ("time per sample", self.sample) if self.per_sample else ("step", self.step)
        return (first, ("all ops per sample" if self.per_sample else "all ops", self.device))

    def slowdowns(self, above: float = 0.0) -> list[tuple[str, float]]:
        """What is slower by more than the share `above` and by more than noise, the worst first: (name, ratio)."""
        each = " per sample" if self.per_sample else ""
        timings: list[tuple[str, Timing]] = [(f"{op.title}{each}", op) for op in self.ops]
        timings += [(f"module {module.path}{each}", module) for module in self.modules]
        timings += [(name, timing) for name, timing in self.wholes() if timing]
        slow = [(name, t.beyond) for name, t in timings if t.verdict == SLOWER and t.beyond > 1 + above]
        return sorted(slow, key=lambda item: -item[1])


@dataclass(frozen=True, slots=True)
class Comparison(Record):
    """Each run compared with the first run on its device, or with the first of all."""

    runs: tuple[str, ...]
    pairs: tuple[Pair, ...]


def compare(runs: Sequence[Run]) -> Comparison:
    """Compare two runs or more. Each is compared with the first run before it on the same device; if there is none,
    with the first of all."""
    if len(runs) < 2:
        raise RunFileError(f"a comparison needs two runs, not {len(runs)}. Try: handheld compare A.run B.run")
    pairs = []
    for number, run in enumerate(runs[1:], 1):
        same = [other for other in runs[:number] if _device(other) == _device(run)]
        pairs.append(compare_two((same or runs)[0], run))
    return Comparison(tuple(str(run.path) for run in runs), tuple(pairs))


def compare_files(runs: Sequence[Run | str | Path]) -> Comparison:
    """The same for runs or their paths."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(open_run(run)) if isinstance(run, (str, Path)) else run for run in runs]
        return compare(opened)


def compare_two(a: Run, b: Run) -> Pair:
    aligned = align(a.op_rows, b.op_rows)
    load = judge.unequal_load(*(others.share if (others := run.others()) else None for run in (a, b)))
    batches = batch_of(a), batch_of(b)
    samples = (batches[0] or 1, batches[1] or 1) if _batches_differ(*batches) else (1, 1)
    windows_a, windows_b = per_sample(op_windows(a), samples[0]), per_sample(op_windows(b), samples[1])
    device = _whole(total(windows_a, windows_a), total(windows_b, windows_b), load)
    # If the whole run differs beyond noise, its ops really changed, and nothing is left out of their ratios.
    noise = _Noise(load, start_ms(a, b) / min(samples), 1.0 if device is not None and device.differs else None)
    common, ops = _ops(aligned, windows_a, windows_b, noise)
    return Pair(
        a=str(a.path),
        b=str(b.path),
        device_a=_device(a),
        device_b=_device(b),
        batch_a=batches[0],
        batch_b=batches[1],
        step=_step(a, b, load, samples),
        sample=_sample(a, b, load, samples) if samples[0] != samples[1] else None,
        device=device,
        common=common,
        ops=ops,
        modules=_modules(aligned, windows_a, windows_b, replace(noise, common=common)),
        few=too_few(sum(op.verdict == FEW for op in ops), a, b, (count(windows_a), count(windows_b))),
        only_a=_lone(aligned.only_a, windows_a),
        only_b=_lone(aligned.only_b, windows_b),
        memory=memories(a, b),
        energy=energies(a, b, load, samples),
        joules=op_joules(a, b, aligned.pairs, samples),
        differences=tuple(differences(a, b)),
        warnings=tuple(warnings(a, b)),
    )


def _batches_differ(a: int | None, b: int | None) -> bool:
    return bool(a and b) and a != b


def _device(run: Run) -> str:
    name = (run.meta.get("caps") or {}).get("name")
    device = run.meta.get("device") or "unknown"
    return f"{device} ({name})" if name else str(device)


Windows = Mapping[int, Mapping[int, float]]


@dataclass(frozen=True, slots=True)
class _Noise:
    """What the judgement of ops needs to know of both runs: the difference in load, the time to start a launch in ms,
    and the ratio in common of all ops if it is already known."""

    load: float
    start: float
    common: float | None


def _ops(aligned: Alignment, a: Windows, b: Windows, noise: _Noise) -> tuple[float, tuple[OpChange, ...]]:
    """What the ops have in common, and one row per pair of ops that was timed in both runs."""
    timed = [(x, y) for x, y in aligned.pairs if a.get(x.id) and b.get(y.id)]
    medians = [(_median(a[x.id]), _median(b[y.id])) for x, y in timed]
    shares = _shares(medians, a, b)
    long = [share >= LEAST_SHARE for share in shares]
    figures = [
        judge.Figure(_values(a[x.id]), _values(b[y.id]), noise.start * max(x.launches, y.launches))
        for (x, y), keep in zip(timed, long, strict=True)
        if keep
    ]
    common, judged = judge.many(figures, noise.load, noise.common)
    verdicts = iter(judged)
    rows = []
    for (x, y), (a_ms, b_ms), share, keep in zip(timed, medians, shares, long, strict=True):
        timing = _timing(a_ms, b_ms, next(verdicts) if keep else None, "" if keep else SHORT, common)
        rows.append(OpChange(*timing, x.id, y.id, x.graph, x.phase, x.path, x.op, x.source, share, _note(x, y)))
    return common, tuple(sorted(rows, key=lambda row: -abs(row.b_ms - row.a_ms * common)))


def _modules(aligned: Alignment, a: Windows, b: Windows, noise: _Noise) -> tuple[ModuleChange, ...]:
    """One row per module that has ops in both runs, with all of its ops and those of the modules inside it."""
    alone = {path for op in (*aligned.only_a, *aligned.only_b) for path in _around(op.path)}
    ids_a: dict[str, list[int]] = {}
    ids_b: dict[str, list[int]] = {}
    launches: dict[str, int] = {}
    for x, y in aligned.pairs:
        for path in _around(x.path):
            launches[path] = launches.get(path, 0) + max(x.launches, y.launches)
            ids_a.setdefault(path, []).append(x.id)
            ids_b.setdefault(path, []).append(y.id)
    for path in ids_a.keys() - _distinct(aligned, ids_a):
        del ids_a[path], ids_b[path]
    for ids, ops in ((ids_a, aligned.only_a), (ids_b, aligned.only_b)):
        for op in ops:
            for path in _around(op.path):
                if path in ids:
                    ids[path].append(op.id)
    sums = {path: (total(a, ids_a[path]), total(b, ids_b[path])) for path in ids_a}
    known = {path: pair for path, pair in sums.items() if len(pair[0]) and len(pair[1])}
    medians = {path: (float(np.median(x)), float(np.median(y))) for path, (x, y) in known.items()}
    shares = dict(zip(medians, _shares(list(medians.values()), a, b), strict=True))
    long = [path for path, share in shares.items() if share >= LEAST_SHARE]
    figures = [judge.Figure(*known[path], noise.start * launches[path]) for path in long]
    common, judged = judge.many(figures, noise.load, noise.common)
    verdicts = dict(zip(long, judged, strict=True))
    rows = [
        ModuleChange(
            *_timing(*medians[path], verdicts.get(path), "" if path in verdicts else SHORT, common),
            path or "(model)",
            path not in alone,
        )
        for path in known
    ]
    return tuple(sorted(rows, key=lambda row: -abs(row.b_ms - row.a_ms * common)))


def _around(path: str) -> list[str]:
    """A module and all modules around it. Ops outside of all modules have a row of their own."""
    parts = path.split(".")
    return [".".join(parts[:depth]) for depth in range(len(parts), 0, -1)]


def _distinct(aligned: Alignment, ids: Mapping[str, Sequence[int]]) -> set[str]:
    """The modules without those that hold nothing but one other module."""
    own = {op.path for pair in aligned.pairs for op in pair} | {op.path for op in (*aligned.only_a, *aligned.only_b)}
    whole = {(path.rpartition(".")[0], len(known)) for path, known in ids.items()}
    return {path for path, known in ids.items() if path in own or (path, len(known)) not in whole}


def _timing(
    a_ms: float, b_ms: float, judged: judge.Judged | None, why: str, common: float
) -> tuple[float, float, float, float, float | None, float | None, float | None, str]:
    """The fields of a Timing. `why` is the reason if it is not judged."""
    ratio = b_ms / a_ms if a_ms else 1.0
    if judged is None:
        return a_ms, b_ms, ratio, ratio / common, None, None, None, why or FEW
    verdict = SAME if not judged.differs else SLOWER if judged.ratio > 1 else FASTER
    return a_ms, b_ms, ratio, judged.ratio, judged.low, judged.high, judged.p, verdict


def _step(a: Run, b: Run, load: float, samples: tuple[int, int]) -> Timing | None:
    """The steps as the runs report them. Steps of different batches are not judged."""
    if samples[0] == samples[1]:
        return _sample(a, b, load, (1, 1))
    a_ms, b_ms = step_ms(a), step_ms(b)
    return None if a_ms is None or b_ms is None else Timing(*_timing(a_ms, b_ms, None, BATCHES, 1.0))


def _sample(a: Run, b: Run, load: float, samples: tuple[int, int]) -> Timing | None:
    """The steps divided by their samples, judged by the times of their parts."""
    a_ms, b_ms = step_ms(a), step_ms(b)
    if a_ms is None or b_ms is None:
        return None
    each = a_ms / samples[0], b_ms / samples[1]
    judged = judge.whole(step_blocks(a) / samples[0], step_blocks(b) / samples[1], load, each)
    return Timing(*_timing(*each, judged, "too few steps", 1.0))


def _whole(a: np.ndarray, b: np.ndarray, load: float) -> Timing | None:
    if not len(a) or not len(b):
        return None
    return Timing(*_timing(float(np.median(a)), float(np.median(b)), judge.whole(a, b, load), "", 1.0))


def _shares(medians: Sequence[tuple[float, float]], a: Windows, b: Windows) -> list[float]:
    whole_a, whole_b = (sum(map(_median, windows.values())) or 1.0 for windows in (a, b))
    return [max(x / whole_a, y / whole_b) for x, y in medians]


def _values(windows: Mapping[int, float]) -> np.ndarray:
    return np.array(list(windows.values()))


def _median(windows: Mapping[int, float]) -> float:
    return float(np.median(_values(windows)))


def _note(a: OpRow, b: OpRow) -> str:
    if a.signature != b.signature:
        return RESHAPED
    if a.variant != b.variant:
        return f"{a.variant} / {b.variant}"
    return ""


def _lone(ops: Sequence[OpRow], windows: Windows) -> tuple[LoneOp, ...]:
    rows = [
        LoneOp(op.id, op.graph, op.phase, op.path, op.op, op.source, _median(times) if times else None)
        for op in ops
        for times in [windows.get(op.id)]
    ]
    return tuple(sorted(rows, key=lambda row: -(row.ms or 0.0)))
