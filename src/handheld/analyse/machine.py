"""Rules for findings about the machine: load, clocks and heat. Thresholds are at the top."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from handheld.analyse.finding import OP_SHARE, Finding, finding, seconds_of, slower, stretches, touched
from handheld.analyse.rails import Series
from handheld.analyse.use import BIN_NS, bins

if TYPE_CHECKING:
    from handheld.analyse.run import Run

BIN_S = BIN_NS * 1e-9  # Loads are averaged over bins of this length.
SMOOTH = 3  # Loads are smoothed over this many bins: on a busy machine a thread runs at irregular times.
CORES, CORES_S = 0.5, 0.5  # A finding needs this many more busy cores than usual, for this time in s.
THREADS = 0.25  # The same for newly started threads, which do not exist in other steps.
AT_WORK = 0.3  # The clock of a core counts only while the core is busy for this share of the time.
CLOCK_SHARE, CLOCK_S = 0.85, 0.3  # A clock has fallen if it is below this share of its usual value, for this time in s.
WARMER_C = 5.0  # A finding needs this rise in temperature since the start.


def _rate(counter: Series, at: np.ndarray) -> np.ndarray:
    """The rise of a counter per second, in each bin."""
    rate: np.ndarray = np.diff(np.interp(at, counter.t_ns, counter.values)) / (np.diff(at) * 1e-9)
    return rate


def _bins(run: Run) -> np.ndarray:
    begin, end = run.warm()
    return bins(begin, end)


def _busy(run: Run, source: str, at: np.ndarray) -> np.ndarray | None:
    """The number of busy cores in each bin, from the time counters of a source."""
    rates = [_rate(s, at) for s in run.channels if s.source == source and s.quantity == "time" and s.counter]
    return np.sum(rates, axis=0) if rates else None


def loads(run: Run) -> list[Finding]:
    """Cores that were busy with other work than the usual steps."""
    at = _bins(run)
    if len(at) < 3:
        return []
    own, cores, threads = (_busy(run, name, at) for name in ("process", "cpu", "process-threads"))
    rows = []
    if threads is not None:
        rows += _more(
            run,
            at,
            threads,
            "own load",
            "threads that this process started kept {:.1f} cores busy in addition to its steps",
            THREADS,
        )
    if own is not None and not rows:
        # Steps that are faster than others use more cores without any additional work.
        rows += [
            item
            for item in _more(
                run, at, own, "own load", "this process kept {:.1f} more cores busy than in its other steps"
            )
            if not _faster(run, item.steps)
        ]
    if own is not None and cores is not None:
        rows += _more(
            run, at, cores - own, "other load", "other processes kept {:.1f} more cores busy than at other times"
        )
    return rows


def _more(run: Run, at: np.ndarray, load: np.ndarray, kind: str, text: str, cores: float = CORES) -> list[Finding]:
    usual = float(np.percentile(load, 25))
    smooth = np.convolve(np.pad(load, SMOOTH // 2, "edge"), np.full(SMOOTH, 1 / SMOOTH), "valid")
    where = stretches(at, smooth > usual + cores, CORES_S)
    if not where:
        return []
    inside = np.any([(at[:-1] >= a) & (at[:-1] < b) for a, b in where], axis=0)
    extra = float(load[inside].mean()) - usual
    seconds, steps = seconds_of(where), touched(run, where)
    return [
        finding(
            kind,
            f"{text.format(extra)}, for {seconds:.1f} s",
            steps,
            slower(run, steps),
            cores=extra,
            seconds=seconds,
            intervals=where,
        )
    ]


def _faster(run: Run, steps: list[int]) -> bool:
    """Whether these steps took clearly less time than the others."""
    inside = set(steps)
    times: dict[bool, list[int]] = {True: [], False: []}
    for before, step in itertools.pairwise(run.steps()):
        times[step.id in inside].append(step.end_ns - before.end_ns)
    return all(times.values()) and bool(np.median(times[True]) < (1 - OP_SHARE) * np.median(times[False]))


def clocks(run: Run) -> list[Finding]:
    """Clocks that fell while steps ran. The clock of a core counts only while the core was busy."""
    rows = []
    begin, end = run.warm()
    for source, group in itertools.groupby((s for s in run.channels if s.quantity == "frequency"), lambda s: s.source):
        fallen = {}
        for clock in group:
            inside = (clock.t_ns >= begin) & (clock.t_ns <= end)
            at, values = np.append(clock.t_ns[inside], end), clock.values[inside]
            low = _low(run, clock, at, values) if len(values) > 2 else np.zeros(0, bool)
            where = stretches(at, low, CLOCK_S) if low.any() else []
            if where:
                usual = float(np.percentile(values, 90))
                fallen[clock.name] = (where, usual, float(values[low].mean()))
        if not fallen:
            continue
        name, (_, usual, least) = min(fallen.items(), key=lambda item: item[1][2] / item[1][1])
        where = sorted(interval for intervals, _, _ in fallen.values() for interval in intervals)
        steps = touched(run, where)
        longest = max(seconds_of(intervals) for intervals, _, _ in fallen.values())
        others = f" and {len(fallen) - 1} more" if len(fallen) > 1 else ""
        rows.append(
            finding(
                "clock",
                f"{source}/{name}{others} fell to {least / 1e6:.0f} of {usual / 1e6:.0f} MHz for {longest:.1f} s",
                steps,
                slower(run, steps),
                clocks=list(fallen),
                from_hz=usual,
                to_hz=least,
                seconds=longest,
                intervals=where,
            )
        )
    return rows


def _low(run: Run, clock: Series, at: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Which values of a clock are low while there is work."""
    low: np.ndarray = values < CLOCK_SHARE * np.percentile(values, 90)
    core = clock.name.partition(" ")[0]
    work = [s for s in run.channels if s.source == "cpu" and s.name.partition(" ")[0] == core]
    if clock.source == "cpu-clock" and work:
        low &= _rate(work[0], at) >= AT_WORK
    return low


def heat(run: Run) -> list[Finding]:
    rows = []
    begin, end = run.warm()
    for channel in run.channels:
        values = channel.within(begin, end) if channel.quantity == "temperature" else np.zeros(0)
        if len(values) > 4 and values[-1] - values[0] > WARMER_C:
            hot = channel.t_ns[(channel.t_ns >= begin) & (channel.values > values[0] + WARMER_C)]
            rows.append(
                finding(
                    "heat",
                    f"{channel.rail} rose from {values[0]:.0f} to {values[-1]:.0f} °C",
                    touched(run, [(int(hot[0]), end)]),
                    from_c=float(values[0]),
                    to_c=float(values[-1]),
                )
            )
    return rows
