"""Shows a training run while it runs: one line per epoch, and a progress bar below."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sized
from types import TracebackType

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from handheld.cli import output
from handheld.data.batches import Data
from handheld.run.history import Epoch
from handheld.run.loop import Progress as StepProgress

WIDE = 76  # The columns that the whole line needs.


class Bar:
    """A callback of the training loop. Without a terminal, only the lines of the epochs are printed."""

    def __init__(self, data: Data, epochs: int, quiet: bool) -> None:
        self.quiet = quiet
        self._times: deque[tuple[float, int]] = deque(maxlen=64)
        self._shown = 0.0
        #: Whether the lines have an accuracy: a regression has none. Known after the first epoch.
        self._accuracy: bool | None = None
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn(_figures(output.out.width)),
            TimeRemainingColumn(),
            console=output.out,
            transient=True,
            expand=True,
            auto_refresh=False,
            disable=quiet or not output.out.is_terminal,
        )
        total = len(data) * epochs if isinstance(data, Sized) else None
        self.task = self.bar.add_task(_place(1, epochs), total=total, loss="…", rate="…", speed="…")

    def __enter__(self) -> Bar:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def on_step(self, now: StepProgress) -> None:
        clock = time.monotonic()
        self._times.append((clock, now.samples))
        if self.bar.disable or clock - self._shown < 0.1:  # Ten updates per second are enough for a reader.
            return
        self._shown = clock
        done = (now.epoch - 1) * (now.batches or 0) + now.position
        self.bar.update(
            self.task,
            completed=done,
            description=_place(now.epoch, now.epochs),
            loss="…" if now.loss is None else output.number(now.loss),
            rate=f"{now.rate:.2g}",
            speed=f"{self._speed():,.0f}",
            refresh=True,
        )

    def _speed(self) -> float:
        span = self._times[-1][0] - self._times[0][0]
        return sum(n for _, n in list(self._times)[1:]) / span if span > 0 else 0.0

    def on_epoch(self, row: Epoch) -> None:
        if self.quiet:
            return
        loss, accuracy = row.test.get("loss"), row.test.get("accuracy")
        if self._accuracy is None:
            self._accuracy = accuracy is not None
            output.out.print(self._line("epoch", "loss", "test loss", "accuracy", "rate", "samples/s"), style="dim")
        output.out.print(
            self._line(
                str(row.number),
                output.number(row.loss),
                "" if loss is None else output.number(loss),
                "" if accuracy is None else f"{accuracy:.2%}",
                f"{row.rate:.3g}",
                f"{row.samples_per_second:,.0f}",
            )
        )

    def _line(self, number: str, loss: str, test: str, accuracy: str, rate: str, speed: str) -> str:
        shown = f"{accuracy:>9} " if self._accuracy else ""
        return f"{number:>6} {loss:>9} {test:>10} {shown}{rate:>10} {speed:>10}"

    def on_message(self, text: str) -> None:
        if text:
            output.warn(text)


def _figures(width: int) -> str:
    """The text beside the bar. The rate is left out on a narrow terminal, so that no number is cut."""
    rate = "rate {task.fields[rate]:<8}" if width >= WIDE else ""
    return f"loss {{task.fields[loss]:>6}}  {rate}{{task.fields[speed]:>7}} samples/s"


def _place(epoch: int, epochs: int) -> str:
    return f"epoch {epoch:>{len(str(epochs))}}/{epochs}"
