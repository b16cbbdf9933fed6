"""Chooses which parameters of a module train. All others are frozen: `requires_grad` is False.

What trains is a list of words, joined by "or":

    last:N      the last N layers; a layer is a module with parameters of its own, in the order of definition
    biases      every bias
    norms       the parameters of batch norms, layer norms and other norms
    PATTERN     a shell glob of names (`layers.2.*`), or the name of a module (`head`)

A batch norm whose weight is frozen goes to eval mode: it uses its running statistics and keeps them. What it computes
then depends on no other sample, and no trained parameter needs its input.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from handheld.errors import HandheldError
from handheld.partial.patterns import matching

#: What a word can be beside a pattern.
WORDS = ("biases", "norms", "last:1")


def train_only(model: nn.Module, *what: str) -> list[str]:
    """Freeze every parameter of the model except those that `what` names (see above). Returns the names that train."""
    if not what:
        raise HandheldError("train_only needs to know what trains. Try: 'last:1', 'biases', 'norms' or a pattern")
    names = _names(model)
    wanted = {id(names[name]) for word in what for name in _chosen(model, word)}
    for parameter in names.values():
        parameter.requires_grad_(id(parameter) in wanted)
    hold_statistics(model)
    return trained(model)


def freeze(model: nn.Module, *patterns: str) -> list[str]:
    """Freeze the parameters that the patterns match, and leave the others as they are. Returns the names that train."""
    names = _names(model)
    for name in matching(patterns, names, "parameter"):
        names[name].requires_grad_(False)
    hold_statistics(model)
    return trained(model)


def trained(model: nn.Module) -> list[str]:
    """The names of the parameters that train. A tied parameter appears under its first name."""
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def hold_statistics(model: nn.Module) -> None:
    """Puts every batch norm whose weight is frozen into eval mode."""
    for module in model.modules():
        if isinstance(module, _NormBase) and module.weight is not None and not module.weight.requires_grad:
            module.eval()


def retarget(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Gives the optimizer exactly the trained parameters of the model. Each group keeps those that it had; parameters
    that the optimizer did not have join the first group, with its rate and its other options."""
    wanted = {id(p): p for p in model.parameters() if p.requires_grad}
    for group in optimizer.param_groups:
        for p in group["params"]:
            if id(p) not in wanted:
                optimizer.state.pop(p, None)
        group["params"] = [p for p in group["params"] if id(p) in wanted]
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    optimizer.param_groups[0]["params"] += [p for key, p in wanted.items() if key not in known]


def _names(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter under each of its names."""
    names = dict(model.named_parameters(remove_duplicate=False))
    if not names:
        raise HandheldError("the model has no parameters")
    return names


def _chosen(model: nn.Module, word: str) -> Sequence[str]:
    """The names of the parameters that a word stands for."""
    names = _names(model)
    if word.startswith("last:"):
        return _last(model, word.removeprefix("last:"))
    if word == "biases":
        chosen = [name for name in names if "bias" in name.rpartition(".")[2]]
    elif word == "norms":
        chosen = [
            f"{path}.{name}".lstrip(".") for path, layer in _layers(model) if _is_norm(layer) for name in _own(layer)
        ]
    else:
        return matching(word, names, "parameter", WORDS)
    if not chosen:
        raise HandheldError(f"the model has no {word}. Try: 'last:1', or a pattern such as {next(iter(names))!r}")
    return chosen


def _last(model: nn.Module, count: str) -> list[str]:
    layers = _layers(model)
    if not count.isdigit() or not 1 <= int(count) <= len(layers):
        raise HandheldError(f"'last:{count}' should name a number of layers, from last:1 to last:{len(layers)}")
    return [f"{path}.{name}".lstrip(".") for path, layer in layers[-int(count) :] for name in _own(layer)]


def _layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules that have parameters of their own, in the order of definition."""
    return [(path, module) for path, module in model.named_modules() if _own(module)]


def _own(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters(recurse=False)]


def _is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm of PyTorch, or of a library that names its class so (LlamaRMSNorm)."""
    known = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
    return isinstance(module, known) or re.search(r"Norm(?![a-z])", type(module).__name__) is not None
