"""LoRA (Hu et al., 2022): trains two small matrices beside each frozen one.

A layer keeps its place, its class and its names. It gets the parameters `lora_a` and `lora_b` and the number
`lora_scale`, and adds what they compute to its own output. adapters.py says what these tensors are.

    linear, 1x1 and other convolutions    a is random, b is zero
    Conv1D of Hugging Face's GPT-2        b is random, a is zero, because its weight is transposed
    embeddings                            a is random, b is zero; only if a pattern names them
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from handheld.adapters import PARTS
from handheld.errors import HandheldError
from handheld.partial.patterns import matching
from handheld.partial.select import hold_statistics, trained

_CONVS = {nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d, nn.Conv3d: F.conv3d}


def lora(model: nn.Module, rank: int = 8, alpha: float | None = None, targets: str | Sequence[str] = "*") -> list[str]:
    """Freeze the model and add LoRA to its layers, in place. Returns the names of the parameters that train.

    `targets` are patterns of module names. The default is every linear layer and every convolution without groups; an
    embedding gets LoRA only if a pattern other than "*" matches it. Weights that two layers share get none, because
    merging would change both. `alpha / rank` is the scale of what is added; the default of alpha is 2 * rank.

    Make the optimizer afterwards, from the parameters with requires_grad.
    """
    if type(rank) is not int or rank < 1:
        raise HandheldError(f"rank={rank!r:.40} should be a whole number, 1 or more")
    if any(isinstance(module, _Lora) for module in model.modules()):
        raise HandheldError("the model has LoRA already. Try: handheld.merge_lora(model) first")
    layers = _layers(model, embeddings=targets != "*")
    chosen = matching(targets, layers, "layer that LoRA can be added to")
    scale = (2.0 * rank if alpha is None else float(alpha)) / rank
    model.requires_grad_(False)
    for name in chosen:
        _add(layers[name], min(rank, _most(layers[name])), scale)
    hold_statistics(model)
    return trained(model)


def merge_lora(model: nn.Module) -> list[str]:
    """Add what LoRA has learned to the weights of its layers and remove it, in place. Returns the names of the layers
    that had it."""
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, _Lora)]
    if not found:
        raise HandheldError("the model has no LoRA to merge. Try: handheld.lora(model) before")
    for _, module in found:
        weight: Tensor = module.weight  # type: ignore[assignment]
        with torch.no_grad():
            weight += (module.lora_scale * (module.lora_b @ module.lora_a)).view_as(weight)
        for part in PARTS:
            delattr(module, part)
        module.__class__ = type(module).__bases__[1]  # the class before `_add`
    return [name for name, _ in found]


def _layers(model: nn.Module, embeddings: bool) -> dict[str, nn.Module]:
    """The layers that LoRA can be added to, by name."""
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    return {
        name: module
        for name, module in model.named_modules()
        if _kind(module) and owners[id(module.weight)] == 1 and (embeddings or not isinstance(module, nn.Embedding))
    }


def _kind(module: nn.Module) -> type[_Lora] | None:
    """The class that adds LoRA to a layer, or None."""
    if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return None  # nn.MultiheadAttention reads its weight and never calls it.
    if isinstance(module, nn.Linear):
        return _LoraLinear
    if isinstance(module, nn.Embedding):
        return _LoraEmbedding
    if isinstance(module, tuple(_CONVS)) and module.groups == 1:
        return _LoraConv
    transposed = type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers.")
    return _LoraTransposed if transposed else None


def _most(module: nn.Module) -> int:
    """The largest rank that the weight of a layer can have."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    return min(weight.shape[0], weight.numel() // weight.shape[0])


def _add(module: nn.Module, rank: int, scale: float) -> None:
    kind = _kind(module)
    assert kind is not None
    weight: Tensor = module.weight  # type: ignore[assignment]
    rows, columns = weight.shape[0], weight.numel() // weight.shape[0]
    a, b = weight.new_zeros(rank, columns), weight.new_zeros(rows, rank)
    bound = 1 / math.sqrt(rows if kind is _LoraTransposed else columns)
    (b if kind is _LoraTransposed else a).uniform_(-bound, bound)
    module.__class__ = _class_with(kind, type(module))
    module.lora_a, module.lora_b = nn.Parameter(a), nn.Parameter(b)
    module.register_buffer("lora_scale", weight.new_tensor(scale))


_CLASSES: dict[tuple[type[_Lora], type[nn.Module]], type[nn.Module]] = {}


def _class_with(kind: type[_Lora], base: type[nn.Module]) -> type[nn.Module]:
    """The class of a layer with LoRA. Layers of one class have one class again."""
    if (kind, base) not in _CLASSES:
        _CLASSES[kind, base] = type(f"Lora{base.__name__}", (kind, base), {})
    return _CLASSES[kind, base]


class _Lora(nn.Module):
    """What all layers with LoRA have. Their class is made of one of the classes below and of their former class."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    lora_scale: Tensor

    def forward(self, *args: Any, **options: Any) -> Tensor:
        plain: Tensor = super().forward(*args, **options)
        return plain + self.change(args[0] if args else next(iter(options.values()))) * self.lora_scale

    def change(self, x: Tensor) -> Tensor:
        """What the two matrices make of the layer's input."""
        raise NotImplementedError


class _LoraLinear(_Lora):
    def change(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.lora_a), self.lora_b)


class _LoraTransposed(_Lora):
    """The weight is [inputs, outputs]."""

    def change(self, x: Tensor) -> Tensor:
        return x @ self.lora_b @ self.lora_a


class _LoraEmbedding(_Lora):
    def change(self, x: Tensor) -> Tensor:
        return F.embedding(x, self.lora_b) @ self.lora_a


class _LoraConv(_Lora):
    """A convolution to `rank` channels like the layer's own, then a 1x1 convolution."""

    def change(self, x: Tensor) -> Tensor:
        weight: Tensor = self.weight  # type: ignore[assignment]
        small = self.lora_a.view(-1, *weight.shape[1:])
        low: Tensor = self._conv_forward(x, small, None)  # type: ignore[operator]
        point = self.lora_b.view(*self.lora_b.shape, *(1,) * (weight.dim() - 2))
        convolve = next(function for kind, function in _CONVS.items() if isinstance(self, kind))
        return convolve(low, point)
