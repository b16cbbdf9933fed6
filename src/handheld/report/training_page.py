"""The page of a training: losses, metrics, rate, time, memory, energy and conditions, from its run file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import numpy as np

from handheld.analyse.memory import DEVICE_MEMORY
from handheld.analyse.rails import Series as Readings
from handheld.analyse.rails import rails
from handheld.analyse.run import Run
from handheld.report import charts
from handheld.report.charts import Axis, Guide, Series
from handheld.report.document import Payload
from handheld.report.page import NOTHING, Block, Tile, beside, busy, callout, listing, page, section, table, text, tiles
from handheld.store.rows import TrainingEpochRow, TrainingStepRow
from handheld.units import count, size

MOST_POINTS = 1200  # of a line; with more steps, a point is the mean of several
MOST_LINES = 8  # of a chart of sensors
MIB = 2**20
WINDOW_NS = 250_000_000  # of the rate of a counter


def training_page(run: Run) -> Payload:
    """The payload of the page. The run has `training_steps()`."""
    steps, epochs = run.training_steps(), run.epochs()
    settings, caps = run.meta.get("settings") or {}, run.meta.get("caps") or {}
    others = run.others()
    ended = run.meta.get("training") or {}
    stopped = ended.get("stopped") or ("" if run.complete else _status(run))
    return page(
        f"Training {settings.get('what', run.path.stem)}",
        [
            busy(others.warning if others else ""),
            callout("bad", "Not finished", f"{stopped[0].upper()}{stopped[1:]}.") if stopped else NOTHING,
            _answer(run, steps, epochs),
            section("Loss", *_losses(steps, epochs)),
            section("Metrics", *_metrics(epochs)),
            section("Time", *_time(run, epochs)),
            section("Memory", *_memory(run)),
            section("Energy, temperature and clocks", *_sensors(run)),
            section("Conditions", *_conditions(run)),
        ],
        device=f"{run.meta.get('device')} ({caps.get('name', 'not known')})",
        date=_date(run.meta.get("begun_unix_ns")),
        about=f"{count(len(steps), 'step')} in {count(len(epochs), 'whole epoch')}"
        + (f" on {settings['data']}" if settings.get("data") else "")
        + ".",
        facts={name: str(settings[name]) for name in ("data", "batch", "precision", "schedule") if settings.get(name)},
    )


def _status(run: Run) -> str:
    """How a training ended that did not end normally."""
    status = str(run.meta.get("status"))
    if status.startswith("failed: "):
        return f"the training failed ({status.removeprefix('failed: ')})"
    return "the training was interrupted" if status == "interrupted" else "the training is not over"


def _date(unix_ns: object) -> str:
    if not isinstance(unix_ns, int):
        return "not known"
    return datetime.fromtimestamp(unix_ns * 1e-9, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _answer(run: Run, steps: Sequence[TrainingStepRow], epochs: Sequence[TrainingEpochRow]) -> Block:
    """The numbers that a reader wants first."""
    ended = run.meta.get("training") or {}
    chosen = ended.get("kept_epoch") or ended.get("best_epoch")
    last = next((e for e in epochs if e.number == chosen), epochs[-1] if epochs else None)
    shown = []
    for name, value in (last.test if last else {}).items():
        of = f"epoch {last.number}" if last else ""
        percent = name == "accuracy"
        shown.append(Tile(f"test {name}", 100 * value if percent else value, "%" if percent else "", of))
    if last:
        shown.append(Tile("training loss", last.loss, "", f"epoch {last.number}"))
    elif steps:
        shown.append(Tile("training loss", steps[-1].loss, "", f"step {steps[-1].step}"))
    seconds = sum(e.seconds for e in epochs)
    if seconds:
        shown.append(Tile("training time", seconds, "s", f"{sum(e.samples for e in epochs) / seconds:,.0f} samples/s"))
    step_ms = run.step_ms()[0]
    if step_ms is not None:
        shown.append(Tile("step", step_ms, "ms"))
    if run.meta.get("plan_bytes"):
        shown.append(Tile("memory on the device", run.meta["plan_bytes"] / MIB, "MiB"))
    for rail in run.energy():
        if rail.joules is not None:
            shown.append(Tile(f"energy of {rail.rail}", rail.joules, "J", "an estimate" if rail.estimate else ""))
    return tiles(*shown) if shown else NOTHING


# ── loss and metrics ──────────────────────────────────────────────────────────────────────────


def _thinned(x: Sequence[float], y: Sequence[float | None]) -> tuple[list[float], list[float | None], int]:
    """Means of groups of points, and the size of a group. What is not finite is a gap."""
    each = -(-len(x) // MOST_POINTS)
    xs, ys = np.array(x, np.float64), np.array([np.nan if v is None or not np.isfinite(v) else v for v in y])
    starts = range(0, len(x), max(each, 1))
    means = [ys[i : i + each] for i in starts]
    kept = [float(np.nanmean(group)) if np.isfinite(group).any() else None for group in means]
    return [float(xs[i : i + each].mean()) for i in starts], kept, each


def _losses(steps: Sequence[TrainingStepRow], epochs: Sequence[TrainingEpochRow]) -> Iterator[Block]:
    if not steps:
        yield text("No step has ended.")
        return
    x, y, each = _thinned([float(s.step) for s in steps], [s.loss for s in steps])
    ends = [float(e.step) for e in epochs]
    bad = sum(s.loss is None or not np.isfinite(s.loss) for s in steps)
    note = [f"A point is the mean of {each} steps." if each > 1 else "", f"{bad} × NaN or infinite." if bad else ""]
    series = [Series("step", y, x, colour=7 if epochs else 0)]
    if epochs:
        begins = [float(steps[0].step) - 1, *ends[:-1]]
        middles = [(begin + end) / 2 for begin, end in zip(begins, ends, strict=True)]
        series.append(Series("mean of an epoch", [e.loss for e in epochs], middles, colour=0))
    if any("loss" in e.test for e in epochs):
        series.append(Series("test", [e.test.get("loss") for e in epochs], ends, colour=1))
    loss = charts.lines("Loss", series, Axis("step"), Axis("loss", zero=False), note=" ".join(filter(None, note)))
    at, rates, _ = _thinned([float(s.step) for s in steps], [s.rate for s in steps])
    guides = [Guide(e.step, f"epoch {e.number}") for e in epochs[:-1]] if len(epochs) <= 10 else []
    rate = charts.lines(
        "Learning rate", [Series("rate", rates, at)], Axis("step"), Axis("rate"), guides=guides, step=True
    )
    yield beside(loss, rate)


def _metrics(epochs: Sequence[TrainingEpochRow]) -> Iterator[Block]:
    names = list(dict.fromkeys(name for e in epochs for name in e.test))
    if not names:
        why = "there was no test set" if epochs else "no epoch has ended"
        yield text(f"Nothing was evaluated: {why}.")
        return
    numbers = [float(e.number) for e in epochs]
    drawn = []
    for name in names:
        percent = name == "accuracy"
        values = [None if name not in e.test else e.test[name] * (100 if percent else 1) for e in epochs]
        y = Axis(name, "%" if percent else "", high=100 if percent else None, zero=False)
        ticks = numbers if len(numbers) <= 12 else ()
        drawn.append(charts.lines(f"Test {name}", [Series(name, values, numbers)], Axis("epoch", ticks=ticks), y))
    yield beside(*drawn)
    rows = [[e.number, e.loss, *(e.test.get(name) for name in names), e.rate, e.samples, e.seconds] for e in epochs]
    yield table(["epoch", "loss", *(f"test {name}" for name in names), "rate", "samples", "seconds"], rows)
    notes = list(dict.fromkeys(e.note for e in epochs if e.note))
    if any(e.dropped for e in epochs):
        notes.append(f"{count(sum(e.dropped for e in epochs), 'sample')} left out: the last batch was incomplete")
    if notes:
        yield listing(notes)


# ── time, memory, sensors ─────────────────────────────────────────────────────────────────────


def _time(run: Run, epochs: Sequence[TrainingEpochRow]) -> Iterator[Block]:
    drawn = []
    if epochs:
        names = [str(e.number) for e in epochs]
        rates = [e.samples / e.seconds if e.seconds else None for e in epochs]
        drawn.append(
            charts.bars("Samples per second, by epoch", names, [Series("samples", rates)], Axis("samples", "1/s"))
        )
    begun = run.span()[0]
    lines = []
    for graph in run.graphs:
        rows = [s for s in run.steps() if s.graph == graph]
        ends = [(s.end_ns - begun) * 1e-9 for s in rows]
        periods = [(b.end_ns - a.end_ns) * 1e-6 if b.id == a.id + 1 else None for a, b in itertools.pairwise(rows)]
        if periods:
            x, y, _ = _thinned(ends[1:], periods)
            lines.append(Series(graph, y, x))
    if lines:
        note = "From the end of one call to the end of the next. With many steps, a point is the mean of several."
        drawn.append(charts.lines("Time of a step", lines, Axis("time", "s"), Axis("step", "ms"), note=note))
    yield beside(*drawn) if drawn else text("Too few steps.")


def _memory(run: Run) -> Iterator[Block]:
    known = run.memory_summary()
    planned = known.plan_bytes
    words = f"The plan holds {size(planned)} on the device" if planned else "The plan's memory is not known"
    peak = f"; at most {size(known.peak_bytes)} of it are alive at once" if known.peak_bytes else ""
    yield text(f"{words}{peak}.")
    held = [
        s
        for s in run.channels
        if s.quantity == "memory"
        and ((s.source, s.name) == ("process", "resident") or (s.source in DEVICE_MEMORY and "used" in s.name))
    ]
    yield from _over_time(run, "Memory of the process and the device", held, Axis("memory", "MiB"), 1 / MIB)


def _sensors(run: Run) -> Iterator[Block]:
    def measured(*quantities: str) -> list[Readings]:
        return [s for s in run.channels if s.quantity in quantities]

    load = [*measured("utilisation"), *(s for s in measured("time") if s.counter and "idle" not in s.name)]
    found = [
        *_over_time(run, "Power", rails(run.channels), Axis("power", "W")),
        *_over_time(run, "Temperature", measured("temperature"), Axis("temperature", "°C", zero=False)),
        *_over_time(run, "Clocks", measured("frequency"), Axis("frequency", "GHz"), 1e-9),
        *_over_time(run, "Load", load, Axis("load", "%")),
    ]
    if found:
        yield beside(*found)
    if not rails(run.channels):
        yield text("Power was not measured: there is no power sensor that can be read. Reasons are below.")


def _over_time(run: Run, title: str, channels: Sequence[Readings], y: Axis, scale: float = 1.0) -> Iterator[Block]:
    """A chart of sensor channels. Counters are drawn as their rate."""
    begun = run.span()[0]
    lines = []
    for one in channels[:MOST_LINES]:
        t_ns, values = _rate(one) if one.counter else (one.t_ns, one.values)
        factor = 100.0 if one.counter and one.quantity == "time" else scale
        x, kept, _ = _thinned(((t_ns - begun) * 1e-9).tolist(), (values * factor).tolist())
        if kept:
            lines.append(Series(one.rail, kept, x))
    if lines:
        left = len(channels) - MOST_LINES
        note = f"{left} more channels are in the run file." if left > 0 else ""
        yield charts.lines(title, lines, Axis("time", "s"), y, note=note)


def _rate(one: Readings) -> tuple[np.ndarray, np.ndarray]:
    """How fast a counter rises: means over windows, because some counters rise in coarse steps."""
    first, last = int(one.t_ns[0]), int(one.t_ns[-1])
    at = np.arange(first, last + 1, max(WINDOW_NS, (last - first) // MOST_POINTS))
    values = np.interp(at, one.t_ns, one.values)
    return (at[1:] + at[:-1]) // 2, np.diff(values) / (np.diff(at) * 1e-9)


def _conditions(run: Run) -> Iterator[Block]:
    rows = []
    for part in ("settings", "versions", "machine"):
        for name, value in (run.meta.get(part) or {}).items():
            rows.append([part, str(name), str(value)])
    yield table(["", "name", "value"], rows)
    notes = [note.text for note in run.notes()]
    if notes:
        yield listing(notes)
    absent = run.meta.get("sensors_absent") or {}
    if absent:
        yield text("Sensors that are not here, and why:")
        yield listing(f"{name}: {why}" for name, why in absent.items())
