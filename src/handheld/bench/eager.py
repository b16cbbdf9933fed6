"""Plain PyTorch as a device for comparison, `pytorch:cpu` or `pytorch:cuda`: the workload as users write it.

Products and convolutions are computed in float32, as Handheld does. PyTorch's own default on CUDA is TF32 for
convolutions, which rounds inputs to 11 bits; that is the device `pytorch:cuda:tf32`.

`reference:cpu` is different: it is Handheld's reference, which runs a graph op by op, and does not show how
fast PyTorch can be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from handheld.analyse.run import Run, open_run
from handheld.analyse.stats import AHEAD
from handheld.errors import HandheldError
from handheld.resolve import Factory, ModelSpec, Suite

if TYPE_CHECKING:
    import torch
    from torch import nn

    from handheld.suite.workload import Batch, Modules, Update

KIND = "pytorch"
TF32 = ":tf32"


def is_eager(device: str) -> bool:
    return device.partition(":")[0] == KIND


def processor(device: str) -> str:
    """The same device under the name that the rest of Handheld uses."""
    return f"reference:{device.removesuffix(TF32).partition(':')[2] or 'cpu'}" if is_eager(device) else device


def arithmetic(device: str) -> str:
    """What PyTorch computes products and convolutions in. Runs of plans say it themselves (plan/arithmetic.py)."""
    return "tf32" if is_eager(device) and device.endswith(TF32) else "float32"


class Eager:
    """A workload's model and the updates of its step, on the device where PyTorch trains them."""

    def __init__(self, spec: ModelSpec, device: str, batch: int, seed: int) -> None:
        import torch

        self.where = processor(device).partition(":")[2]
        rounded = device.endswith(TF32)
        if rounded and self.where != "cuda":
            raise HandheldError(f"{device}: only CUDA has TF32. Try: pytorch:{self.where}")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = rounded
        parts = _parts(spec, batch, seed)
        self.model = torch.nn.ModuleDict({name or "model": m for name, m in parts.modules.items()})
        self.model.to(self.where).train()
        batch_there = torch.utils._pytree.tree_map(lambda tensor: tensor.to(self.where), parts.example)
        self.updates = [(update.loss, update.optimizer(), batch_there) for update in parts.updates]

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    def profile(
        self,
        path: str,
        *,
        steps: int,
        seconds: float | None,
        progress: Callable[[int, int, str], None],
        sensors: bool = True,
    ) -> Run:
        """Train for at least `steps` steps and, with `seconds`, until they have passed."""
        from handheld.profile.run import until
        from handheld.profile.watching import watch

        queued: deque[torch.cuda.Event] = deque()
        with watch(self.model, path, sensors=sensors) as watched:
            for done in until(steps, seconds):
                watched.begin()
                loss = self._step()
                self._wait(queued)
                watched.step()
                progress(done, max(steps, done), "step")
            watched.writer.meta(loss=float(loss.detach()))
        return open_run(path)

    def _step(self) -> torch.Tensor:
        for compute, optimizer, example in self.updates:
            optimizer.zero_grad(set_to_none=True)
            loss = compute(example)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return loss

    def _wait(self, queued: deque[torch.cuda.Event]) -> None:
        """On a GPU, let the host be at most two steps ahead, as in Handheld."""
        if self.where != "cuda":
            return
        import torch

        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        queued.append(event)
        if len(queued) >= AHEAD:
            queued.popleft().synchronize()


class _Update(NamedTuple):
    """One update. Its optimizer is a function, because it must be made after the modules have moved to their device."""

    loss: Callable[[Any], torch.Tensor]
    optimizer: Callable[[], torch.optim.Optimizer]


class _Parts(NamedTuple):
    modules: dict[str, nn.Module]
    updates: list[_Update]
    example: Any  # a nest of tensors


def _parts(spec: ModelSpec, batch: int, seed: int) -> _Parts:
    from handheld.frontend.closures import closure

    if isinstance(spec, Suite):
        modules, updates = spec.workload.parts(seed)
        found = [_Update(_loss(update, modules), partial(update.optimizer, modules)) for update in updates]
        return _Parts(modules, found, spec.workload.batch(batch, seed))
    if not isinstance(spec, Factory):
        raise HandheldError(f"{spec.name} is a step file, which plain PyTorch cannot train. Try: --on reference:cpu")
    model, loss, optimizer = spec.parts(seed)
    fn = closure(model, loss, 1)
    return _Parts({"": model}, [_Update(lambda b: fn(b)[0], lambda: optimizer)], spec.need_example(batch))


def _loss(update: Update, modules: Modules) -> Callable[[Batch], torch.Tensor]:
    return lambda batch: update.loss(modules, tuple(batch[i] for i in update.takes))
