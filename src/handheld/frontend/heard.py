"""PyTorch's warnings while a step is recorded. Each reaches the user once, at the user's own line."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from handheld.callers import Place, user_place, warn_user

#: Parts of warnings about how PyTorch itself would run the code, or about the recording. They say nothing about a step.
_ABOUT_RECORDING = (
    "when there are global hooks on modules",  # Handheld's hooks note which module runs.
    "not supported with oneDNN",
    "FakeTensor",
    "RNN module weights are not part of single contiguous chunk",
)


class Heard:
    """Keeps the warnings of several recordings, which repeat each other, and issues each one once."""

    def __init__(self) -> None:
        self._waiting: list[tuple[str, type[Warning], Place]] = []
        self._known: set[tuple[str, type[Warning], str, int]] = set()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While active, warnings are kept instead of shown."""
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = self._hear
            yield

    def _hear(self, message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        text = str(message)
        if any(part in text for part in _ABOUT_RECORDING):
            return
        place = user_place()
        key = (text, category, place.file, place.line)
        if key not in self._known:
            self._known.add(key)
            self._waiting.append((text, category, place))

    def issue(self) -> None:
        """Shows what was heard since the last call. The user's own filters decide what happens with it."""
        waiting, self._waiting = self._waiting, []
        for message, category, place in waiting:
            warn_user(message, category, place)
