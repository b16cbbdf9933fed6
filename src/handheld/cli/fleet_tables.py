"""What `--on fleet:GROUP` prints: a live table on a terminal, plain lines elsewhere, and a table at the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from handheld.cli import output
from handheld.cli.tables import Column, table
from handheld.fleet.figures import Part
from handheld.fleet.file import Device, Fleet
from handheld.fleet.run import DONE, ENDED, Member

STYLES = {"done": "green", "failed": "bold red", "stopped": "yellow", "cooling": "yellow", "stopping": "yellow"}
TRAINED = "trained"
EVERY_S = 10.0  # Seconds between two lines about the same state of a device.


def begin(fleet: Fleet, devices: Sequence[Device], todo: Sequence[Device], folder: Path) -> None:
    """Say what is about to happen."""
    done = [device.name for device in devices if device not in todo]
    output.out.print(
        f"{output.count(len(devices), 'device')} of {fleet.path}, results in {folder}", soft_wrap=True, markup=False
    )
    if done:
        output.out.print(f"already done: {', '.join(done)}", soft_wrap=True, markup=False)


@contextlib.contextmanager
def shown(quiet: bool) -> Iterator[Callable[[Sequence[Member]], None]]:
    """A function that shows the members: as a table on a terminal, as lines elsewhere, not at all with --json."""
    if quiet:
        yield lambda members: None
    elif output.err.is_terminal:
        with Live(console=output.err, transient=True, auto_refresh=False) as screen:
            yield lambda members: screen.update(live(members), refresh=True)
    else:
        yield _Lines()


def live(members: Sequence[Member]) -> RenderableType:
    """The members as a table that fits the terminal."""
    made = Table(box=None, padding=(0, 1), header_style="dim", pad_edge=False)
    made.add_column("device", no_wrap=True, overflow="ellipsis", max_width=20)
    made.add_column("state", no_wrap=True)
    made.add_column("doing", no_wrap=True, overflow="ellipsis", ratio=1)
    for name in ("°C", "battery", "time"):
        made.add_column(name, justify="right", no_wrap=True)
    made.expand = True
    for member in members:
        now = member.watcher.now
        made.add_row(
            Text(member.job.device.name, style="bold"),
            Text(member.state, style=STYLES.get(member.state, "")),
            Text(_doing(member)),
            "-" if now.celsius is None else f"{now.celsius:.0f}",
            "-" if now.percent is None else f"{now.percent:.0f}%{'+' if now.charging else ''}",
            output.duration(member.worked_s),
        )
    return made


def _doing(member: Member) -> str:
    if member.state in ENDED:
        return member.reason
    return f"{member.done}/{member.total} {member.doing}" if member.total else member.doing


class _Lines:
    """Prints a line when a device changes its state, and now and then when it has finished a part of its work."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[str, int, str]] = {}
        self._when: dict[str, float] = {}

    def __call__(self, members: Sequence[Member]) -> None:
        for member in members:
            name = member.job.device.name
            counted = member.total > 0  # Without a total, stages are few; with one, each would be too many.
            now = (member.state, member.done if counted else 0, "" if counted else member.doing)
            before = self._said.get(name, ("", 0, ""))
            if before == now or (before[0] == now[0] and time.monotonic() < self._when[name] + EVERY_S):
                continue
            self._said[name], self._when[name] = now, time.monotonic()
            reading = member.watcher.now
            heat = "" if reading.celsius is None else f", {reading.celsius:.0f} °C"
            battery = "" if reading.percent is None else f", battery {reading.percent:.0f}%"
            doing = _doing(member)
            output.err.print(
                f"{name}: {member.state}{f': {doing}' if doing else ''}{heat}{battery}", soft_wrap=True, markup=False
            )


def present(parts: Sequence[Part], folder: Path, page: Path | None) -> None:
    """Print how each device ended, and where the results are."""
    columns = (
        Column("device", name_of=True, least=6),
        Column("state", name_of=True, least=7),
        Column("trained"),
        Column("hottest °C", drop=2),
        Column("battery", drop=1),
        Column("worked"),
    )
    rows = [
        (
            part.name,
            Text(part.state, style=STYLES.get(part.state, "")),
            f"{sum(row['status'] == TRAINED for row in part.rows)} of {len(part.rows)}" if part.rows else "-",
            _number(part.record.get("hottest_celsius")),
            _number(next(reversed(part.record.get("battery_percent") or []), None), "%"),
            output.duration(part.record.get("seconds", 0.0)),
        )
        for part in parts
    ]
    output.out.print()
    output.out.print(table(columns, rows))
    bad = [part for part in parts if part.state != DONE]
    for part in bad:
        output.out.print(
            Text.assemble((f"{part.name} {part.state}: ", "bold"), part.reason or "no reason is known"), soft_wrap=True
        )
    for part in parts:
        for note in part.record.get("notes", []):
            output.warn(f"{part.name}: {note}")
    output.out.print(
        output.grid(
            [
                ("results", output.path(folder)),
                *([("page", output.path(page))] if page else []),
                *([("continue", "run the same command; finished work is not repeated")] if bad else []),
            ]
        )
    )


def _number(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.0f}{unit}"
