"""Writes parameters and buffers for PyTorch: a file that `torch.load(weights_only=True)` reads, or safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from handheld import container
from handheld.errors import HandheldError, StepFileError
from handheld.files import replace_file
from handheld.step import Step, names_in


@dataclass(frozen=True)
class State:
    """The model's state by PyTorch's names, and where it comes from.

    `shared` maps the further names of tied values to the first one. `absent` are names that a state dict of the model
    has and this does not. `words` says which state of a training it is, if there may be several.
    """

    arrays: Mapping[str, np.ndarray]
    shared: Mapping[str, str]
    absent: tuple[str, ...] = ()
    words: str = ""


def state_of(step: Step) -> State:
    """The state of the model in a step."""
    state, names = step.model_state(), step.model_names()
    first: dict[str, str] = {}
    for name, slot in names.items():
        first.setdefault(slot, name)
    shared = {name: first[slot] for name, slot in names.items() if first[slot] != name}
    return State({name: state[name] for name in names}, shared, names_in(step.meta, "absent"))


def write_pt(state: State, path: Path) -> Path:
    """A dictionary of tensors, written by `torch.save`. Tied values share one tensor. Needs PyTorch."""
    import torch

    own = {name: torch.from_numpy(np.array(a)) for name, a in state.arrays.items() if name not in state.shared}
    tensors = {name: own[state.shared.get(name, name)] for name in state.arrays}

    def fill(file: BinaryIO) -> None:
        torch.save(tensors, file)

    try:
        replace_file(path, fill)
    except OSError as error:
        raise HandheldError(f"{path} cannot be written: {error.strerror or error}. Try: another --out") from None
    return path


def write_safetensors(state: State, path: Path) -> Path:
    """A safetensors file for any library that reads them. Tied values are written under each name."""
    try:
        return container.write(path, state.arrays, {"format": "pt"}, HandheldError)
    except StepFileError as error:
        raise HandheldError(f"{path} cannot be written: {error}") from None
