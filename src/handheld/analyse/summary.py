"""A run in a few numbers: what `handheld show --json` prints."""

from __future__ import annotations

from dataclasses import dataclass

from handheld.analyse.busy import Others
from handheld.analyse.commands import HostTime, LaunchCost, Transfer
from handheld.analyse.energy import RailEnergy
from handheld.analyse.memory import MemorySummary
from handheld.analyse.ops import PhaseTime
from handheld.analyse.overhead import Overhead
from handheld.analyse.stats import Variance
from handheld.analyse.timeline import StepParts
from handheld.analyse.use import Utilisation
from handheld.store.record import Record


@dataclass(frozen=True, slots=True)
class GraphSummary(Record):
    """The numbers of one graph."""

    steps: int
    variance: Variance
    parts: StepParts | None


@dataclass(frozen=True, slots=True)
class Summary(Record):
    """The run in a few numbers. Each is a table of Run or a value of the run file."""

    path: str
    status: str
    device: str | None
    name: str | None
    precision: str | None
    graph: str
    batch: int | None
    steps: int
    recorded: int
    step_ms: float | None
    variance: Variance
    parts: StepParts | None
    phases: list[PhaseTime]
    utilisation: Utilisation
    others: Others | None
    launches: LaunchCost | None
    transfers: list[Transfer]
    host: HostTime | None
    graphs: dict[str, GraphSummary]
    memory: MemorySummary
    energy: list[RailEnergy]
    clock_error_us: float
    clock_drift_ppm: float
    overhead: Overhead
    sensors_absent: dict[str, str]
