"""Errors that a user's own code raised: the user's file and line, what was raised, on which batch, and what to try."""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from handheld.callers import is_user_file
from handheld.errors import CaptureError, HandheldError


def place_of(error: BaseException, folder: Path | None = None) -> str:
    """`file.py:12`, the place of the innermost line of the user's own code that the error went through, or "".

    Code below `folder` is the user's, and so is code that belongs neither to Handheld, to PyTorch, nor to an installed
    package.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{shown(Path(error.filename))}:{error.lineno or 1}"
    frame = _own_frame(error, folder)
    return "" if frame is None else f"{shown(Path(frame.filename))}:{frame.lineno}"


def _own_frame(error: BaseException, folder: Path | None) -> traceback.FrameSummary | None:
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_own(frame.filename, folder):
            return frame
    return None


def _is_own(file: str, folder: Path | None) -> bool:
    installed = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    if folder is not None and Path(file).is_relative_to(folder.resolve()):
        return not file.startswith(installed)
    return is_user_file(file) and not file.startswith((*installed, "<"))


def shown(path: Path) -> Path:
    """The path from the current folder, if it is below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def raised(error: BaseException) -> str:
    """`TypeError: text`, with the first line of the text. The types of a capture are those of PyTorch to the user."""
    first_line = str(error).strip().partition("\n")[0].rstrip(".").replace("FakeTensor", "Tensor")
    if isinstance(error, SyntaxError):
        first_line = error.msg
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


def in_factory(error: Exception, where: str, folder: Path) -> CaptureError:
    """The error of a file or factory that raised something."""
    place = place_of(error, folder)
    hint = "the same in plain Python, or --debug for the whole traceback"
    if isinstance(error, ModuleNotFoundError) and error.name:
        hint = f"pip install {error.name.partition('.')[0]}"
    elif isinstance(error, SyntaxError):
        hint = "correct that line"
    return CaptureError(f"{where} raised an error in {place or 'code that is not yours'}: {raised(error)}. Try: {hint}")


def in_model(error: Exception, name: str, batch: Any, model: Any, folder: Path | None = None) -> CaptureError:
    """The error of a model or loss that does not run on a batch. `folder` is the folder of the user's code."""
    place = place_of(error, folder) or _module(error, model)
    frame = _own_frame(error, folder)
    code = f": {frame.line}" if frame is not None and frame.line else ""
    at = f" in {place}{code}:" if place else ""
    return CaptureError(
        f"{name} does not run on a batch of {shapes(batch)}:{at} {raised(error)}. "
        "Try: loss(model(x), y) in plain PyTorch with such a batch, or --debug for the whole traceback"
    )


def note_place(error: Exception, batch: Any) -> None:
    """Add the user's line and the batch to an error that is raised as it is, where Python can show notes (3.11)."""
    place = place_of(error)
    if place and not isinstance(error, HandheldError) and hasattr(error, "add_note"):
        leaves = batch if isinstance(batch, Mapping | list | tuple) else [batch]
        error.add_note(f"handheld.capture ran your code on a batch of {shapes(leaves)}; the error is in {place}")


def _module(error: BaseException, model: Any) -> str:
    """The innermost module of the model that the error went through, such as `layer 2 (Linear)`."""
    names = {id(module): name for name, module in model.named_modules()} if hasattr(model, "named_modules") else {}
    found, frame = "", error.__traceback__
    while frame is not None:
        module = frame.tb_frame.f_locals.get("self")
        if names.get(id(module)):
            found = f"layer {names[id(module)]} ({type(module).__name__})"
        frame = frame.tb_next
    return found


def shapes(batch: Any) -> str:
    """The types and shapes of the tensors of a batch."""
    values = list(batch.values()) if isinstance(batch, Mapping) else list(batch)
    return ", ".join(f"{str(v.dtype).removeprefix('torch.')}{list(v.shape)}" for v in values if hasattr(v, "shape"))


def check_no_arguments(function: Callable[..., Any], where: str) -> None:
    """Raise CaptureError if a factory cannot be called without arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # Some callables have no signature.
        return
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in optional]
    if not needed:
        return
    code = getattr(inspect.unwrap(function), "__code__", None)
    line = f" (line {code.co_firstlineno})" if code else ""
    names = f"argument{'s' if len(needed) > 1 else ''} {', '.join(needed)}"
    raise CaptureError(
        f"{where}{line} needs the {names}, but a factory is called without any. "
        f"Try: a default ({needed[0]}=...), or a function without arguments that calls it"
    )
