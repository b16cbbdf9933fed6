"""Finds the user's own line of code, where warnings point and which reports name.

The user's line is in the innermost frame that belongs neither to Handheld nor to PyTorch. Under the command line
there may be none: a loss such as F.mse_loss is called by Handheld itself. The place is then the function that made
the model (`standing_at`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType

_OWN = str(Path(__file__).parent) + os.sep
#: Below these frames there is only code that starts the command line.
_COMMANDS = _OWN + "cli" + os.sep
#: The file name of a place without a user's line.
NOWHERE = "handheld"


Registry = dict[str | tuple[str, type[Warning], int], int]


@dataclass(frozen=True)
class Place:
    """A file and a line. `registry` is where Python notes which warnings the file's module has shown."""

    file: str = NOWHERE
    line: int = 0
    module: str = NOWHERE
    registry: Registry | None = field(default=None, compare=False)


_standing: ContextVar[Place] = ContextVar("_standing", default=Place())  # noqa: B039 (it is frozen)


@contextlib.contextmanager
def standing_at(file: str, line: int) -> Iterator[None]:
    """While active, this is the user's place if no line of the user's is running."""
    token = _standing.set(Place(file, line, Path(file).stem))
    try:
        yield
    finally:
        _standing.reset(token)


@cache
def _foreign(torch_is_imported: bool) -> tuple[str, ...]:
    """The beginnings of the paths of code that is not the user's."""
    library = sysconfig.get_paths()["stdlib"] + os.sep
    torch = (str(Path(str(sys.modules["torch"].__file__)).parent) + os.sep,) if torch_is_imported else ()
    return (_OWN, *torch, library + "contextlib", library + "warnings", library + "functools", "<frozen")


def is_user_file(file: str) -> bool:
    """Says whether a file belongs neither to Handheld nor to PyTorch."""
    return file != NOWHERE and not file.startswith(_foreign("torch" in sys.modules))


def _user_frame() -> FrameType | None:
    """Returns the innermost frame outside PyTorch and Handheld, or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(_COMMANDS):
        if is_user_file(frame.f_code.co_filename):
            return frame
        frame = frame.f_back
    return None


def user_place() -> Place:
    """Returns the user's file and line: of the code that runs, else of `standing_at`."""
    frame = _user_frame()
    if frame is None:
        return _standing.get()
    names = frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    return Place(frame.f_code.co_filename, frame.f_lineno, str(names.get("__name__", "<unknown>")), registry)


def warn_user(message: str, category: type[Warning] = UserWarning, place: Place | None = None) -> None:
    """Issues a warning that points at the user's line."""
    at = place or user_place()
    warnings.warn_explicit(message, category, at.file, at.line, at.module, at.registry)
