"""The step in JAX: one jitted function of state and batch, with donated state.

Images are laid out as [n, h, w, c], as in JAX's own models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from translate import Walk, host


def make(walk: Walk, batch: Any, rate: float, momentum: float, threads: int) -> tuple[Callable[[int], float], str, str]:
    """(steps -> last loss, the peer's name, the kind of device). `Remote` sets the threads in the environment."""

    def loss_of(params: Any, buffers: Any, key: Any, x: Any, y: Any) -> Any:
        layers = Layers(params, buffers, key)
        image = jnp.transpose(x, (0, 2, 3, 1)) if x.ndim == 4 else x
        return layers.cross_entropy(walk(layers, image), y), layers.buffers

    def step(params: Any, velocity: Any, buffers: Any, key: Any, x: Any, y: Any) -> Any:
        key, now = jax.random.split(key)
        (loss, buffers), grads = jax.value_and_grad(loss_of, has_aux=True)(params, buffers, now, x, y)
        velocity = jax.tree.map(lambda v, g: momentum * v + g, velocity, grads)
        params = jax.tree.map(lambda p, v: p - rate * v, params, velocity)
        return params, velocity, buffers, key, loss

    run = jax.jit(step, donate_argnums=(0, 1, 2, 3))
    arrays = host(batch)
    params = {n: jnp.asarray(kernel_layout(a)) for n, a in walk.parameters.items()}
    state = [
        params,
        jax.tree.map(jnp.zeros_like, params),
        {n: jnp.asarray(a) for n, a in walk.buffers.items()},
        jax.random.key(0),
    ]

    def turn(steps: int) -> float:
        for _ in range(steps):
            *state[:], loss = run(*state, *arrays)
        jax.block_until_ready(state)
        return float(loss)

    return turn, f"JAX {jax.__version__}", jax.default_backend()


def kernel_layout(w: Any) -> Any:
    """A convolution's weights from [k, c, r, s] to [r, s, c, k]."""
    return w.transpose(2, 3, 1, 0) if w.ndim == 4 else w


class Layers:
    """The layers that translate.py calls. Batch norms replace entries of `buffers` as they run."""

    def __init__(self, params: Any, buffers: Any, key: Any) -> None:
        self.params, self.buffers, self.key = params, dict(buffers), key

    def conv(self, x: Any, w: str, b: str | None, stride: Any, padding: Any, groups: int) -> Any:
        y = lax.conv_general_dilated(
            x,
            self.params[w],
            stride,
            [(p, p) for p in padding],
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )
        return y + self.params[b] if b else y

    def linear(self, x: Any, w: str, b: str | None) -> Any:
        y = x @ self.params[w].T
        return y + self.params[b] if b else y

    def batch_norm(self, x: Any, name: str, eps: float, momentum: float) -> Any:
        count = x.size // x.shape[-1]
        mean, var = jnp.mean(x, (0, 1, 2)), jnp.var(x, (0, 1, 2))
        for key, now in (("mean", mean), ("var", var * (count / (count - 1)))):
            old = self.buffers[f"{name}.running_{key}"]
            self.buffers[f"{name}.running_{key}"] = (1 - momentum) * old + momentum * now
        scale = lax.rsqrt(var + eps) * self.params[f"{name}.weight"]
        return (x - mean) * scale + self.params[f"{name}.bias"]

    def layer_norm(self, x: Any, w: str, b: str | None, eps: float) -> Any:
        mean, var = jnp.mean(x, -1, keepdims=True), jnp.var(x, -1, keepdims=True)
        y = (x - mean) * lax.rsqrt(var + eps) * self.params[w]
        return y + self.params[b] if b else y

    def embedding(self, x: Any, w: str) -> Any:
        return self.params[w][x]

    def lstm(self, x: Any, name: str, layers: int) -> Any:
        x = x.swapaxes(0, 1)  # [t, n, width]
        for i in range(layers):
            p = {k: self.params[f"{name}.{k}_l{i}"] for k in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
            gates = x @ p["weight_ih"].T + (p["bias_ih"] + p["bias_hh"])

            def cell(state: Any, gx: Any, w: Any = p["weight_hh"]) -> Any:
                h, c = state
                i, f, g, o = jnp.split(gx + h @ w.T, 4, -1)
                c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                h = jax.nn.sigmoid(o) * jnp.tanh(c)
                return (h, c), h

            zero = jnp.zeros((x.shape[1], p["weight_hh"].shape[1]), x.dtype)
            _, x = jax.lax.scan(cell, (zero, zero), gates)
        return x.swapaxes(0, 1)

    def attention(self, q: Any, k: Any, v: Any) -> Any:
        score = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        return jax.nn.softmax(score, -1) @ v

    def max_pool(self, x: Any, kernel: Any, stride: Any, padding: Any, ceil: bool) -> Any:
        pads = [(0, 0)]
        for n, k, s, p in zip(x.shape[1:3], kernel, stride, padding, strict=True):
            over = -(n + 2 * p - k) % s if ceil else 0
            pads.append((p, p + over))
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, *kernel, 1), (1, *stride, 1), [*pads, (0, 0)])

    def mean_pool(self, x: Any) -> Any:
        return x.mean((1, 2), keepdims=True)

    def dropout(self, x: Any, p: float) -> Any:
        self.key, key = jax.random.split(self.key)
        return jnp.where(jax.random.bernoulli(key, 1 - p, x.shape), x / (1 - p), 0)

    def relu(self, x: Any) -> Any:
        return jax.nn.relu(x)

    def relu6(self, x: Any) -> Any:
        return jax.nn.relu6(x)

    def gelu(self, x: Any) -> Any:
        return jax.nn.gelu(x, approximate=False)

    def flatten(self, x: Any, start: int = 1) -> Any:
        x = jnp.transpose(x, (0, 3, 1, 2)) if x.ndim == 4 else x
        return x.reshape(*x.shape[:start], -1)

    def cat(self, xs: Any, axis: int) -> Any:
        return jnp.concatenate(xs, -1 if xs[0].ndim == 4 and axis == 1 else axis)

    def permute(self, x: Any, axes: Any) -> Any:
        return x.transpose(axes)

    def reshape(self, x: Any, shape: Any) -> Any:
        return x.reshape(shape)

    def transpose(self, x: Any, a: int, b: int) -> Any:
        return x.swapaxes(a, b)

    def unbind(self, x: Any, axis: int = 0) -> Any:
        return [jnp.take(x, i, axis) for i in range(x.shape[axis])]

    def read(self, name: str) -> Any:
        return self.params[name]

    def cross_entropy(self, scores: Any, target: Any) -> Any:
        logs = jax.nn.log_softmax(scores.reshape(-1, scores.shape[-1]))
        return -jnp.mean(jnp.take_along_axis(logs, target.reshape(-1, 1), 1))
