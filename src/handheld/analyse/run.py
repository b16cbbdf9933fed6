"""A run, opened: its methods are tables of records.

run = handheld.open_run("mobilenet_v2.run")
for row in run.ops()[:10]:
    print(row.path, row.op, row.ms, row.share)
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from handheld.analyse import commands, stats, timeline
from handheld.analyse.energy import OpEnergy, RailEnergy, StepEnergy, op_energy, rail_energy, step_energy
from handheld.analyse.estimate import op_estimate, step_estimate
from handheld.analyse.finding import Finding
from handheld.analyse.findings import find
from handheld.analyse.memory import LiveMemory, MemorySummary, memory_summary, memory_table
from handheld.analyse.ops import KindTime, ModuleTime, OpTime, PhaseTime, by_kind, by_module, by_phase, op_table
from handheld.analyse.overhead import overhead
from handheld.analyse.rails import ChannelSamples, Series, channel_samples, series
from handheld.analyse.summary import GraphSummary, Summary
from handheld.analyse.use import Utilisation, utilisation
from handheld.store.reader import RunFile
from handheld.store.rows import GapRow, NoteRow, OpRow, SourceRow, StepRow

FEW = 3  # steps whose median counts


def open_run(path: str | Path) -> Run:
    """Opens a run file; RunFileError if it is not one, is damaged, or of a newer version."""
    return Run(RunFile(path))


class Run:
    """What was measured. Times are in ms where a name says so, else in s; energy in J."""

    def __init__(self, file: RunFile) -> None:
        self.file, self.path, self.meta = file, file.path, file.meta
        self._variances: dict[str, stats.Variance] = {}

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
    def op_rows(self) -> list[OpRow]:
        """The ops as the file has them, in their order; `ops()` has their times."""
        return self.file.table(OpRow, "ORDER BY id")

    @cached_property
    def _steps(self) -> list[StepRow]:
        return self.file.table(StepRow, "ORDER BY id")

    @property
    def complete(self) -> bool:
        """Whether the run came to its end."""
        return bool(self.meta.get("status") == "complete")

    # ── tables ────────────────────────────────────────────────────────────────────────────────

    def steps(self) -> list[StepRow]:
        """A row a step: when it began and ended on the host, and whether it was recorded."""
        return list(self._steps)

    def ops(self) -> list[OpTime]:
        """A row an op, the longest first: its time (median over recorded steps), share of all ops,
        spread, work and rates. Times are None for ops of graphs that were not recorded."""
        return op_table(self.op_rows, timeline.op_times(self.timed))

    def modules(self, depth: int | None = None) -> list[ModuleTime]:
        """Time by module path (the first `depth` names of it), forward, backward and update."""
        return by_module(self.ops(), depth)

    def phases(self, graph: str | None = None) -> list[PhaseTime]:
        """Time by phase: forward, backward, update; of one graph, or of all."""
        return by_phase([row for row in self.ops() if graph in (None, row.graph)])

    def kinds(self) -> list[KindTime]:
        """Time by kind of op."""
        return by_kind(self.ops())

    def parts(self, graph: str | None = None) -> timeline.StepParts | None:
        """Where the time of a step goes (analyse/timeline.py says what the parts are; the ops by
        phase), in ms: the means over recorded steps of a graph, which add up. None if no step was
        recorded whole."""
        periods = [p for p in self.periods if p.graph == (graph or self.graph)]
        return timeline.step_parts(periods, {row.id: row.phase for row in self.op_rows})

    def transfers(self) -> list[commands.Transfer]:
        """A row a kind and size of transfer: its time, and latency and bandwidth apart, with where
        those come from."""
        return commands.transfers(self.timed, self.meta.get("ceilings"))

    def launches(self) -> commands.LaunchCost | None:
        """What a launch costs: the host to enqueue it, an idle device to begin it, and a busy one
        between two. None if no step was recorded."""
        return commands.launches(self.timed)

    def host(self) -> commands.HostTime | None:
        """The host's time of a recorded step in ms: enqueueing, waiting for the device, the rest of
        the call, and outside of it."""
        return commands.host(self.timed)

    def memory(self, graph: str | None = None) -> list[LiveMemory]:
        """Bytes alive while each op runs, by category, in the order of ops; empty: not known."""
        return memory_table(self, graph or self.graph)

    def memory_summary(self) -> MemorySummary:
        """Planned peak, what was allocated, what the process grew by, and what explains it."""
        return memory_summary(self)

    @cached_property
    def graphs(self) -> list[str]:
        """The graphs that were run, the one that was run most first."""
        names = [step.graph for step in self._steps]
        return sorted(dict.fromkeys(names), key=lambda name: -names.count(name))

    @property
    def graph(self) -> str:
        """The graph that was run most."""
        return next(iter(self.graphs), next((row.graph for row in self.op_rows), ""))

    def samples(self) -> list[ChannelSamples]:
        """A row a sensor channel: how many readings, and their range over the steps."""
        return [channel_samples(one, *self.span()) for one in self.channels]

    def span(self) -> tuple[int, int]:
        """From the first step's beginning to the last one's end, in ns."""
        return (self._steps[0].begin_ns, self._steps[-1].end_ns) if self._steps else (0, 0)

    def warm(self) -> tuple[int, int]:
        """The span without what was found to be warm-up."""
        first = self.variance().warm_up
        steps = [s for s in self._steps if s.id >= first]
        return (steps[0].begin_ns, steps[-1].end_ns) if steps else self.span()

    def energy(self) -> list[RailEnergy]:
        """A row a rail over the warm steps: joules, watts, the idle watts before the run, joules a
        step, and how many ticks of the sensor that rests on; and, only if one was asked for, an
        estimate, marked as one. Empty: not measured."""
        begin, end = self.warm()
        steps = sum(s.begin_ns >= begin and s.graph == self.graph for s in self._steps)
        return rail_energy(self.file, self.channels, begin, end, steps) + step_estimate(self)

    def op_energy(self) -> list[OpEnergy]:
        """Energy of each op signature by each method, rail by rail, and estimates, marked, if they
        were asked for; empty: not measured."""
        return op_energy(self.file, self.channels) + op_estimate(self)

    def step_energy(self) -> list[StepEnergy]:
        """A row a rail: joules of a step, beside the sum over its ops by each method."""
        return step_energy(self.file, self.channels)

    def variance(self, graph: str | None = None) -> stats.Variance:
        """The distribution of a graph's step times in ms, where warm-up ended, and drift. A step
        counts as the mean of those around it, for 50 ms: stats.steady says why."""
        graph = graph or self.graph
        if graph not in self._variances:
            self._variances[graph] = stats.variance(self._steps, graph)
        return self._variances[graph]

    def step_ms(self, graph: str | None = None, few: int = FEW) -> tuple[float | None, str]:
        """A step of a graph as it is without being recorded, and "steps"; if fewer than `few` were
        not recorded, the mean of those that were, and "recorded steps"."""
        times, parts = self.variance(graph).times, self.parts(graph)
        if times is not None and (times.n >= few or parts is None):
            return times.median, "steps"
        return (parts.ms, "recorded steps") if parts else (None, "")

    def utilisation(self) -> Utilisation:
        """Shares of the time: the device's busy share in recorded steps, each core's and for how
        much of the time it did nothing at all, the cores that other processes kept busy, what the
        hardware itself counts, and the bandwidth that ops needed at least."""
        return utilisation(self)

    def findings(self) -> list[Finding]:
        """What is worth knowing, each with its evidence and the steps and ops it touches."""
        return find(self)

    def notes(self) -> list[NoteRow]:
        """What happened besides: sensors that went, times that could not be had."""
        names = {source.id: source.name for source in self.file.table(SourceRow)}
        return [
            *self.file.table(NoteRow, "ORDER BY t_ns"),
            *(
                NoteRow(gap.from_ns, "gap", f"{names[gap.source]}: {gap.reason}")
                for gap in self.file.table(GapRow, "ORDER BY from_ns")
                if gap.source in names
            ),
            *(
                NoteRow(
                    when,
                    "clock",
                    f"the device's clock was set by {moved * 1e-9:+.6f} s: steps around that have no op times",
                )
                for when, moved in self.clock.stepped
            ),
        ]

    def summary(self) -> Summary:
        """The run in a few numbers."""
        return Summary(
            path=str(self.path),
            status=self.meta.get("status", "unknown"),
            device=self.meta.get("device"),
            name=(self.meta.get("caps") or {}).get("name"),
            precision=(self.meta.get("plan_options") or {}).get("precision"),
            graph=self.graph,
            batch=next((s.batch for s in self._steps), None),
            steps=len(self._steps),
            recorded=len(self.timed),
            step_ms=self.step_ms()[0],
            variance=self.variance(),
            parts=self.parts(),
            phases=self.phases(),
            utilisation=self.utilisation(),
            launches=self.launches(),
            transfers=self.transfers(),
            host=self.host(),
            graphs={
                name: GraphSummary(
                    steps=sum(s.graph == name for s in self._steps),
                    variance=self.variance(name),
                    parts=self.parts(name),
                )
                for name in self.graphs
            },
            memory=self.memory_summary(),
            energy=self.energy(),
            clock_error_us=self.clock.error_ns * 1e-3,
            clock_drift_ppm=self.clock.drift_ppm,
            overhead=overhead(self),
            sensors_absent=self.meta.get("sensors_absent", {}),
        )

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
