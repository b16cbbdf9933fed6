"""Reads and writes step files and checkpoints, which hold data and never code.

Both are safetensors files (container.py). A step file holds one tensor per slot and, as JSON in its metadata, the
slots, the graphs and facts about them. A checkpoint holds named arrays and facts. Files are not trusted: every
graph that is read is checked against all rules of graph/check.py.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import handheld
from handheld import container
from handheld.collector import paused
from handheld.errors import CheckpointError, StepFileError
from handheld.graph.check import check
from handheld.graph.codec import from_json, slot_from_json, slot_to_json, to_json, value_to_json
from handheld.graph.decode import a_list, a_value, an_object, fields, need, text
from handheld.graph.dtypes import DTYPES, TORCH_DTYPES
from handheld.graph.graph import SLOT_ROLES, Graph, Slot
from handheld.step import Step

Array = npt.NDArray[Any]

VERSION = 1
MAX_SLOTS = 1_000_000
#: In the metadata of a checkpoint that a runner wrote: the number of steps.
WROTE_STEPS = "wrote_steps"


def save(step: Step, path: str | Path) -> Path:
    """Write a step file atomically."""
    used = {name for graph in step.graphs.values() for name in graph.slots}
    only_added = {name for graph in step.added.values() for name in graph.slots} - used
    slots = {n: s for n, s in step.slots.items() if s.role != "constant" or n not in only_added}
    values = {name: value for name, value in step.values.items() if name in slots or name not in step.slots}
    _check_values(slots, values)
    for graph in step.graphs.values():
        check(graph, slots)
    content = {
        "slots": [slot_to_json(slot) for slot in slots.values()],
        "graphs": {name: to_json(graph) for name, graph in step.graphs.items()},
        "meta": value_to_json({**step.meta, "written": _written()}),
    }
    return container.write(Path(path), values, _metadata("step", content))


def _written() -> dict[str, str]:
    """The versions that write a file, and the time."""
    return {
        "handheld": handheld.__version__,
        "python": platform.python_version(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


@paused()
def load(path: str | Path) -> Step:
    """Read a step that `save` wrote. Raises StepFileError. Needs no PyTorch, and runs no code from the file."""
    path = Path(path)
    values, (slots, graphs, meta) = container.read(path, _step)
    try:
        _check_values(slots, values)
    except StepFileError as error:
        raise StepFileError(f"{path}: {error}") from None
    return Step(slots, {name: values[name] for name in slots}, graphs, meta)


def _step(metadata: dict[str, str]) -> tuple[dict[str, Slot], dict[str, Graph], dict[str, Any]]:
    content = _content(metadata, "step")
    slots, graphs, meta = fields(content, ("slots", "graphs", "meta"), "a step")
    listed = a_list(slots, _slot, "slots", MAX_SLOTS)
    by_name = {slot.name: slot for slot in listed}
    need(len(by_name) == len(listed), "a slot appears twice")
    read = {name: from_json(graph) for name, graph in an_object(graphs, "graphs").items()}
    for graph in read.values():
        check(graph, by_name)
    return by_name, read, _facts(meta)


def save_state(path: str | Path, arrays: Mapping[str, Array], meta: Mapping[str, object]) -> Path:
    """Write a checkpoint atomically."""
    metadata = _metadata("checkpoint", {"meta": value_to_json(dict(meta))})
    return container.write(Path(path), arrays, metadata, CheckpointError)


def state_header(tensors: Mapping[str, tuple[str, tuple[int, ...]]], meta: Mapping[str, object]) -> container.Unfilled:
    """The header of a checkpoint that another program fills: name -> element type and shape of each tensor."""
    metadata = _metadata("checkpoint", {"meta": value_to_json(dict(meta))})
    kinds = {name: (np.dtype(DTYPES[kind].numpy), shape) for name, (kind, shape) in tensors.items()}
    return container.header_to_fill(kinds, metadata, WROTE_STEPS)


def checkpoint_origin(step: Step) -> dict[str, object]:
    """What prediction and export need to know of the step: its facts, and the names of the model's own state."""
    return {
        **{k: step.meta[k] for k in ("name", "data", "absent", "partial", "packed") if k in step.meta},
        "model": tuple(step.model_names()),
    }


def load_state(path: str | Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Read the arrays and facts that `save_state` wrote. Raises StepFileError."""
    return container.read(Path(path), _checkpoint)


def _checkpoint(metadata: dict[str, str]) -> dict[str, Any]:
    (meta,) = fields(_content(metadata, "checkpoint"), ("meta",), "a checkpoint")
    return _facts(meta)


def _metadata(kind: str, content: Mapping[str, object]) -> dict[str, str]:
    written = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return {"handheld": kind, "version": str(VERSION), kind: written}


def _content(metadata: dict[str, str], kind: str) -> Any:
    """The JSON of the file. Raises StepFileError if the file is of another kind or of an unknown version."""
    article = {"step": "a step file", "checkpoint": "a checkpoint"}
    stored, version = metadata.get("handheld"), metadata.get("version", "")
    if stored not in article:
        raise StepFileError(f"is not {article[kind]}")
    if not (version.isascii() and version.isdigit() and len(version) < 10):
        raise StepFileError(f"malformed step file: version {version[:40]!r}")
    if int(version) > VERSION:
        raise StepFileError(
            f"was written by a newer Handheld (file version {version}, this one "
            f"reads {VERSION}). Try: install that version here, or write the file again with this one"
        )
    if stored != kind:
        raise StepFileError(f"is {article[stored]}, not {article[kind]}")
    need(int(version) == VERSION and kind in metadata, f"it contains no {kind}")
    return container.parse_json(metadata[kind])


def _slot(data: object, where: str) -> Slot:
    slot = slot_from_json(data)
    need(slot.role in SLOT_ROLES, f"slot {slot.name!r} has the role {slot.role}")
    need(slot.torch_dtype in TORCH_DTYPES, f"slot {slot.name!r} is a {slot.torch_dtype[:40]!r}")
    return slot


def _check_values(slots: Mapping[str, Slot], values: Mapping[str, Array]) -> None:
    """Raise StepFileError unless every slot has a value of its shape and type, and there are no other values."""
    for name, slot in slots.items():
        if name not in values:
            raise StepFileError(f"slot {name!r} has no value")
        value = values[name]
        if value.shape != slot.shape or value.dtype != DTYPES[slot.dtype].numpy:
            raise StepFileError(
                f"slot {name!r} is {slot.dtype}{list(slot.shape)}, but its value is {value.dtype}{list(value.shape)}"
            )
    for name in values:
        if name not in slots:
            raise StepFileError(f"the value {name!r} belongs to no slot")


def _facts(data: object) -> dict[str, Any]:
    facts = a_value(data, "meta")
    if not isinstance(facts, dict):
        raise StepFileError("malformed step file: meta should be a dictionary")
    return {text(key, "meta"): value for key, value in facts.items()}
