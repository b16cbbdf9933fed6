"""The reference backend: runs a graph op by op in PyTorch. Other devices are compared with it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from handheld.backends.base import ClockMark, Session, host_caps
from handheld.backends.reference.ops import run_node
from handheld.backends.reference.recording import TorchRecording, cuda_mark
from handheld.device import DeviceCaps
from handheld.errors import DeviceError
from handheld.graph.dtypes import DTYPES, F32
from handheld.graph.graph import Graph, Node, pack_offsets
from handheld.store.commands import LAUNCH, UPLOAD

if TYPE_CHECKING:
    from handheld.plan.plan import Plan


def describe(device: str) -> DeviceCaps:
    where = _where(device)
    caps = host_caps(f"PyTorch {torch.__version__} on {where}", "reference")
    if where == "cpu":
        return caps
    free, _ = torch.cuda.mem_get_info()
    return DeviceCaps(
        **{**caps.to_json(), "name": torch.cuda.get_device_name(), "global_mem_bytes": free, "unified_memory": False}
    )


def _where(device: str) -> str:
    where = device.partition(":")[2] or "cpu"
    if where not in ("cpu", "cuda"):
        raise DeviceError(f"unknown device {device!r}: the reference runs on reference:cpu or reference:cuda")
    if where == "cuda" and not torch.cuda.is_available():
        raise DeviceError("reference:cuda: this PyTorch sees no CUDA device. Try: handheld doctor")
    return where


class _Value:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def read(self) -> np.ndarray:
        array = self.tensor.cpu().numpy()
        return array.astype(np.float32) if array.dtype == np.float64 else array


class ReferenceSession(Session):
    """Keeps values by tensor number. Every result is a new PyTorch tensor."""

    def __init__(self, plan: Plan, float64: bool = False) -> None:
        super().__init__(plan)
        self.where = _where(plan.device)
        self.float_dtype = torch.float64 if float64 else torch.float32
        self._slots = {n: self._to(v) for n, v in plan.values.items()}
        self._shapes = {n: slot.shape for n, slot in plan.slots.items()}
        self._values: dict[str, dict[int, torch.Tensor]] = {name: {} for name in plan.graphs}
        self._recording: TorchRecording | None = None

    def _to(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array).copy()).to(self.where)
        return tensor.to(self.float_dtype) if tensor.dtype.is_floating_point else tensor

    def upload(self, graph: str, tensor: int, array: np.ndarray) -> None:
        self.counters.uploads += 1
        self.counters.upload_bytes += array.nbytes
        shape = self.plan.graphs[graph].graph.tensors[tensor].shape
        recording = self._recording
        begun = recording.begin() if recording is not None else None
        self._values[graph][tensor] = self._to(array).reshape(shape)
        if recording is not None and begun is not None:
            recording.end(begun, UPLOAD, -1, array.nbytes)

    def _begin(self, graph: str) -> dict[int, torch.Tensor]:
        plan = self.plan.graphs[graph].graph
        values = self._values[graph]
        inputs = {given.tensor for given in plan.inputs}
        for key in [k for k in values if k not in inputs]:
            del values[key]
        for slot, tensor in plan.slots.items():
            values[tensor] = self._slots[slot].reshape(plan.tensors[tensor].shape)
        return values

    def run(self, graph: str) -> None:
        plan = self.plan.graphs[graph].graph
        self._begin(graph)
        last: dict[int, int] = {}
        for i, node in enumerate(plan.nodes):
            last.update(dict.fromkeys((v.tensor for v in node.inputs), i))
        keep = plan.kept
        keep |= {given.tensor for given in plan.inputs} | {m for members in plan.packs.values() for m in members}
        recording = self._recording
        for i, node in enumerate(plan.nodes):
            begun = recording.begin() if recording is not None else None
            self.run_node(graph, i)
            if recording is not None and begun is not None:
                recording.end(begun, LAUNCH, i, 0)
            for tensor in {v.tensor for v in node.inputs}:
                if last[tensor] == i and tensor not in keep:
                    self._values[graph].pop(tensor, None)
        self._finish(graph)
        self.counters.steps += 1

    def _finish(self, graph: str) -> None:
        plan = self.plan.graphs[graph].graph
        values = self._values[graph]
        self._slots.update({write.slot: values[write.tensor] for write in plan.writes})

    def begin_nodes(self, graph: str) -> None:
        """Loads the values of the slots."""
        self._begin(graph)

    def run_node(self, graph: str, index: int) -> None:
        plan = self.plan.graphs[graph].graph
        values, node = self._values[graph], plan.nodes[index]
        self._join_packs(plan, node, values)
        for out, value in zip(node.outputs, run_node(node, plan, values, self.float_dtype, self.where), strict=True):
            values[out] = value
            if out in plan.packs:
                self._split_pack(plan, out, values)
        self.counters.launches += 1

    def _join_packs(self, graph: Graph, node: Node, values: dict[int, torch.Tensor]) -> None:
        for view in node.inputs:
            if view.tensor in graph.packs:
                members = graph.packs[view.tensor]
                offsets, size = pack_offsets(graph.tensors, members)
                whole = torch.zeros(size, dtype=values[members[0]].dtype, device=self.where)
                for m, o in zip(members, offsets, strict=True):
                    whole[o : o + values[m].numel()] = values[m].reshape(-1)
                values[view.tensor] = whole

    def _split_pack(self, graph: Graph, pack: int, values: dict[int, torch.Tensor]) -> None:
        members, whole = graph.packs[pack], values[pack]
        offsets, _ = pack_offsets(graph.tensors, members)
        for m, o in zip(members, offsets, strict=True):
            tensor = graph.tensors[m]
            values[m] = whole[o : o + tensor.size].reshape(tensor.shape)

    def set_tensor(self, graph: str, tensor: int, array: np.ndarray) -> None:
        """Replaces a value. `verify` uses this to give both devices the same inputs."""
        shape = self.plan.graphs[graph].graph.tensors[tensor].shape
        self._values[graph][tensor] = self._to(array).reshape(shape)

    def download(self, graph: str, tensor: int) -> _Value:
        self.counters.downloads += 1
        self.counters.download_bytes += self.plan.graphs[graph].graph.tensors[tensor].size * DTYPES[F32].nbytes
        return _Value(self._values[graph][tensor])

    def read_tensor(self, graph: str, tensor: int) -> np.ndarray:
        return np.asarray(self._values[graph][tensor].cpu().numpy())

    def read_slot(self, name: str) -> np.ndarray:
        return np.asarray(_Value(self._slots[name]).read()).reshape(self._shapes[name])

    def exact_slot(self, name: str) -> np.ndarray:
        """Returns a copy of the slot's value in the precision in which it was computed."""
        return self._slots[name].cpu().numpy().copy()

    def write_slot(self, name: str, array: np.ndarray) -> None:
        # The counters of a state dict are int64, those of a slot int32. A graph before fusion starts without values.
        held, given = self._slots.get(name), self._to(array)
        self._slots[name] = given if held is None else given.to(held.dtype)

    # ── times ─────────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def record(self) -> Iterator[TorchRecording]:
        """Records each op: with the host's clock on a CPU, with events on a GPU."""
        self._recording = TorchRecording(self.where)
        try:
            yield self._recording
        finally:
            self._recording = None

    def clock_mark(self) -> ClockMark:
        """Returns the host's clock as both clocks.

        On a CPU there is only one clock. A recording on a GPU already converts the times of its events to host
        time, with an error like that of a mark now.
        """
        if self.where == "cuda":
            mark = cuda_mark()
            return ClockMark(mark.host_ns, mark.host_ns, mark.error_ns)
        now = time.monotonic_ns()
        return ClockMark(now, now, 0)

    def finish(self) -> None:
        if self.where == "cuda":
            torch.cuda.synchronize()
        self.counters.finishes += 1

    def close(self) -> None:
        self._slots.clear()
        self._values.clear()


open_plan = ReferenceSession
