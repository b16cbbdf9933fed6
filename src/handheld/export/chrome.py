"""Writes the trace event format of Chrome: JSON for chrome://tracing, Perfetto and other viewers.

A group of tracks is a process, a track is a thread. Times are microseconds with three decimals, so no nanosecond is
lost. Slices are complete events (`X`); viewers nest those of one thread by their times.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from handheld.analyse.run import Run
from handheld.export.tracks import Args, CounterTrack, Mark, Slice, SliceTrack, Tracks, tracks
from handheld.export.write import write_file


def write(run: Run, out: Path) -> list[Path]:
    """Write the trace into the file `out`."""
    all_tracks = tracks(run)

    def fill(file: BinaryIO) -> None:
        other: dict[str, object] = {"clock": "CLOCK_MONOTONIC", **all_tracks.facts}
        if all_tracks.begin_unix_ns is not None:
            other |= {"begin_ns": all_tracks.begin_ns, "begin_unix_ns": all_tracks.begin_unix_ns}
        head = {"displayTimeUnit": "ms", "otherData": other}
        file.write(f'{json.dumps(head)[:-1]}, "traceEvents": [\n'.encode())
        for i, event in enumerate(_events(all_tracks)):
            file.write((",\n" if i else "").encode() + json.dumps(event).encode())
        file.write(b"\n]}\n")

    return [write_file(out, fill)]


def _events(all_tracks: Tracks) -> Iterator[dict[str, object]]:
    """All events. The names of processes and threads are events too."""
    groups: dict[str, int] = {}
    every: tuple[SliceTrack | CounterTrack, ...] = (*all_tracks.slices, *all_tracks.counters)
    for group in [*dict.fromkeys(track.group for track in every), *(["notes"] if all_tracks.marks else [])]:
        groups[group] = len(groups) + 1
        at = {"ph": "M", "pid": groups[group], "tid": 0}
        yield {**at, "name": "process_name", "args": {"name": f"{group}: {all_tracks.title}"}}
        yield {**at, "name": "process_sort_index", "args": {"sort_index": groups[group]}}
    for tid, track in enumerate(all_tracks.slices, start=1):
        at = {"pid": groups[track.group], "tid": tid}
        yield {**at, "ph": "M", "name": "thread_name", "args": {"name": track.name}}
        for one in track.slices:
            yield from _slice(one, at)
    for counter in all_tracks.counters:
        yield from _counter(counter, groups[counter.group])
    for mark in all_tracks.marks:
        yield _mark(mark, groups["notes"])


def _slice(one: Slice, at: dict[str, object]) -> Iterator[dict[str, object]]:
    times = {"ts": one.begin_ns / 1000, "dur": (one.end_ns - one.begin_ns) / 1000}
    yield {"ph": "X", "name": one.name, "cat": one.category, **times, **at, "args": _plain(one.args)}
    for child in one.children:
        yield from _slice(child, at)


def _counter(track: CounterTrack, pid: int) -> Iterator[dict[str, object]]:
    for t_ns, value in zip(track.t_ns.tolist(), track.values.tolist(), strict=True):
        args = _plain({track.unit: value})
        yield {"ph": "C", "name": track.name, "pid": pid, "tid": 0, "ts": t_ns / 1000, "args": args}


def _mark(mark: Mark, pid: int) -> dict[str, object]:
    at = {"pid": pid, "tid": 0, "ts": mark.t_ns / 1000}
    return {"ph": "i", "s": "g", "name": mark.name, **at, "args": _plain(mark.args)}


def _plain(args: Args) -> dict[str, object]:
    """The values for JSON, which has no NaN and no infinity: these become text."""
    return {name: str(v) if isinstance(v, float) and not math.isfinite(v) else v for name, v in args.items()}
