"""An opened run file. The methods of Run return tables of records.

run = handheld.open_run("mobilenet_v2.run")
for row in run.ops()[:10]:
    print(row.path, row.op, row.ms, row.share)
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from handheld.analyse import commands, stats, timeline
from handheld.analyse.bound import Bound, bound
from handheld.analyse.busy import Others, others
from handheld.analyse.energy import OpEnergy, RailEnergy, StepEnergy, op_energy, rail_energy, step_energy
from handheld.analyse.estimate import op_estimate, step_estimate
from handheld.analyse.finding import Finding
from handheld.analyse.findings import find
from handheld.analyse.joules import OpJoules, StepJoules, joules, no_joules, step_joules
from handheld.analyse.layers import Layer, layers
from handheld.analyse.memory import LiveMemory, MemorySummary, memory_summary, memory_table
from handheld.analyse.ops import KindTime, ModuleTime, OpTime, PhaseTime, by_kind, by_module, by_phase, op_table
from handheld.analyse.overhead import overhead
from handheld.analyse.rails import ChannelSamples, Series, channel_samples, series
from handheld.analyse.summary import GraphSummary, Summary
from handheld.analyse.tuning import Untuned, untuned
from handheld.analyse.use import Utilisation, utilisation
from handheld.store.reader import RunFile
from handheld.store.rows import GapRow, NoteRow, OpRow, SourceRow, StepRow, TrainingEpochRow, TrainingStepRow

FEW = 3  # A median needs at least this many steps.
#: The host runs two steps ahead of the device, so two steps seem to take no time. The median of five is right.
ENOUGH = 5


def open_run(path: str | Path) -> Run:
    """Open a run file. Raises RunFileError if it is not a run file, is damaged, or has a newer version."""
    return Run(RunFile(path))


class Run:
    """All measurements of a run. Units are part of the names; energy is in J."""

    def __init__(self, file: RunFile) -> None:
        self.file, self.path, self.meta = file, file.path, file.meta
        self._variances: dict[str, stats.Variance] = {}

    # ── data that the tables are computed from ────────────────────────────────────────────────

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
        """The ops as stored in the file, in their order. `ops()` adds their times."""
        return self.file.table(OpRow, "ORDER BY id")

    @cached_property
    def _steps(self) -> list[StepRow]:
        return self.file.steps()

    @property
    def complete(self) -> bool:
        """Whether the run ended normally."""
        return bool(self.meta.get("status") == "complete")

    @property
    def on_option(self) -> str:
        """The option that a command in a message needs to be about the same machine; empty if it was this one."""
        target = self.meta.get("target")
        return f" --on {target}" if target else ""

    # ── tables ────────────────────────────────────────────────────────────────────────────────

    def steps(self) -> list[StepRow]:
        """One row per step: when it began and ended on the host, and whether it was recorded."""
        return list(self._steps)

    def ops(self) -> list[OpTime]:
        """One row per op, the longest first: its time (median over recorded steps), share of all ops, spread, work and
        rates. Times are None for ops of graphs that were not recorded."""
        return op_table(self.op_rows, timeline.op_times(self.timed), timeline.op_means(self.periods))

    def modules(self, depth: int | None = None) -> list[ModuleTime]:
        """Time per module path (its first `depth` names), and in forward, backward and update."""
        return by_module(self.ops(), depth)

    def phases(self, graph: str | None = None) -> list[PhaseTime]:
        """Time per phase (forward, backward, update), of one graph or of all graphs."""
        return by_phase([row for row in self.ops() if graph in (None, row.graph)])

    def kinds(self) -> list[KindTime]:
        """Time per kind of op."""
        return by_kind(self.ops())

    def parts(self, graph: str | None = None) -> timeline.StepParts | None:
        """Where the time of a step goes, in ms: means over the recorded steps of a graph. The parts add up to the step;
        analyse/timeline.py defines them. None if no step was recorded completely."""
        periods = [p for p in self.periods if p.graph == (graph or self.graph)]
        return timeline.step_parts(periods, {row.id: row.phase for row in self.op_rows})

    def bound(self, graph: str | None = None) -> Bound:
        """What limits a step (compute, memory, launches, host, data, transfers), the share of the step for each limit,
        and the share of the ceiling that is reached. analyse/bound.py defines the limits."""
        return bound(self, graph)

    def layers(self, graph: str | None = None, most: int = 10) -> list[Layer]:
        """Time, bytes and work per layer, the longest first. Layers that take long are opened, up to about `most` rows;
        every timed op belongs to one row."""
        return layers(self, graph, most)

    def untuned(self, graph: str | None = None) -> Untuned | None:
        """The ops that have variants and no tuning record, and what tuning would probably gain. None if not known."""
        return untuned(self, graph)

    def transfers(self) -> list[commands.Transfer]:
        """One row per kind and size of transfer: its time, its latency and bandwidth, and the origin of these two."""
        return commands.transfers(self.timed, self.meta.get("ceilings"))

    def launches(self) -> commands.LaunchCost | None:
        """The cost of a launch: the host's time to enqueue it, the time of an idle device to start it, and the gap
        between two launches on a busy device. None if no step was recorded."""
        return commands.launches(self.timed)

    def host(self) -> commands.HostTime | None:
        """The host's time per recorded step in ms: enqueueing, waiting for the device, the rest of the call, and time
        outside the call."""
        return commands.host(self.timed)

    def memory(self, graph: str | None = None) -> list[LiveMemory]:
        """Bytes alive while each op runs, per category, in the order of ops. Empty if not known."""
        return memory_table(self, graph or self.graph)

    def memory_summary(self) -> MemorySummary:
        """The planned peak, the allocated memory, the growth of the process, and the parts of this growth."""
        return memory_summary(self)

    @cached_property
    def graphs(self) -> list[str]:
        """The graphs that were run, the most frequent first."""
        names = [step.graph for step in self._steps]
        return sorted(dict.fromkeys(names), key=lambda name: -names.count(name))

    @cached_property
    def training_graphs(self) -> list[str]:
        """The graphs that were run and have a backward pass or an update, the most frequent first: one, or several that
        take turns. The others only evaluate. If there is no such graph, all that were run."""
        if len(self.graphs) < 2:
            return self.graphs
        trained = {row.graph for row in self.op_rows if row.phase != "forward"}
        return [name for name in self.graphs if name in trained] or self.graphs

    @property
    def graph(self) -> str:
        """The graph that trains; of several, the one that was run most often."""
        return next(iter(self.training_graphs), next((row.graph for row in self.op_rows), ""))

    def samples(self) -> list[ChannelSamples]:
        """One row per sensor channel: the number of readings during the steps, and their range."""
        return [channel_samples(channel, *self.span()) for channel in self.channels]

    def span(self) -> tuple[int, int]:
        """From the beginning of the first step to the end of the last step, in ns."""
        return (self._steps[0].begin_ns, self._steps[-1].end_ns) if self._steps else (0, 0)

    def warm(self) -> tuple[int, int]:
        """The span without warm-up."""
        first = self.variance().warm_up
        steps = [s for s in self._steps if s.id >= first]
        return (steps[0].begin_ns, steps[-1].end_ns) if steps else self.span()

    def energy(self) -> list[RailEnergy]:
        """One row per rail over the steps after warm-up: joules, watts, idle watts before the run, joules per step, and
        how often the sensor's value changed. An estimate is added, and marked, only if one was requested. Empty if
        nothing was measured."""
        begin, end = self.warm()
        graph = self.graph
        steps = sum(s.begin_ns >= begin and s.graph == graph for s in self._steps)
        return rail_energy(self.file, self.channels, begin, end, steps) + step_estimate(self)

    def op_energy(self) -> list[OpEnergy]:
        """The energy of each op signature, by each method and on each rail. Estimates are added, and marked, only if
        they were requested. Empty if nothing was measured."""
        return self._op_energy() + op_estimate(self)

    def _op_energy(self) -> list[OpEnergy]:
        return op_energy(self.file, self.channels, {row.id: row.ms for row in self.ops() if row.ms is not None})

    def joules(self) -> list[OpJoules]:
        """The joules of one run of each op on each rail, with an interval and their source: the device's energy model,
        or a measured window. Empty if there are none; `no_joules` says why."""
        return list(self._joules)

    @cached_property
    def _joules(self) -> list[OpJoules]:
        return joules(self)

    def no_joules(self) -> str:
        """Why `joules` is empty, or "" if it is not."""
        return no_joules(self)

    def step_joules(self) -> list[StepJoules]:
        """One row per rail: the sum of the joules of a step's ops and gaps, beside the joules by the rail's sensor, and
        the factor by which the model's ops were scaled to it."""
        return list(self._step_joules)

    @cached_property
    def _step_joules(self) -> list[StepJoules]:
        return step_joules(self)

    def step_energy(self) -> list[StepEnergy]:
        """One row per rail: the joules of a step, and the sums over its ops by each method."""
        return step_energy(self.file, self.channels, self._op_energy())

    def variance(self, graph: str | None = None) -> stats.Variance:
        """The distribution of a graph's step times in ms, the end of warm-up, and drift. Each step counts as the
        mean of the steps around it, over 50 ms; stats.steady says why."""
        graph = graph or self.graph
        if graph not in self._variances:
            self._variances[graph] = stats.variance(self._steps, graph)
        return self._variances[graph]

    def step_ms(self, graph: str | None = None, few: int = ENOUGH) -> tuple[float | None, str]:
        """The median time of a graph's steps that were not recorded, and "steps". If there are fewer than `few` of
        them, the mean of the recorded steps, and "recorded steps"."""
        times, parts = self.variance(graph).times, self.parts(graph)
        if times is not None and (times.n >= few or parts is None):
            return times.median, "steps"
        return (parts.ms, "recorded steps") if parts else (None, "")

    def utilisation(self) -> Utilisation:
        """How busy the machine was: the device's busy share in recorded steps, the busy share of each core and the
        share in which it did nothing at all, the cores used by other processes, the hardware's own counters, and
        the least bandwidth that the ops needed."""
        return utilisation(self)

    def others(self) -> Others | None:
        """The cores that other processes held during the run, and whether that disturbed it. None if not known."""
        return others(self)

    def findings(self) -> list[Finding]:
        """Named causes of slow steps, each with its evidence and the steps and ops it affects."""
        return find(self)

    def training_steps(self) -> list[TrainingStepRow]:
        """One row per step of a training: its loss and rate. Empty if the run is no training."""
        return self.file.newer_table(TrainingStepRow, "ORDER BY step")

    def epochs(self) -> list[TrainingEpochRow]:
        """One row per epoch of a training: loss, rate, time and the metrics of its evaluation."""
        return self.file.newer_table(TrainingEpochRow, "ORDER BY number")

    def notes(self) -> list[NoteRow]:
        """Other events of the run: lost sensors, gaps in the readings, missing op times."""
        names = {source.id: source.name for source in self.file.table(SourceRow)}
        return [
            *self.file.table(NoteRow, "ORDER BY t_ns"),
            *(NoteRow(self.span()[1], "energy model", row.misfit) for row in self.step_joules() if row.misfit),
            *(
                NoteRow(gap.from_ns, "gap", f"{names[gap.source]}: {gap.reason}")
                for gap in self.file.table(GapRow, "ORDER BY from_ns")
                if gap.source in names
            ),
            *(
                NoteRow(
                    when,
                    "clock",
                    f"the device's clock was changed by {moved * 1e-9:+.6f} s: steps at that time have no op times",
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
            others=self.others(),
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
            sensors_absent=self.meta.get("sensors_absent") or {},
        )

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
