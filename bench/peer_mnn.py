"""The step in MNN: its expressions and its SGD, in float32 on its CPU backend.

MNN's Python wrappers (`MNN.expr.matmul`, `log` ...) insert a Cast before their op. MNN has no gradient
for Cast, so a step through them changes nothing. The functions below the wrappers insert no Cast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import _mnncengine._expr as F
import MNN
import numpy as np
from MNN import nn, optim
from translate import Walk, host

NCHW, NC4HW4, PADS = MNN.expr.NCHW, MNN.expr.NC4HW4, MNN.expr.CAFFE


def make(walk: Walk, batch: Any, rate: float, momentum: float, threads: int) -> tuple[Callable[[int], float], str, str]:
    """(steps -> last loss, the peer's name, the kind of device)."""
    MNN.expr.lazy_eval(True)
    MNN.expr.set_thread_number(threads)
    layers = Layers(walk)
    layers.train(True)
    optimizer = optim.SGD(layers, rate, momentum, 0.0, optim.Regularization_Method.L2)
    x, y = host(batch)

    def turn(steps: int) -> float:
        for _ in range(steps):
            image = F.const(x, list(x.shape), NCHW)
            scores = walk(layers, image)
            loss = layers.cross_entropy(scores, y)
            value = loss.read()  # A later read would compute it again with the new parameters.
            if not optimizer.step(loss):
                raise RuntimeError("MNN's optimizer found no gradient")
        return float(value)

    return turn, f"MNN {MNN.version()}", "cpu"


class Layers(nn.Module):  # type: ignore[misc]
    """The layers that translate.py calls. MNN's optimizer finds the parameters as attributes of this module."""

    def __init__(self, walk: Walk) -> None:
        super().__init__()
        self.norms: dict[str, Any] = {}
        self.drops: dict[float, Any] = {}
        for name, module in walk.modules.items():
            if type(module).__name__ == "BatchNorm2d":
                norm = nn.batch_norm(module.num_features, 4, 1 - module.momentum, module.eps)
                self.norms[name] = norm
                setattr(self, slug(name), norm)
        for name, array in walk.parameters.items():
            if name.rpartition(".")[0] in self.norms:
                assert np.all(array == (1.0 if name.endswith("weight") else 0.0)), name
                continue  # MNN initialises them with the same values.
            var = F.const(array, list(array.shape), NCHW)
            var.fix_as_trainable()
            setattr(self, slug(name), var)

    def forward(self, x: Any) -> Any:
        raise NotImplementedError

    def read(self, name: str) -> Any:
        return getattr(self, slug(name))

    def conv(self, x: Any, w: str, b: str | None, stride: Any, padding: Any, groups: int) -> Any:
        kernel = self.read(w)
        bias = self.read(b) if b else F.const(np.zeros(kernel.shape[0], np.float32), [kernel.shape[0]], NCHW)
        return F.conv2d(packed(x), kernel, bias, list(stride), list(padding), [1, 1], groups, PADS)

    def linear(self, x: Any, w: str, b: str | None) -> Any:
        y = F.matmul(plain(x), self.read(w), False, True)
        return F.add(y, self.read(b)) if b else y

    def batch_norm(self, x: Any, name: str, eps: float, momentum: float) -> Any:
        return self.norms[name](packed(x))

    def max_pool(self, x: Any, kernel: Any, stride: Any, padding: Any, ceil: bool) -> Any:
        return F.max_pool(packed(x), list(kernel), list(stride), PADS, list(padding))

    def mean_pool(self, x: Any) -> Any:
        return F.reduce_mean(plain(x), [2, 3], True)

    def dropout(self, x: Any, p: float) -> Any:
        if p not in self.drops:
            self.drops[p] = nn.dropout(p)
            self.drops[p].train(True)
        return self.drops[p](x)

    def relu(self, x: Any) -> Any:
        return F.relu(x, 0.0)

    def relu6(self, x: Any) -> Any:
        return F.relu6(x, 0.0, 6.0)

    def flatten(self, x: Any, start: int = 1) -> Any:
        return F.reshape(plain(x), [*x.shape[:start], -1], NCHW)

    def cross_entropy(self, scores: Any, target: Any) -> Any:
        classes = scores.shape[-1]
        hot = np.eye(classes, dtype=np.float32)[target.reshape(-1)]
        return nn.loss.cross_entropy(F.softmax(scores, 1), F.const(hot, list(hot.shape), NCHW))


def slug(name: str) -> str:
    return "p_" + name.replace(".", "_")


def packed(x: Any) -> Any:
    """In MNN's layout for convolutions, with channels in groups of four."""
    return x if x.data_format == NC4HW4 else F.convert(x, NC4HW4)


def plain(x: Any) -> Any:
    return F.convert(x, NCHW) if x.data_format == NC4HW4 else x
