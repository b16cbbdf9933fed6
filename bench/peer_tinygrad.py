"""The step in tinygrad: a TinyJit over its own SGD.

The environment variable DEV selects tinygrad's device. bench/remote.py sets it to CL where it is not set,
so that tinygrad and Handheld use the same OpenCL device.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
from tinygrad import Device, Tensor, TinyJit
from tinygrad.helpers import TRAINING
from tinygrad.nn.optim import SGD
from translate import Walk, host


def make(walk: Walk, batch: Any, rate: float, momentum: float, threads: int) -> tuple[Callable[[int], float], str, str]:
    """(steps -> last loss, the peer's name, the kind of device)."""
    TRAINING.value = 1
    params = {n: Tensor(a).realize() for n, a in walk.parameters.items()}
    buffers = {n: Tensor(a).is_param_(False).realize() for n, a in walk.buffers.items()}
    optimizer = SGD(list(params.values()), lr=rate, momentum=momentum)
    layers = Layers(params, buffers)

    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = layers.cross_entropy(walk(layers, x), y).backward()
        return loss.realize(*optimizer.schedule_step(), *buffers.values())

    arrays = host(batch)

    def turn(steps: int) -> float:
        for _ in range(steps):
            loss = step(*(Tensor(a).realize() for a in arrays))
        return float(loss.item())

    where = Device.DEFAULT
    return turn, f"tinygrad {version('tinygrad')} ({where})", "cpu" if where == "CPU" else "any"


class Layers:
    """The layers that translate.py calls."""

    def __init__(self, params: dict[str, Tensor], buffers: dict[str, Tensor]) -> None:
        self.params, self.buffers = params, buffers

    def bias(self, b: str | None) -> Tensor | None:
        return self.params[b] if b else None

    def conv(self, x: Tensor, w: str, b: str | None, stride: Any, padding: Any, groups: int) -> Tensor:
        sides = (padding[1], padding[1], padding[0], padding[0])
        return x.conv2d(self.params[w], self.bias(b), groups, stride, 1, sides)

    def linear(self, x: Tensor, w: str, b: str | None) -> Tensor:
        return x.linear(self.params[w].transpose(), self.bias(b))

    def batch_norm(self, x: Tensor, name: str, eps: float, momentum: float) -> Tensor:
        mean = x.mean((0, 2, 3))
        var = (x - mean.reshape(1, -1, 1, 1)).square().mean((0, 2, 3))
        count = x.numel() / x.shape[1]
        for key, now in (("mean", mean), ("var", var * (count / (count - 1)))):
            old = self.buffers[f"{name}.running_{key}"]
            old.assign((1 - momentum) * old + momentum * now.detach())
        w, b = self.params[f"{name}.weight"], self.params[f"{name}.bias"]
        return x.batchnorm(w, b, mean, (var + eps).rsqrt())

    def layer_norm(self, x: Tensor, w: str, b: str | None, eps: float) -> Tensor:
        y = x.layernorm(eps=eps) * self.params[w]
        return y + self.params[b] if b else y

    def embedding(self, x: Tensor, w: str) -> Tensor:
        return self.params[w][x]

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q.scaled_dot_product_attention(k, v)

    def max_pool(self, x: Tensor, kernel: Any, stride: Any, padding: Any, ceil: bool) -> Tensor:
        return x.max_pool2d(kernel, stride, 1, padding[0], ceil_mode=ceil)

    def mean_pool(self, x: Tensor) -> Tensor:
        return x.mean((2, 3), keepdim=True)

    def dropout(self, x: Tensor, p: float) -> Tensor:
        return x.dropout(p)

    def relu(self, x: Tensor) -> Tensor:
        return x.relu()

    def relu6(self, x: Tensor) -> Tensor:
        return x.relu6()

    def gelu(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + (x / np.sqrt(2).item()).erf())

    def flatten(self, x: Tensor, start: int = 1) -> Tensor:
        return x.flatten(start)

    def cat(self, xs: list[Tensor], axis: int) -> Tensor:
        return xs[0].cat(*xs[1:], dim=axis)

    def permute(self, x: Tensor, axes: Any) -> Tensor:
        return x.permute(axes)

    def reshape(self, x: Tensor, shape: Any) -> Tensor:
        return x.reshape(shape)

    def transpose(self, x: Tensor, a: int, b: int) -> Tensor:
        return x.transpose(a, b)

    def unbind(self, x: Tensor, axis: int = 0) -> list[Tensor]:
        return [t.squeeze(axis) for t in x.split(1, axis)]

    def read(self, name: str) -> Tensor:
        return self.params[name]

    def cross_entropy(self, scores: Tensor, target: Tensor) -> Tensor:
        return scores.reshape(-1, scores.shape[-1]).sparse_categorical_crossentropy(target.flatten())
