"""Sees a trainer's steps, has the device time some of them, and writes the run file.

Every step costs two readings of the host's clock. Now and then a window of WINDOW steps in a row is
recorded: its commands go through a queue that keeps times. The first of them starts on an empty
device; the others run as steps do. The next window opens when all of them together, with it, have
cost no more than SHARE of the time since the first.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from handheld.backends.base import LAUNCH, Recording
from handheld.errors import DeviceError, HandheldError
from handheld.plan.plan import Plan
from handheld.plan.signature import signature
from handheld.profile.facts import facts
from handheld.profile.memory import live
from handheld.profile.work import flops, nbytes
from handheld.run.trainer import Trainer
from handheld.store.writer import RunWriter

WINDOW = 4
SHARE = 0.03  # of a run's time that recording may cost
FIRST = 2  # steps before the first window: the first ones are never like the others


class Profiler:
    """Observes the trainers that it is attached to, from `__enter__` to `__exit__`.

    `wait` steps are not looked at, `warmup` steps are run and noted but not recorded, then
    `active` steps are (None: all that follow)."""

    def __init__(self, path: str | Path, wait: int = 0, warmup: int = FIRST,
                 active: int | None = None, **settings: Any) -> None:
        if wait < 0 or warmup < 0 or (active is not None and active < 1):
            raise HandheldError("a schedule has wait and warmup of 0 or more, and active of 1 or "
                                f"more; this one has {wait}, {warmup} and {active}")
        self.writer = RunWriter(path)
        self.path = Path(path)
        self.wait, self.warmup, self.active = wait, warmup, active
        self.settings = settings
        self.seen = 0  # steps, of all trainers
        self.steps = 0  # noted
        self.windows = 0
        self._op_ids: dict[str, int] = {}  # graph -> id of its first op
        self._trainers: list[Trainer] = []
        self._window: contextlib.ExitStack | None = None
        self._recording: Recording | None = None
        self._recorded: list[tuple[int, str, int]] = []  # step, graph, commands up to its end
        self._unread: list[tuple[Recording, list[tuple[int, str, int]]]] = []
        self._next = 0  # noted step from which on the next window may open
        self._left = 0  # steps of the window that is open
        self._begun_ns = time.monotonic_ns()
        self._cost_ns = 0  # of recording, so far
        self._first_ns = 0  # when the first window opened
        self._no_times = False
        self._energy_windows = 0
        self.writer.meta(status="running", begun_unix_ns=time.time_ns(),
                         begun_monotonic_ns=self._begun_ns, settings=settings,
                         schedule={"wait": wait, "warmup": warmup, "active": active})

    # ── what is profiled ──────────────────────────────────────────────────────────────────────

    def attach(self, trainer: Trainer) -> None:
        """From now on the trainer's steps are seen."""
        if trainer.observer is not None:
            raise HandheldError("this trainer is being profiled already")
        if not self._trainers:
            self.writer.meta(**facts(trainer.plan))
        elif trainer.plan.device != self._trainers[0].plan.device:
            raise HandheldError("a run is of one device: start another profile for "
                                f"{trainer.plan.device}")
        self.describe(trainer.plan)
        trainer.observer = self
        self._trainers.append(trainer)

    def describe(self, plan: Plan) -> None:
        """Writes the plan's ops, with what is alive while each runs."""
        for name, made in plan.graphs.items():
            if name in self._op_ids:
                continue
            first = self._op_ids[name] = sum(
                len(p.graph.nodes) for n, p in plan.graphs.items() if n in self._op_ids)
            alive = live(plan, name)
            for i, (node, lowered) in enumerate(zip(made.graph.nodes, made.lowered)):
                self.writer.put(
                    "op", first + i, name, i, node.op, node.origin.source, node.origin.phase,
                    node.origin.path, signature(node, made.graph), lowered.why,
                    len(lowered.launches), flops(node, made.graph), nbytes(node, made.graph),
                    json.dumps(alive.by_node[i]))
            self.writer.meta(**{f"memory.{name}": {
                "peak_op": first + alive.peak, "peak_bytes": alive.peak_bytes,
                "owners": [[o.name, o.category, o.nbytes] for o in alive.owners]}})

    # ── steps ─────────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def watching(self, trainer: Trainer, graph: str) -> Iterator[None]:
        """Around one run of a graph."""
        self.seen += 1
        if self.seen <= self.wait or self._over():
            yield
            return
        if self._window is None and self._due():
            self._open(trainer)
        window = self.windows if self._window is not None else None
        begin = time.monotonic_ns()
        yield
        end = time.monotonic_ns()
        step = self.steps
        self.steps += 1
        shape = next((trainer.plan.graphs[graph].graph.tensors[t].shape
                      for _, t, _ in trainer.plan.graphs[graph].graph.inputs), ())
        batch = shape[0] if shape else 0
        self.writer.put("step", step, graph, batch, begin, end, window, None)
        if window is None:
            self._read_one()
            return
        self._recorded.append((step, graph, len(getattr(self._recording, "notes", ()))))
        self._left -= 1
        if self._left == 0:
            self._close(trainer)

    def _over(self) -> bool:
        return self.active is not None and self.steps >= self.warmup + self.active

    def _due(self) -> bool:
        if self._no_times or self._unread or self.steps < max(self.warmup, self._next):
            return False
        if not self.windows:
            return True
        cost = self._cost_ns * (self.windows + 1) / self.windows
        return cost <= SHARE * (time.monotonic_ns() - self._first_ns)

    def _open(self, trainer: Trainer) -> None:
        begun = time.monotonic_ns()
        stack = contextlib.ExitStack()
        try:
            self.writer.put("clock", *trainer.session.clock_mark())
            self._recording = stack.enter_context(trainer.session.record())
        except DeviceError as error:  # whole steps can still be timed
            stack.close()
            self._no_times = True
            self.writer.note("no op times", str(error))
            return
        self._window, self._left = stack, WINDOW
        self._first_ns = self._first_ns or begun
        self._cost_ns += time.monotonic_ns() - begun

    def _close(self, trainer: Trainer) -> None:
        """Ends the window; its times are read later, while the device has other work."""
        assert self._window is not None and self._recording is not None
        begun = time.monotonic_ns()
        self._window.close()
        self.writer.put("clock", *trainer.session.clock_mark())
        self._unread.append((self._recording, self._recorded))
        self._window, self._recording, self._recorded = None, None, []
        self.windows += 1
        self._cost_ns += time.monotonic_ns() - begun
        self._next = self.steps + WINDOW

    def _read_one(self) -> None:
        """Reads the times of a finished window."""
        if not self._unread:
            return
        begun = time.monotonic_ns()
        recording, steps = self._unread.pop()
        rows = recording.read().rows
        start = 0
        for step, graph, stop in steps:
            part = rows[start:stop].copy()
            launches = part[:, 0] == LAUNCH
            part[launches, 1] += self._op_ids[graph]
            self.writer.put("command", step, len(part), part.T.astype("<i8").tobytes())
            start = stop
        self._cost_ns += time.monotonic_ns() - begun

    # ── energy ────────────────────────────────────────────────────────────────────────────────

    def first_op(self, graph: str) -> int:
        """The id of a graph's first op."""
        return self._op_ids[graph]

    def energy_window(self, method: str, signature: str, ops: list[int], extra: int, runs: int,
                      begin_ns: int, end_ns: int) -> None:
        self.writer.put("energy_window", self._energy_windows, method, signature, json.dumps(ops),
                        extra, runs, begin_ns, end_ns)
        self._energy_windows += 1

    # ── the end ───────────────────────────────────────────────────────────────────────────────

    def flush(self) -> None:
        """Ends an open window, and writes all there is."""
        if self._window is not None:
            self._window.close()
            assert self._recording is not None
            self._unread.append((self._recording, self._recorded))
            self._window, self._recording, self._recorded = None, None, []
        while self._unread:
            self._read_one()
        self.writer.commit()

    def close(self, status: str = "complete") -> None:
        for trainer in self._trainers:
            if trainer.observer is self:
                trainer.observer = None
        try:
            self.flush()
        finally:
            elapsed = time.monotonic_ns() - self._begun_ns
            self.writer.meta(status=status, ended_monotonic_ns=time.monotonic_ns(),
                             recording_share=self._cost_ns / max(elapsed, 1), steps=self.steps)
            self.writer.close()

    def __enter__(self) -> Profiler:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            status = "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed"
            self.close(f"{status}: {kind.__name__}")
