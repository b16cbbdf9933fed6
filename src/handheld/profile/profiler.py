"""Observes a trainer's steps, lets the device time some of them, and writes the run file.

Every step costs two readings of the host's clock. The commands of recorded steps (windows.py) go through a queue that
stores their times. The times are read later, while the device does other work. If another process enqueues the steps
(a runner), the times of steps are those that it saw, and they are fetched from it (later.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from handheld.analyse.busy import Others
from handheld.analyse.estimate import Estimate
from handheld.backends.base import Recording
from handheld.errors import DeviceError, HandheldError, TargetLost
from handheld.measure.load import Load
from handheld.plan.launched import main_launch
from handheld.plan.plan import Plan
from handheld.plan.signature import signature
from handheld.plan.work import flops, nbytes
from handheld.profile.facts import facts, this_process
from handheld.profile.later import LaterSteps
from handheld.profile.less_memory import less_memory
from handheld.profile.machine import Machine, ThisMachine
from handheld.profile.memory import live
from handheld.profile.surroundings import chains, other_devices
from handheld.profile.tuning import tuning_facts
from handheld.profile.windows import WARMUP, WINDOW, Windows
from handheld.run.trainer import Trainer
from handheld.store.commands import LAUNCH, to_bytes
from handheld.store.rows import ClockRow, EnergyWindowRow, OpRow, StepRow
from handheld.store.writer import RunWriter


class Profiler:
    """Writes a run file of the trainer that it is attached to, from `__enter__` to `__exit__`.

        with handheld.Profiler("mine.run") as profiler:
            profiler.attach(trainer)
            for batch in data:
                trainer.step(*batch)

    The first `wait` steps are ignored. The next `warmup` steps are timed as a whole, but their ops are not recorded.
    Then follow `active` steps (None: all), of which some are recorded. `code` is the folder whose git state is stored;
    the default is the current folder. `machine` is the one that runs the steps, if it is another one.
    `plan.profile` samples sensors; this class does not.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        wait: int = 0,
        warmup: int = WARMUP,
        active: int | None = None,
        estimate: Estimate | None = None,
        code: Path | None = None,
        settings: Mapping[str, Any] | None = None,
        machine: Machine | None = None,
    ) -> None:
        self.windows = Windows(wait, warmup, active)
        self.machine = machine or ThisMachine()
        self.writer = RunWriter(path, self.machine.now_ns)
        self.path = Path(path)
        self._code = code or Path.cwd()
        self._op_ids: dict[str, int] = {}  # graph -> id of its first op
        self._trainer: Trainer | None = None
        self._window: contextlib.ExitStack | None = None
        self._recording: Recording | None = None
        self._recorded: list[tuple[int, str, int]] = []  # step, graph, number of commands until its end
        self._unread: list[tuple[Recording, list[tuple[int, str, int]]]] = []
        self._later: LaterSteps | None = None
        self._begun_ns = self.machine.now_ns()
        self._load = None if self.machine.target else Load()
        self._load_before: Others | None = None
        self._no_times = False
        self._energy_windows = 0
        self.writer.meta(
            status="running",
            begun_unix_ns=time.time_ns(),
            begun_monotonic_ns=self._begun_ns,
            clock=self.machine.clock_facts(),
            process=this_process(),
            settings=dict(settings or {}),
            schedule={"wait": wait, "warmup": warmup, "active": active},
            estimate=estimate and dataclasses.asdict(estimate),
        )

    # ── the trainer ───────────────────────────────────────────────────────────────────────────

    def attach(self, trainer: Trainer, *, advice: bool = True) -> None:
        """Observe the trainer's steps from now on. Without `advice`, the facts that only advice needs are left out: for
        runs whose ops are not timed. Raises HandheldError if one of the two is already in use."""
        if trainer.observer is not None:
            raise HandheldError("this trainer is already being profiled")
        if self._trainer is not None:
            raise HandheldError("a run file holds one trainer. Try: another Profiler with another file")
        if advice:
            self.writer.meta(
                tuning=tuning_facts(trainer.plan),
                chains=chains(trainer.plan),
                devices=other_devices(trainer.plan),
                less_memory=less_memory(trainer.plan),
            )
        self.writer.meta(
            **facts(trainer.plan, self._code, self.machine),
            started_ns=self.machine.now_ns(),
            allocated_bytes=trainer.session.allocated_bytes,
        )
        self._describe(trainer.plan)
        self._load_before = self._load.lap() if self._load else None
        self._later = LaterSteps.of(trainer.session, self.writer)
        trainer.observer = self
        self._trainer = trainer

    def _describe(self, plan: Plan) -> None:
        """Write the plan's ops, with the memory that is alive while each runs."""
        first = 0
        sizes: dict[int, list[object]] = {}
        for name, graph_plan in plan.graphs.items():
            graph = graph_plan.graph
            self._op_ids[name] = first
            alive = live(plan, name)
            for i, (node, lowered) in enumerate(zip(graph.nodes, graph_plan.lowered, strict=True)):
                if effort := main_launch(node, graph, lowered):
                    sizes[first + i] = [effort.kernel, effort.groups, effort.items]
                self.writer.add(
                    OpRow(
                        id=first + i,
                        graph=name,
                        position=i,
                        op=node.op,
                        source=node.origin.torch_op,
                        phase=node.origin.phase,
                        path=node.origin.path,
                        signature=signature(node, graph),
                        variant=lowered.why,
                        launches=len(lowered.launches),
                        flops=flops(node, graph),
                        bytes=nbytes(node, graph),
                        live=alive.by_node[i],
                    )
                )
            self.writer.meta(
                **{
                    f"memory.{name}": {
                        "peak_op": first + alive.peak,
                        "peak_bytes": alive.peak_bytes,
                        "owners": [[o.name, o.category, o.nbytes] for o in alive.owners],
                    }
                }
            )
            first += len(graph.nodes)
        self.writer.meta(launch_sizes=sizes)

    def first_op(self, graph: str) -> int:
        """The id of a graph's first op."""
        return self._op_ids[graph]

    # ── steps ─────────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def watching(self, trainer: Trainer, graph: str) -> Iterator[None]:
        """A context around one run of a graph. The trainer enters it."""
        if not self.windows.notes():
            yield
            return
        if self._later is not None and self._later.session is not trainer.session:
            self._later.fetch()
            self._later = LaterSteps.of(trainer.session, self.writer)
        if self._window is None and not self._no_times and not self._unread and self.windows.due():
            self._open(trainer)
        window = self.windows.count if self._window is not None else None
        begin = time.monotonic_ns()
        yield
        end = time.monotonic_ns()
        step = self.windows.steps
        self.windows.steps += 1
        planned = trainer.plan.graphs[graph].graph
        shape = next((planned.tensors[given.tensor].shape for given in planned.inputs), ())
        row = StepRow(step, graph, shape[0] if shape else 0, begin, end, window)
        if self._later is None:
            self.writer.add(row)
        else:
            with self.windows.costs():
                self._later.add(row)
        if self._recording is None:
            self._read_one()
            return
        self._recorded.append((step, graph, len(self._recording)))
        if len(self._recorded) == WINDOW:
            self._close(trainer)

    def _open(self, trainer: Trainer) -> None:
        trainer.session.finish()  # The work of earlier steps must not count as a cost of recording.
        with self.windows.costs(), contextlib.ExitStack() as stack:
            if self._later is not None:
                self._later.fetch()
            try:
                self.writer.add(ClockRow(*trainer.session.clock_mark()))
                self._recording = stack.enter_context(trainer.session.record())
            except DeviceError as error:  # Whole steps can still be timed.
                self._no_times = True
                self.writer.note("no op times", str(error))
                return
            self._window = stack.pop_all()
            self.windows.opened()

    def _close(self, trainer: Trainer) -> None:
        self._end_window()
        with self.windows.costs():
            self.writer.add(ClockRow(*trainer.session.clock_mark()))

    def _end_window(self) -> None:
        """Wait for the steps in the window. Their times are read later."""
        if self._window is not None and self._recording is not None:
            self._window.close()
            self._unread.append((self._recording, self._recorded))
            self.windows.closed(len(self._recorded))
            self._window, self._recording, self._recorded = None, None, []

    def _read_one(self) -> None:
        """Read the times of one finished window."""
        if not self._unread:
            return
        with self.windows.costs():
            recording, steps = self._unread.pop()
            commands = recording.read()
            start = 0
            for step, graph, stop in steps:
                part = commands[start:stop]
                part["op"][part["kind"] == LAUNCH] += self._op_ids[graph]
                self.writer.put("command", step, len(part), to_bytes(part))
                start = stop
        self.writer.meta(recording_ns=self.windows.cost_ns)  # Written now in case the process is killed.

    def energy_window(
        self, method: str, signature: str, ops: list[int], extra: int, runs: int, begin_ns: int, end_ns: int
    ) -> None:
        """Write one window of repeated equal work (energy.py)."""
        self.writer.add(
            EnergyWindowRow(self._energy_windows, method, signature, tuple(ops), extra, runs, begin_ns, end_ns)
        )
        self._energy_windows += 1

    # ── the end ───────────────────────────────────────────────────────────────────────────────

    def flush(self) -> None:
        """End an open window, read all times and commit everything."""
        self._end_window()
        if self._later is not None:
            self._later.fetch()
        while self._unread:
            self._read_one()
        self.writer.commit()

    def closing(self) -> None:
        """Fetch all times before the trainer's session closes."""
        try:
            self.flush()
        except TargetLost as error:  # The caller gets the same error from what it does next.
            self._window = self._recording = self._later = None
            self._recorded, self._unread = [], []
            self.writer.note("connection lost", str(error))

    def close(self, status: str = "complete") -> None:
        if self._trainer is not None and self._trainer.observer is self:
            self._trainer.observer = None
        try:
            self.closing()
        finally:
            end = self.machine.now_ns()
            self.writer.meta(
                status=status,
                ended_monotonic_ns=end,
                steps=self.windows.steps,
                recording_share=self.windows.cost_ns / max(end - self._begun_ns, 1),
                # The load of a target's other processes follows from the readings of its sensors.
                others=others_as_json(self._load_before, self._load.lap() if self._load else None),
                clock=self.machine.clock_facts(),
            )
            self.writer.close()

    def __enter__(self) -> Profiler:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(ending(kind))


def others_as_json(before: Others | None, during: Others | None) -> dict[str, object]:
    """The load of other processes before and during the steps, as the run file holds it."""
    return {name: load and load.to_json() for name, load in (("before", before), ("during", during))}


def ending(kind: type[BaseException] | None) -> str:
    """The status of a run file, from the exception that ended the run."""
    if kind is None:
        return "complete"
    return "interrupted" if issubclass(kind, KeyboardInterrupt) else f"failed: {kind.__name__}"
