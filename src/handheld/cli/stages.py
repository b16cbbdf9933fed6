"""Shows what a command is preparing: one line on a terminal, from the first moment until the work begins."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.live import Live
from rich.text import Text

from handheld.cli import output
from handheld.progress import Progress, listener, reporting

EVERY_S = 0.25


class Stage:
    """A line with the current stage and the time since the command began. Can be called by `handheld.progress`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.redraw: Callable[[], None] = lambda: None
        self._begun = time.monotonic()
        self._stage = text
        #: Also told, if the line is not drawn: the process of a fleet.
        self.outer: Progress | None = None

    def __call__(self, stage: str, done: int = 0, total: int = 0) -> None:
        self.text = f"{stage} {done} of {total}" if total else stage
        if self.outer is not None:
            self.outer(stage, done, total)
        # The line is drawn a few times per second. A short stage would never appear.
        if stage != self._stage:
            self._stage = stage
            self.redraw()

    def __rich__(self) -> Text:
        seconds = time.monotonic() - self._begun
        return Text.assemble((self.text, "bold"), (f"  {output.duration(seconds)}", "dim"), no_wrap=True)


@contextlib.contextmanager
def stages(quiet: bool, text: str = "preparing") -> Iterator[Stage]:
    """On a terminal, show the stages of the work inside. In a pipe and with --json, print nothing."""
    stage = Stage(text)
    if quiet or not output.err.is_terminal:
        stage.outer = listener()
        yield stage
        return
    with Live(stage, console=output.err, transient=True, refresh_per_second=1 / EVERY_S) as line, reporting(stage):
        stage.redraw = line.refresh
        yield stage
