"""Plain PyTorch as a device for comparison, `pytorch:cpu` or `pytorch:cuda`: the workload as users write it.

`reference:cpu` is different: it is Handheld's reference, which runs a graph op by op, and does not show how
fast PyTorch can be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from handheld.analyse.run import Run, open_run
from handheld.analyse.stats import AHEAD
from handheld.errors import HandheldError
from handheld.resolve import Factory, ModelSpec, Suite

KIND = "pytorch"


def is_eager(device: str) -> bool:
    return device.partition(":")[0] == KIND


def processor(device: str) -> str:
    """The same device under the name that the rest of Handheld uses."""
    return f"reference:{device.partition(':')[2] or 'cpu'}" if is_eager(device) else device


class Eager:
    """A workload's model and the updates of its step, on the device where PyTorch trains them."""

    def __init__(self, spec: ModelSpec, device: str, batch: int, seed: int) -> None:
        import torch

        self.where = processor(device).partition(":")[2]
        modules, losses, optimizers, example = _parts(spec, batch, seed)
        self.model = torch.nn.ModuleDict({name or "model": m for name, m in modules.items()})
        self.model.to(self.where).train()
        batch_there = torch.utils._pytree.tree_map(lambda tensor: tensor.to(self.where), example)
        self.updates = [(loss, optimizer(), batch_there) for loss, optimizer in zip(losses, optimizers, strict=True)]

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

        queued: deque[Any] = deque()
        with watch(self.model, path, sensors=sensors) as watched:
            for done in until(steps, seconds):
                watched.begin()
                loss = self._step()
                self._wait(queued)
                watched.step()
                progress(done, max(steps, done), "step")
            watched.writer.meta(loss=float(loss.detach()))
        return open_run(path)

    def _step(self) -> Any:
        for compute, optimizer, example in self.updates:
            optimizer.zero_grad(set_to_none=True)
            loss = compute(example)
            loss.backward()
            optimizer.step()
        return loss

    def _wait(self, queued: deque[Any]) -> None:
        """On a GPU, let the host be at most two steps ahead, as in Handheld."""
        if self.where != "cuda":
            return
        import torch

        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        queued.append(event)
        if len(queued) >= AHEAD:
            queued.popleft().synchronize()


def _parts(spec: ModelSpec, batch: int, seed: int) -> tuple[Any, list[Any], list[Any], Any]:
    """The modules by name, the loss of each update as a function of the batch, their optimizers, and an example batch.

    Optimizers are functions, because they must be made after the modules have moved to their device.
    """
    from handheld.frontend.closures import closure

    if isinstance(spec, Suite):
        modules, updates = spec.workload.parts(seed)
        return (
            modules,
            [_loss(update, modules) for update in updates],
            [partial(update.optimizer, modules) for update in updates],
            spec.workload.batch(batch, seed),
        )
    if not isinstance(spec, Factory):
        raise HandheldError(f"{spec.name} is a step file, which plain PyTorch cannot train. Try: --on reference:cpu")
    model, loss, optimizer = spec.parts(seed)
    fn = closure(model, loss, 1)
    return {"": model}, [lambda b: fn(b)[0]], [lambda: optimizer], spec.need_example(batch)


def _loss(update: Any, modules: Any) -> Callable[[Any], Any]:
    return lambda batch: update.loss(modules, tuple(batch[i] for i in update.takes))
