"""Bytes and predicted time of PyTorch's training step at any size, without computing it.

The step runs on fake tensors, which have shapes and no data. Every storage is counted from the op that makes it until
it is freed: parameters, buffers, optimizer state, the batch, gradients and values. Scratch memory inside an op and of
the optimizer's step is not counted, which is in PyTorch's favour. The time of an op is predicted from its floating
point operations and the bytes that it reads and writes, with the rates that are typical of a CPU.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import flop_registry

#: FLOP/s and B/s.
FLOPS, BYTES = 100e9, 20e9
#: Copies of the parameters that an optimizer keeps.
STATE = {"SGD": 1, "Adam": 2, "AdamW": 2}


@dataclass(frozen=True)
class Cost:
    bytes: int
    seconds: float


class Meter(TorchDispatchMode):
    """Follows the storages that ops make, and adds up the predicted times of ops."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seconds = 0.0
        self._known: set[int] = set()

    def hold(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._known:
            self._known.add(key)
            nbytes = storage.nbytes()
            self.now += nbytes
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._free, key, nbytes)

    def _free(self, key: int, nbytes: int) -> None:
        self._known.discard(key)
        self.now -= nbytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        read = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        for tensor in made:
            self.hold(tensor)
        if not func.is_view and made:
            count = flop_registry.get(func._overloadpacket)
            flops = count(*args, **(kwargs or {}), out_val=out) if count else 0
            moved = sum(t.numel() * t.element_size() for t in (*made, *read))
            self.seconds += max(flops / FLOPS, moved / BYTES)
        return out


def largest_list(model: nn.Module) -> nn.Module | None:
    """The Sequential or ModuleList with the most children: the blocks of the model."""
    lists = [m for m in model.modules() if isinstance(m, nn.Sequential | nn.ModuleList) and len(m) > 1]
    return max(lists, key=len, default=None)


class Checkpointed(nn.Module):
    """A block whose values are computed again in the backward pass."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *values: Any, **named: Any) -> Any:
        return checkpoint(self.block, *values, use_reentrant=False, preserve_rng_state=False, **named)


def checkpointed(model: nn.Module, every: int = 1) -> str:
    """Wraps each `every`-th block. Returns what was wrapped, or "" if there are no blocks."""
    blocks = largest_list(model)
    if blocks is None:
        return ""
    for module in model.modules():  # What is computed again must not have been overwritten.
        if hasattr(module, "inplace"):
            module.inplace = False
    wrapped = list(blocks.named_children())[::every]
    for name, block in wrapped:
        setattr(blocks, name, Checkpointed(block))
    return f"torch.utils.checkpoint around {len(wrapped)} of {len(blocks)} blocks"  # type: ignore[arg-type]


def measured(workload: Any, count: int, change: Callable[[nn.Module], Any] = lambda model: None) -> Cost:
    """A step of the workload at this batch. `change` may change the model, or return another one to be called."""
    real = workload.batch(count)
    with FakeTensorMode() as fake:
        model, loss, optimizer = workload.make()
        run = change(model)
        run = run if callable(run) else model
        batch = [fake.from_tensor(tensor) for tensor in real]
        with Meter() as meter:
            for tensor in (*model.parameters(), *model.buffers(), *batch):
                meter.hold(tensor)
            state = STATE[type(optimizer).__name__] * sum(p.numel() * 4 for p in model.parameters())
            loss(run(*batch[:-1]), batch[-1]).backward()
            return Cost(meter.peak + state, meter.seconds)


@contextlib.contextmanager
def budget(share: float) -> Iterator[None]:
    """PyTorch's activation memory budget: the share of the saved values that a compiled model may keep."""
    from torch._functorch import config

    before = config.activation_memory_budget
    config.activation_memory_budget = share
    try:
        yield
    finally:
        config.activation_memory_budget = before


def partitioned(model: nn.Module) -> Callable[..., Any]:
    """The model with the forward and backward graphs that torch.compile would make of it, run op by op."""
    from torch._functorch.aot_autograd import aot_module
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    return aot_module(
        model,
        fw_compiler=lambda graph, _: graph,
        bw_compiler=lambda graph, _: graph,
        partition_fn=min_cut_rematerialization_partition,
    )
