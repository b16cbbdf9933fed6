"""Reads the trace file of torch.profiler (`export_chrome_trace`): JSON, also compressed with gzip.

Only complete events with a category that a run needs are kept. Times become nanoseconds of the trace's own clock.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from handheld.errors import TraceError
from handheld.units import size

MOST_BYTES = 1 << 30  # of JSON
MEMORY = 10  # bytes of memory that one byte of JSON needs while it is read
_EXPORT = "torch.profiler.profile(...).export_chrome_trace(path)"

#: The categories of events that are kept. Of Python functions, only modules are.
KINDS = frozenset(
    {
        "cpu_op",
        "user_annotation",
        "python_function",
        "kernel",
        "gpu_memcpy",
        "gpu_memset",
        "cuda_runtime",
        "cuda_driver",
    }
)


@dataclass(slots=True)
class Event:
    """One event: what it is, when, and on which thread or stream."""

    kind: str
    name: str
    begin_ns: int
    end_ns: int
    thread: tuple[str, str]
    args: Mapping[str, Any]


@dataclass(frozen=True)
class Trace:
    """The events of a trace that a run needs, and what the file says about itself."""

    events: list[Event]
    memory: list[tuple[int, str, float]]  # (time, device, bytes allocated)
    device: str | None  # the name of the GPU
    base_ns: int | None  # Unix time of the trace's zero


def read(path: Path) -> Trace:
    """Read a trace file. Raises TraceError if it is not one, is cut short, or is too large."""
    document = _document(path, _text(path))
    raw = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(raw, list):
        raise TraceError(f"{path} is JSON, but not a trace: it has no list traceEvents. Try: a file of {_EXPORT}")
    events, memory = [], []
    for number, item in enumerate(raw):
        try:
            if _kept(item):
                events.append(_event(item))
            elif item.get("name") == "[memory]":
                memory.append(_memory(item))
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise TraceError(
                f"{path} is damaged: event {number} of {len(raw)} cannot be read ({type(error).__name__}: {error}). "
                f"Try: write it again with {_EXPORT}"
            ) from None
    if not any(event.kind == "cpu_op" for event in events):
        raise TraceError(
            f"{path} has no op of PyTorch among its {len(raw):,} events. Try: a file of {_EXPORT} whose "
            "activities include ProfilerActivity.CPU"
        )
    facts = document if isinstance(document, dict) else {}
    base = facts.get("baseTimeNanoseconds")
    return Trace(events, memory, _device(facts), base if isinstance(base, int) else None)


def _text(path: Path) -> bytes:
    if path.is_dir() or not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise TraceError(f"{path} {what}. Try: a file of {_EXPORT}")
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        _check_size(path, path.stat().st_size)
        if not packed:
            return path.read_bytes()
        with gzip.open(path, "rb") as file:
            text = file.read(MOST_BYTES + 1)
        _check_size(path, len(text), "more than " if len(text) > MOST_BYTES else "")
        return text
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"{path} is cut short or damaged: {error}. Try: copy it again") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}. Try: check its permissions") from None


def _check_size(path: Path, nbytes: int, at_least: str = "") -> None:
    smaller = "Try: record fewer steps (schedule(..., active=5)), or without with_stack and record_shapes"
    if nbytes > MOST_BYTES:
        raise TraceError(f"{path} has {at_least}{size(nbytes)} of JSON; up to {size(MOST_BYTES)} is read. {smaller}")
    free = psutil.virtual_memory().available
    if nbytes * MEMORY > free:
        need = f"reading {path} needs about {size(nbytes * MEMORY)} of memory; {size(free)} is free"
        raise TraceError(f"{need}. {smaller}")


def _document(path: Path, text: bytes) -> Any:
    try:
        return json.loads(text)
    except UnicodeDecodeError:
        raise TraceError(f"{path} is not a trace: it is not text. Try: a file of {_EXPORT}") from None
    except RecursionError:
        raise TraceError(f"{path} is not a trace: it is nested too deeply. Try: a file of {_EXPORT}") from None
    except json.JSONDecodeError as error:
        begins = text.lstrip()[:1]
        if begins not in (b"{", b"["):
            raise TraceError(f"{path} is not a trace: it is not JSON. Try: a file of {_EXPORT}") from None
        end = len(text.decode("utf-8", "replace").rstrip())
        what = "cut short" if error.pos >= end - 1 or "Unterminated" in error.msg else "damaged"
        raise TraceError(
            f"{path} is {what}: {error.msg} at line {error.lineno}, column {error.colno}. "
            "Try: copy it again, or write it again; it is complete when export_chrome_trace returns"
        ) from None


def _kept(item: Any) -> bool:
    kind = item.get("cat")
    if item.get("ph") != "X" or kind not in KINDS:
        return False
    return kind != "python_function" or str(item["name"]).startswith("nn.Module: ")


def _event(item: Mapping[str, Any]) -> Event:
    begin = _ns(item["ts"])
    args = item.get("args") or {}
    if not isinstance(args, dict):
        raise TypeError("args is not an object")
    thread = (str(item["pid"]), str(item["tid"]))
    return Event(str(item["cat"]), str(item["name"]), begin, begin + max(_ns(item["dur"]), 0), thread, args)


def _memory(item: Mapping[str, Any]) -> tuple[int, str, float]:
    args = item["args"]
    device = "cpu" if args["Device Type"] == 0 else f"gpu {args.get('Device Id', 0)}"
    return _ns(item["ts"]), device, float(args["Total Allocated"])


def _ns(microseconds: Any) -> int:
    value = float(microseconds)
    if not math.isfinite(value):
        raise ValueError("a time is not finite")
    return round(value * 1000)


def _device(facts: Mapping[str, Any]) -> str | None:
    devices = facts.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else None
    return str(first["name"]) if isinstance(first, dict) and "name" in first else None
