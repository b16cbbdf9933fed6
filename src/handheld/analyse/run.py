"""A run, opened: its methods are tables of plain rows.

run = handheld.open_run("mobilenet_v2.run")
for row in run.ops()[:10]:
    print(row["path"], row["op"], row["ms"], row["share"])
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from handheld.analyse import commands, stats, timeline
from handheld.analyse.energy import idle_watts, op_energy, step_energy
from handheld.analyse.estimate import op_estimate, step_estimate
from handheld.analyse.memory import memory_summary
from handheld.analyse.overhead import overhead
from handheld.analyse.rails import Series, rails, series
from handheld.graph.graph import PHASES
from handheld.store.reader import RunFile

Row = dict[str, Any]

BIN_NS, NOTHING_S = 100_000_000, 1e-3  # a core that worked for less in such a time was idle
OTHERS_NS = 500_000_000  # over which other processes can be told apart
FEW = 3  # steps whose median counts


def open_run(path: str | Path) -> Run:
    """Opens a run file; RunFileError if it is not one, is damaged, or of a newer version."""
    return Run(RunFile(path))


class Run:
    """What was measured. Times are in ms where a name says so, else in s; energy in J."""

    def __init__(self, file: RunFile) -> None:
        self.file, self.path, self.meta = file, file.path, file.meta
        self._variances: dict[str, Row] = {}

    # ── what everything rests on ──────────────────────────────────────────────────────────────

    @cached_property
    def timed(self) -> list[timeline.Timed]:
        return timeline.timed_steps(self.file)

    @cached_property
    def periods(self) -> list[timeline.Period]:
        return timeline.periods(self.timed)

    @cached_property
    def channels(self) -> list[Series]:
        return series(self.file)

    @cached_property
    def clock(self) -> timeline.Clock:
        return timeline.Clock.of(self.file)

    @cached_property
    def _op_rows(self) -> list[Row]:
        return self.file.table("SELECT * FROM op ORDER BY id")

    @cached_property
    def _steps(self) -> list[Row]:
        return self.file.table("SELECT * FROM step ORDER BY id")

    @property
    def complete(self) -> bool:
        """Whether the run came to its end."""
        return bool(self.meta.get("status") == "complete")

    # ── tables ────────────────────────────────────────────────────────────────────────────────

    def steps(self) -> list[Row]:
        """A row a step: when it began and ended on the host, and whether it was recorded."""
        return [{**row, "recorded": row["window"] is not None} for row in self._steps]

    def ops(self) -> list[Row]:
        """A row an op, the longest first: its time (median over recorded steps), share of all ops,
        spread, work and rates. Times are None for ops of graphs that were not recorded."""
        times = timeline.op_times(self.timed)
        total = sum(float(np.median(t)) for t in times.values()) or 1.0
        rows = []
        for row in self._op_rows:
            mine = times.get(row["id"])
            one = {
                k: row[k]
                for k in (
                    "id",
                    "graph",
                    "position",
                    "op",
                    "source",
                    "phase",
                    "path",
                    "signature",
                    "variant",
                    "launches",
                    "flops",
                    "bytes",
                )
            }
            if mine is None:
                one.update(ms=None, share=None)
            else:
                spread = stats.distribution(mine * 1e-6)
                seconds = spread["median"] * 1e-3
                one.update(
                    ms=spread["median"],
                    share=float(np.median(mine)) / total,
                    p5_ms=spread["p5"],
                    p95_ms=spread["p95"],
                    cv=spread["cv"],
                    recorded=spread["n"],
                    gflops=row["flops"] / seconds * 1e-9 if seconds else None,
                    gbytes_s=row["bytes"] / seconds * 1e-9 if seconds else None,
                )
            rows.append(one)
        return sorted(rows, key=lambda r: -(r["ms"] or 0.0))

    def modules(self, depth: int | None = None) -> list[Row]:
        """Time by module path (the first `depth` names of it), forward, backward and update."""

        def key(row: Row) -> str:
            parts = row["path"].split(".") if row["path"] else ["(model)"]
            return ".".join(parts[:depth])

        return self._grouped(key, "path", True)

    def phases(self, graph: str | None = None) -> list[Row]:
        """Time by phase: forward, backward, update; of one graph, or of all."""
        return self._grouped(lambda row: row["phase"], "phase", False, graph)

    def kinds(self) -> list[Row]:
        """Time by kind of op."""
        return self._grouped(lambda row: row["op"], "op", False)

    def _grouped(self, key: Callable[[Row], str], name: str, by_phase: bool, graph: str | None = None) -> list[Row]:
        groups: dict[str, Row] = {}
        for row in self.ops():
            if row["ms"] is None or graph not in (None, row["graph"]):
                continue
            one = groups.setdefault(
                key(row), {name: key(row), "ms": 0.0, "share": 0.0, "ops": 0, "launches": 0, "flops": 0, "bytes": 0}
            )
            for field in ("ms", "share", "launches", "flops", "bytes"):
                one[field] += row[field]
            one["ops"] += 1
            if by_phase:
                phase = f"{row['phase']}_ms"
                one[phase] = one.get(phase, 0.0) + row["ms"]
        return sorted(groups.values(), key=lambda r: -r["ms"])

    def parts(self, graph: str | None = None) -> Row | None:
        """Where the time of a step goes (analyse/timeline.py says what the parts are; the ops by
        phase), in ms: the means over recorded steps of a graph, which add up. None if no step was
        recorded whole."""
        periods = [p for p in self.periods if p.graph == (graph or self.graph)]
        if not periods:
            return None
        count = len(periods)
        phase = {row["id"]: row["phase"] for row in self._op_rows}
        found = dict.fromkeys(PHASES, 0.0)
        for period in periods:
            for op, ns in period.ops.items():
                found[phase[op]] += ns * 1e-6 / count
        found.update(
            {part: float(np.mean([p.parts[part] for p in periods])) * 1e-6 for part in timeline.PARTS if part != "ops"}
        )
        return {"ms": sum(found.values()), **found, "steps": count}

    def transfers(self) -> list[Row]:
        """A row a kind and size of transfer: its time, and latency and bandwidth apart, with where
        those come from."""
        return commands.transfers(self.timed, self.meta.get("ceilings"))

    def launches(self) -> Row | None:
        """What a launch costs: the host to enqueue it, an idle device to begin it, and a busy one
        between two. None if no step was recorded."""
        return commands.launches(self.timed)

    def host(self) -> Row | None:
        """The host's time of a recorded step in ms: enqueueing, waiting for the device, the rest of
        the call, and outside of it."""
        return commands.host(self.timed)

    def memory(self, graph: str | None = None) -> list[Row]:
        """Bytes alive while each op runs, by category, in the order of ops; empty: not known."""
        graph = graph or self.graph
        return [
            {
                "id": row["id"],
                "op": row["op"],
                "path": row["path"],
                "phase": row["phase"],
                "bytes": sum(alive.values()),
                **alive,
            }
            for row in self._op_rows
            if row["graph"] == graph
            for alive in [json.loads(row["live"])]
            if alive
        ]

    def memory_summary(self) -> Row:
        """Planned peak, what was allocated, what the process grew by, and what explains it."""
        return memory_summary(self)

    @cached_property
    def graphs(self) -> list[str]:
        """The graphs that were run, the one that was run most first."""
        names = [row["graph"] for row in self._steps]
        return sorted(dict.fromkeys(names), key=lambda name: -names.count(name))

    @property
    def graph(self) -> str:
        """The graph that was run most."""
        return next(iter(self.graphs), next((row["graph"] for row in self._op_rows), ""))

    def samples(self) -> list[Row]:
        """A row a sensor channel: how many readings, and their range over the steps."""
        begin, end = self.span()
        rows = []
        for one in self.channels:
            values = one.within(begin, end)
            rows.append(
                {
                    "source": one.source,
                    "channel": one.name,
                    "quantity": one.quantity,
                    "unit": one.unit,
                    "counter": one.counter,
                    "covers": one.covers,
                    "n": len(values),
                    "mean": float(values.mean()) if len(values) else None,
                    "min": float(values.min()) if len(values) else None,
                    "max": float(values.max()) if len(values) else None,
                }
            )
        return rows

    def span(self) -> tuple[int, int]:
        """From the first step's beginning to the last one's end, in ns."""
        if not self._steps:
            return 0, 0
        return self._steps[0]["begin_ns"], self._steps[-1]["end_ns"]

    def warm(self) -> tuple[int, int]:
        """The span without what was found to be warm-up."""
        first = self.variance()["warm_up"]
        steps = [s for s in self._steps if s["id"] >= first]
        return (steps[0]["begin_ns"], steps[-1]["end_ns"]) if steps else self.span()

    def energy(self) -> list[Row]:
        """A row a rail over the warm steps: joules, watts, the idle watts before the run, joules a
        step, and how many ticks of the sensor that rests on; and, only if one was asked for, an
        estimate, marked as one. Empty: not measured."""
        begin, end = self.warm()
        steps = sum(s["begin_ns"] >= begin and s["graph"] == self.graph for s in self._steps)
        rows = []
        for one in rails(self.channels):
            joules = one.joules(begin, end)
            if joules is None:
                continue
            seconds = (end - begin) * 1e-9
            rows.append(
                {
                    "rail": one.rail,
                    "covers": one.covers,
                    "part_of": one.part_of,
                    "joules": joules,
                    "watts": joules / seconds if seconds else None,
                    "idle_watts": idle_watts(self.file, one),
                    "joules_step": joules / steps if steps else None,
                    "ticks": one.ticks(begin, end),
                    "seconds": seconds,
                    "estimate": False,
                }
            )
        return rows + step_estimate(self)

    def op_energy(self) -> list[Row]:
        """Energy of each op signature by each method, rail by rail, and estimates, marked, if they
        were asked for; empty: not measured."""
        return op_energy(self.file, self.channels) + op_estimate(self)

    def step_energy(self) -> list[Row]:
        """A row a rail: joules of a step, beside the sum over its ops by each method."""
        return step_energy(self.file, self.channels)

    def variance(self, graph: str | None = None) -> Row:
        """The distribution of a graph's step times in ms, where warm-up ended, and drift. A step
        counts as the mean of those around it, for 50 ms: stats.steady says why."""
        graph = graph or self.graph
        if graph not in self._variances:
            self._variances[graph] = self._variance(graph)
        return self._variances[graph]

    def _variance(self, graph: str) -> Row:
        ids, times, stretches = stats.step_times(self._steps, graph)
        if not len(times):
            return {"warm_up": 0, "n": 0}
        warm = stats.warm_up_end(times)
        late = times[warm:]
        steady = stats.steady(late, stretches[warm:])
        # windows open once the schedule's own warm-up is over; their steps are not among the times
        first = (
            int(ids[warm - 1]) + 1
            if warm
            else min([int(ids[0]), *(s["id"] for s in self._steps if s["window"] is not None)])
        )
        return {
            "warm_up": first,
            **stats.distribution(steady * 1e-6),
            "drift": stats.drift(steady),
            "slow_steps": ids[warm:][stats.slow(late, steady)].tolist(),
        }

    def step_ms(self, graph: str | None = None, few: int = FEW) -> tuple[float | None, str]:
        """A step of a graph as it is without being recorded, and "steps"; if fewer than `few` were
        not recorded, the mean of those that were, and "recorded steps"."""
        spread, parts = self.variance(graph), self.parts(graph)
        if spread["n"] >= few or (spread["n"] and parts is None):
            return spread["median"], "steps"
        return (parts["ms"], "recorded steps") if parts else (None, "")

    def utilisation(self) -> Row:
        """Shares of the time: the device's busy share in recorded steps, each core's and for how
        much of the time it did nothing at all, the cores that other processes kept busy, what the
        hardware itself counts, and the bandwidth that ops needed at least."""
        found: Row = {}
        if self.periods:
            length = sum(p.length for p in self.periods)
            busy = sum(p.parts["ops"] + p.parts["copy"] for p in self.periods)
            found["device_busy"] = busy / length
            found["device_idle"] = 1 - busy / length
            sizes = {row["id"]: (row["bytes"], row["flops"]) for row in self._op_rows}
            moved = sum(sizes[op][0] for p in self.periods for op in p.ops)
            found["gbytes_s"] = moved / (length * 1e-9) * 1e-9
            found["gflops"] = sum(sizes[op][1] for p in self.periods for op in p.ops) / (length * 1e-9) * 1e-9
            ceilings = self.meta.get("ceilings")
            if ceilings:
                found["bandwidth_share"] = found["gbytes_s"] * 1e9 / ceilings["bytes_s"]
                found["flops_share"] = found["gflops"] * 1e9 / ceilings["flops"]
        begin, end = self.warm()
        cores, idle = {}, {}
        bins = np.arange(begin, end, BIN_NS)
        for one in self.channels:
            if one.quantity == "time" and one.counter and one.source == "cpu" and end > begin:
                low, high = np.interp((begin, end), one.t_ns, one.values)
                cores[one.name] = float((high - low) / ((end - begin) * 1e-9))
                if len(bins) > 1:
                    rises = np.diff(np.interp(bins, one.t_ns, one.values))
                    idle[one.name] = float((rises < NOTHING_S).mean())
            elif one.quantity == "utilisation" and len(one.within(begin, end)):
                found[one.rail] = float(one.within(begin, end).mean()) / 100
        if cores:
            found.update(cores=cores, cores_idle=idle)
            own = next((s for s in self.channels if (s.source, s.name) == ("process", "cpu time")), None)
            if own is not None and end - begin >= OTHERS_NS:
                low, high = np.interp((begin, end), own.t_ns, own.values)
                found["others_cores"] = max(sum(cores.values()) - float(high - low) / ((end - begin) * 1e-9), 0.0)
        return found

    def findings(self) -> list[Row]:
        """What is worth knowing, each with its evidence and the steps and ops it touches."""
        from handheld.analyse.findings import find

        return find(self)

    def notes(self) -> list[Row]:
        """What happened besides: sensors that went, times that could not be had."""
        gaps = self.file.table(
            "SELECT source.name AS source, from_ns, to_ns, reason FROM gap "
            "JOIN source ON source.id = gap.source ORDER BY from_ns"
        )
        return (
            self.file.table("SELECT t_ns, kind, text FROM note ORDER BY t_ns")
            + [{"t_ns": gap["from_ns"], "kind": "gap", "text": f"{gap['source']}: {gap['reason']}"} for gap in gaps]
            + [
                {
                    "t_ns": when,
                    "kind": "clock",
                    "text": f"the device's clock was set by {moved * 1e-9:+.6f} s: steps around that have no op times",
                }
                for when, moved in self.clock.stepped
            ]
        )

    def summary(self) -> Row:
        """The run in a few numbers."""
        return {
            "path": str(self.path),
            "status": self.meta.get("status", "unknown"),
            "device": self.meta.get("device"),
            "name": (self.meta.get("caps") or {}).get("name"),
            "precision": (self.meta.get("plan_options") or {}).get("precision"),
            "graph": self.graph,
            "batch": next((s["batch"] for s in self._steps), None),
            "steps": len(self._steps),
            "recorded": len(self.timed),
            "step_ms": self.step_ms()[0],
            "variance": self.variance(),
            "parts": self.parts(),
            "phases": self.phases(),
            "utilisation": self.utilisation(),
            "launches": self.launches(),
            "transfers": self.transfers(),
            "host": self.host(),
            "graphs": {
                name: {
                    "steps": sum(s["graph"] == name for s in self._steps),
                    "variance": self.variance(name),
                    "parts": self.parts(name),
                }
                for name in self.graphs
            },
            "memory": self.memory_summary(),
            "energy": self.energy(),
            "clock_error_us": self.clock.error_ns * 1e-3,
            "clock_drift_ppm": self.clock.drift_ppm,
            "overhead": overhead(self),
            "sensors_absent": self.meta.get("sensors_absent", {}),
        }

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
