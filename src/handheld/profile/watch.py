"""Profiles plain PyTorch, which Handheld does not run: the user's own model, loop and optimizer.

    with handheld.watch(model, "mine.run") as watch:
        for x, y in data:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
            watch.step()

Some steps are recorded op by op. A dispatch mode sees every ATen op and assigns it to a module: in the forward pass to
the module that calls it, in the backward pass to the module whose forward op created the gradient function.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn
from torch._ops import OpOverload
from torch.optim import optimizer
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from handheld.backends.reference.recording import TorchRecording
from handheld.errors import HandheldError
from handheld.measure.load import Load
from handheld.module_paths import follow_modules
from handheld.profile.facts import code_state, this_process, versions
from handheld.profile.machine import machine
from handheld.profile.profiler import ending, others_as_json
from handheld.profile.sampling import Sensors, idle, sampled, sources
from handheld.profile.windows import WINDOW, Windows
from handheld.sensors.base import Where
from handheld.store.commands import LAUNCH, to_bytes
from handheld.store.rows import OpRow, StepRow
from handheld.store.writer import RunWriter

GRAPH = "step"


class Watch:
    """A watched training loop; `handheld.watch` makes it and says what its arguments are."""

    def __init__(
        self, model: nn.Module, path: str | Path, windows: Windows, sensors: Sensors, where: Where | None, idle_s: float
    ) -> None:
        if not isinstance(model, nn.Module):
            raise HandheldError(f"watch needs a torch.nn.Module, not a {type(model).__name__}")
        self.model, self.path = model, Path(path)
        self.windows = windows
        self.where = next((p.device.type for p in model.parameters()), "cpu")
        self.sensors, self.root, self.idle_s = sensors, where, idle_s
        self._stack = contextlib.ExitStack()
        self._mode: _Ops | None = None
        self._marks: list[tuple[int, int]] = []  # of the open window: (step, number of commands until its end)
        self._ids: dict[tuple[str, ...], int] = {}
        self._begin: int | None = None  # when the model was first called since the last step

    def __enter__(self) -> Watch:
        found = sources(self.sensors, self.root)
        self.writer = RunWriter(self.path)
        self._begun = time.monotonic_ns()
        self._load = Load()
        name = torch.cuda.get_device_name() if self.where == "cuda" else f"PyTorch {torch.__version__} on {self.where}"
        self.writer.meta(
            status="running",
            begun_unix_ns=time.time_ns(),
            begun_monotonic_ns=self._begun,
            process=this_process(),
            device=f"pytorch:{self.where}",
            caps={"name": name, "kind": "pytorch"},
            machine=machine(),
            versions=versions(),
            code=code_state(Path.cwd()),
            settings={"watch": True},
        )
        self._stack.enter_context(sampled(self.writer, found, self.root))
        if found.here:
            idle(self.writer, self.idle_s)
        self._load_before = self._load.lap()
        self._paths = {id(module): path for path, module in self.model.named_modules()}
        hook = self.model.register_forward_pre_hook(self._called)
        self._stack.callback(hook.remove)
        self._start()
        return self

    def begin(self) -> None:
        """Mark the beginning of a step. Needed only if the model itself is never called, only parts of it."""
        self._called()

    def step(self) -> None:
        """Mark the end of a step."""
        if not self._noted:
            self._start()
            return
        end = time.monotonic_ns()
        step = self.windows.steps
        self.windows.steps += 1
        window = self.windows.count if self._mode is not None else None
        begin = end if self._begin is None else self._begin
        self.writer.add(StepRow(step, GRAPH, None, begin, end, window))
        if self._mode is not None:
            self._marks.append((step, len(self._mode.recording)))
            self._mode.next_step()
            if len(self._marks) == WINDOW:
                self._close()
        self._start()

    def _start(self) -> None:
        self._noted = self.windows.notes()
        if self._noted and self._mode is None and self.windows.due():
            with self.windows.costs():
                self._mode = _Ops(self, TorchRecording(self.where))
                self._mode.__enter__()
                self.windows.opened()
        self._begin = None

    def _called(self, *_: object) -> None:
        """Note the beginning of a step. Time before the model is called belongs to the caller (most likely data)."""
        if self._begin is None:
            self._begin = time.monotonic_ns()

    def _close(self) -> None:
        mode, self._mode = self._mode, None
        if mode is None:
            return
        mode.__exit__(None, None, None)
        with self.windows.costs():
            commands = mode.recording.read()
            start = 0
            for step, stop in self._marks:
                part = commands[start:stop]
                self.writer.put("command", step, len(part), to_bytes(part))
                start = stop
        self.writer.meta(recording_ns=self.windows.cost_ns)
        self.windows.closed(len(self._marks))
        self._marks = []

    def op(self, key: tuple[str, ...], flops: int, nbytes: int) -> int:
        """The id of an op. `key` is everything that distinguishes it from others; a new key gets a new row."""
        if key not in self._ids:
            phase, path, name, shapes, _ = key
            number = self._ids[key] = len(self._ids)
            self.writer.add(
                OpRow(
                    id=number,
                    graph=GRAPH,
                    position=number,
                    op=name.partition(".")[0],
                    source=f"aten.{name}",
                    phase=phase,
                    path=path,
                    signature=f"{name} {shapes}",
                    variant="PyTorch",
                    launches=1,
                    flops=flops,
                    bytes=nbytes,
                )
            )
        return self._ids[key]

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close()
        self._stack.close()
        if self.where == "cuda":
            self.writer.meta(peak_bytes=torch.cuda.max_memory_allocated())
        end = time.monotonic_ns()
        self.writer.meta(
            status=ending(kind),
            ended_monotonic_ns=end,
            steps=self.windows.steps,
            recording_share=self.windows.cost_ns / max(end - self._begun, 1),
            others=others_as_json(self._load_before, self._load.lap()),
        )
        self.writer.close()


class _Ops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Times every op of the recorded steps."""

    def __init__(self, watch: Watch, recording: TorchRecording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watch, self.recording = watch, recording
        self.path: list[str] = [""]
        self.updating = False
        self._made: dict[int, str] = {}  # autograd's sequence number of a gradient function -> its module
        self._again: dict[tuple[str, ...], int] = {}
        self._hooks = contextlib.ExitStack()

    def __enter__(self) -> Self:
        def begin(*_: object) -> None:
            self.updating = True

        def end(*_: object) -> None:
            self.updating = False

        self._hooks.enter_context(follow_modules(self.path, self.watch._paths))
        self._hooks.callback(optimizer.register_optimizer_step_pre_hook(begin).remove)
        self._hooks.callback(optimizer.register_optimizer_step_post_hook(end).remove)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._hooks.close()

    def next_step(self) -> None:
        self._again.clear()

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        phase, path = self._origin()
        begun = self.recording.begin()
        out = func(*args, **kwargs)
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        results = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
        moved = sum(t.numel() * t.element_size() for t in (*tensors, *results))
        name = str(func).removeprefix("aten.")
        shapes = " ".join("x".join(map(str, t.shape)) or "1" for t in tensors)
        key = (phase, path, name, shapes)
        turn = self._again[key] = self._again.get(key, 0) + 1
        count = flop_registry.get(func._overloadpacket)
        flops = 0
        if count is not None:
            with contextlib.suppress(Exception):  # PyTorch's formula may not support these arguments.
                flops = int(count(*args, **kwargs, out_val=out))
        self.recording.end(begun, LAUNCH, self.watch.op((*key, str(turn)), flops, moved), 0)
        return out

    def _origin(self) -> tuple[str, str]:
        node = torch._C._current_autograd_node()
        if node is not None:
            return "backward", self._made.get(node._sequence_nr(), "")
        path = self.path[-1]
        if self.updating:
            return "update", path
        self._made.setdefault(torch._C._autograd._get_sequence_nr() - 1, path)
        return "forward", path
