"""The names and the arithmetic of LoRA in a state: which tensors belong to an adapter, and how they are merged.

A layer with LoRA has three tensors beside its `weight`: `lora_a` [rank, n], `lora_b` [m, rank] and the number
`lora_scale`. With the weight as a matrix [m, n], the layer computes with

    weight + lora_scale * lora_b @ lora_a
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from handheld.errors import HandheldError

A, B, SCALE = "lora_a", "lora_b", "lora_scale"
PARTS = (A, B, SCALE)
#: What can be taken from a state with LoRA.
MERGED, ADAPTER, ALL = "merged", "adapter", "all"
KINDS = (MERGED, ADAPTER, ALL)


def _layers(state: Mapping[str, np.ndarray]) -> list[str]:
    """The layers with LoRA, each with a dot at its end. A model may have parameters of such names that are no LoRA."""
    dots = [name.removesuffix(A) for name in state if name == A or name.endswith(f".{A}")]
    return [dot for dot in dots if all(f"{dot}{part}" in state for part in (*PARTS, "weight"))]


def taken(state: Mapping[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    """A state with LoRA as `kind` says. merged: every adapter is added to its weight and removed; adapter: only the
    tensors of the adapters; all: as it is. Without LoRA, a merged state is the state itself."""
    if kind not in KINDS:
        raise HandheldError(f"--lora {kind:.40} is not possible. Try: {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    layers = _layers(state)
    parts = {f"{dot}{part}" for dot in layers for part in PARTS}
    if kind == ALL:
        return dict(state)
    if kind == ADAPTER:
        if not layers:
            raise HandheldError("there is no LoRA in this model. Try: handheld.lora(model), or train --lora 8")
        return {name: value for name, value in state.items() if name in parts}
    result = {name: value for name, value in state.items() if name not in parts}
    for dot in layers:
        weight = state[f"{dot}weight"]
        change = np.float32(state[f"{dot}{SCALE}"]) * (state[f"{dot}{B}"] @ state[f"{dot}{A}"])
        if change.size != weight.size:
            raise HandheldError(f"the LoRA of {dot.rstrip('.') or 'the model'} does not fit its weight {weight.shape}")
        result[f"{dot}weight"] = (weight + change.reshape(weight.shape)).astype(weight.dtype)
    return result
