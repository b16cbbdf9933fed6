"""Makes a run file of a trace that torch.profiler wrote.

Steps are the marks of `prof.step()` (ProfilerStep#N), or end where an optimizer's step ends. With a GPU, the commands
of a step are its kernels and copies, each with the op that launched it; without one they are the ops themselves. An
op's path are the modules (with_stack=True) and the names of record_function around it; a backward op has the path of
its forward op.
"""

from __future__ import annotations

import bisect
import itertools
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from handheld.errors import TraceError
from handheld.store.commands import COPY, DOWNLOAD, LAUNCH, UPLOAD, commands, to_bytes
from handheld.store.rows import NoteRow, OpRow, StepRow
from handheld.store.writer import RunWriter
from handheld.traces.events import Event, Trace, read
from handheld.traces.nesting import STEP, Place, forward_paths, places
from handheld.units import count

GRAPH = "step"
LEAST_STEPS = 3  # A step counts if there is one before and one after it.
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_HOST = ("cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver")
_BYTES = {"float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "int": 4, "long int": 8, "long": 8, "bool": 1}


def import_trace(trace: str | Path, out: str | Path) -> Path:
    """Write the run file `out` from a trace of torch.profiler. Raises TraceError if the trace cannot be used."""
    trace, out = Path(trace), Path(out)
    made = _Importer(trace, read(trace))
    writer = RunWriter(out)
    try:
        made.write(writer)
        writer.close()
    except BaseException:
        out.unlink(missing_ok=True)
        raise
    return out


@dataclass(slots=True)
class _Command:
    """A command before it is written: its step is known by when the host enqueued it."""

    kind: int
    event: Event
    place: Place | None  # None: the trace does not say who launched it
    enqueue: Event | None


@dataclass
class _Importer:
    """One trace on its way into a run file."""

    path: Path
    trace: Trace
    _ids: dict[tuple[str, ...], int] = field(default_factory=dict)
    _rows: list[OpRow] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gpu = any(event.kind in _DEVICE for event in self.trace.events)
        self.places = places(event for event in self.trace.events if event.kind in _HOST)
        self.forward = forward_paths(self.places)
        self.steps = self._steps()

    # ── steps ─────────────────────────────────────────────────────────────────────────────────

    def _steps(self) -> list[tuple[int, int, int]]:
        """(number, begin, end) of every step."""
        marks = {
            int(number): (event.begin_ns, event.end_ns)
            for event in self.trace.events
            if event.kind == "user_annotation" and event.name.startswith(STEP)
            if (number := event.name.removeprefix(STEP)).isdigit()
        }
        found = sorted((number, *times) for number, times in marks.items()) or self._by_optimizer()
        if len(found) < LEAST_STEPS:
            raise TraceError(
                f"{self.path} has {count(len(found), 'step')}; a run needs {LEAST_STEPS} or more: the first and the "
                "last one only delimit the others. Try: profile(schedule=torch.profiler.schedule(wait=1, warmup=1, "
                "active=5)), and prof.step() after every training step"
            )
        return found

    def _by_optimizer(self) -> list[tuple[int, int, int]]:
        """Steps that end where an optimizer's step ends. The first one begins with the first op."""
        ends = sorted(
            event.end_ns
            for event in self.trace.events
            if event.kind == "user_annotation" and event.name.startswith("Optimizer.step")
        )
        first = min(event.begin_ns for event in self.trace.events if event.kind == "cpu_op")
        return [(i, begin, end) for i, (begin, end) in enumerate(zip([first, *ends], ends, strict=False))]

    def _step_of(self, t_ns: int) -> int | None:
        """The position of the step that a moment lies in."""
        i = bisect.bisect_right(self.steps, t_ns, key=lambda step: step[1]) - 1
        return i if i >= 0 and t_ns < self.steps[i][2] else None

    # ── commands ──────────────────────────────────────────────────────────────────────────────

    def _commands(self) -> list[_Command]:
        if not self.gpu:
            ops = [place for place in self.places if place.op is place]
            return [_Command(LAUNCH, place.event, place, place.event) for place in ops]
        calls = {
            p.event.args["correlation"]: p
            for p in self.places
            if p.event.kind.startswith("cuda_") and "correlation" in p.event.args
        }
        ops_by_id = {p.event.args["External id"]: p for p in self.places if p.event.kind == "cpu_op" and p.op}
        found = []
        for event in self.trace.events:
            if event.kind in _DEVICE:
                call = calls.get(event.args.get("correlation"))
                place = call if call and call.op else ops_by_id.get(event.args.get("External id"), call)
                found.append(_Command(_command_kind(event), event, place, call.event if call else None))
        return found

    def _op(self, command: _Command, turns: dict[tuple[str, ...], int]) -> int:
        """The id of a launch's op. Launches of two steps are the same op if everything about them is the same."""
        place, kernel = command.place, command.event.name if self.gpu else ""
        op = place.op if place else None
        name = op.event.name if op else command.event.name
        phase = place.phase if place else "forward"
        path = place.path if place else ()
        if place and phase == "backward":
            path = self.forward.get(place.node if place.node is not None else -1, path)
        shapes = _shapes(op.event.args if op else {})
        key = (phase, ".".join(path), name, shapes, kernel)
        turns[key] = turns.get(key, 0) + 1
        full = (*key, str(turns[key]))
        if full not in self._ids:
            self._ids[full] = len(self._ids)
            self._rows.append(self._row(full, op.event.args if op else {}))
        return self._ids[full]

    def _row(self, key: tuple[str, ...], args: Mapping[str, object]) -> OpRow:
        phase, path, name, shapes, kernel, _ = key
        flops = args.get("flops", args.get("Flops", 0))
        return OpRow(
            id=len(self._rows),
            graph=GRAPH,
            position=len(self._rows),
            op=name.rpartition("::")[2],
            source=name.replace("::", "."),
            phase=phase,
            path=path,
            signature=f"{name} {shapes}".rstrip(),
            variant=kernel or "PyTorch",
            launches=1,
            flops=int(flops) if isinstance(flops, (int, float)) else 0,
            bytes=_read_bytes(args),
        )

    # ── writing ───────────────────────────────────────────────────────────────────────────────

    def write(self, writer: RunWriter) -> None:
        by_step: list[list[_Command]] = [[] for _ in self.steps]
        outside = unknown = 0
        for command in sorted(self._commands(), key=lambda c: (c.event.begin_ns, c.event.end_ns)):
            step = self._step_of((command.enqueue or command.event).begin_ns)
            if step is None:
                outside += 1
            else:
                by_step[step].append(command)
                unknown += command.place is None and command.kind == LAUNCH
        self._facts(writer)
        window = 0
        for i, (number, begin, end) in enumerate(self.steps):
            window += i > 0 and number != self.steps[i - 1][0] + 1  # Steps in between are not in the trace.
            writer.add(StepRow(number, GRAPH, None, begin, end, window))
            rows = self._command_rows(by_step[i])
            writer.put("command", number, len(rows), to_bytes(commands(rows)))
        for row in self._rows:
            writer.add(row)
        for text in self._notes(by_step, outside, unknown):
            writer.add(NoteRow(self.steps[0][1], "import", text))
        _memory(writer, self.trace.memory)

    def _command_rows(self, listed: Sequence[_Command]) -> list[tuple[int, ...]]:
        turns: dict[tuple[str, ...], int] = {}
        rows: list[tuple[int, ...]] = []
        for command in listed:
            launch, event = command.kind == LAUNCH, command.event
            called = command.enqueue or event
            host = (called.begin_ns, called.end_ns if command.enqueue else called.begin_ns)
            op = self._op(command, turns) if launch else -1
            nbytes = 0 if launch else int(event.args.get("bytes", 0))
            rows.append((command.kind, op, nbytes, *host, host[0], host[1], event.begin_ns, event.end_ns))
        return rows

    def _facts(self, writer: RunWriter) -> None:
        device = "pytorch:cuda" if self.gpu else "pytorch:cpu"
        name = self.trace.device if self.gpu and self.trace.device else f"PyTorch on {'cuda' if self.gpu else 'cpu'}"
        begun = min(event.begin_ns for event in self.trace.events)
        writer.meta(
            status="complete",
            device=device,
            caps={"name": name, "kind": "pytorch"},
            settings={"what": self.path.name.partition(".")[0], "imported": "torch.profiler", "trace": self.path.name},
            begun_monotonic_ns=begun,
            ended_monotonic_ns=max(event.end_ns for event in self.trace.events),
            steps=len(self.steps),
            sensors_absent={},
        )
        if self.trace.base_ns is not None:
            writer.meta(begun_unix_ns=self.trace.base_ns + begun)

    def _notes(self, by_step: Sequence[Sequence[_Command]], outside: int, unknown: int) -> list[str]:
        what = "kernel or copy" if self.gpu else "op"
        notes = []
        if outside:
            notes.append(f"the trace has {outside:,} × {what} outside of its steps; they are not in this run")
        if unknown:
            notes.append(
                f"{unknown:,} × kernel without the op that launched it: counted as forward, under its own name"
            )
        overlaps = sum(
            after.event.begin_ns < before.event.end_ns
            for listed in by_step
            for before, after in itertools.pairwise(listed)
        )
        if overlaps:
            notes.append(f"{overlaps:,} × {what} began before the one before it ended (several streams or threads)")
        if not self.gpu and not any(place.path for place in self.places):
            notes.append("the trace has no modules: ops have no path. Try: with_stack=True, or record_function")
        return notes


def _command_kind(event: Event) -> int:
    if event.kind != "gpu_memcpy":
        return LAUNCH
    return UPLOAD if "HtoD" in event.name else DOWNLOAD if "DtoH" in event.name else COPY


def _shapes(args: Mapping[str, object]) -> str:
    """The shapes of the inputs that are tensors, if the trace has them (record_shapes=True)."""
    dims = args.get("Input Dims")
    if not isinstance(dims, list):
        return ""
    return " ".join("x".join(map(str, shape)) for shape in dims if isinstance(shape, list) and shape)


def _read_bytes(args: Mapping[str, object]) -> int:
    """The bytes of the inputs. The trace has no shapes of outputs."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return 0
    total = 0
    for shape, kind in zip(dims, types, strict=False):
        if isinstance(shape, list) and all(isinstance(n, int) for n in shape) and kind in _BYTES:
            values = 1
            for n in shape:
                values *= n
            total += values * _BYTES[kind]
    return total


def _memory(writer: RunWriter, readings: Sequence[tuple[int, str, float]]) -> None:
    """PyTorch's own account of its memory, as a sensor per device."""
    for source, device in enumerate(sorted({device for _, device, _ in readings})):
        writer.put("source", source, f"pytorch {device}", "memory that PyTorch's allocator gave out", 0.0)
        writer.put("channel", source, 0, "allocated", "memory", "B", 0, json.dumps([]), "", None)
        for t_ns, where, value in sorted(readings):
            if where == device:
                writer.put("reading", source, t_ns, struct.pack("<d", value))
