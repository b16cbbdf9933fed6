"""What a federated training did and cost, round by round: one JSON file, renewed after every round.

`cost_to_target` and `quality_under_budget` read it: what it took to reach an accuracy, and the accuracy that a budget
reaches. Seconds are those of the server's clock. Joules and bytes are sums over the devices.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from handheld.errors import ResultsError
from handheld.files import replace_file

FORMAT = 1
NAME = "federated.json"
PROTOCOLS = "protocols"
#: What a budget or a cost can be counted in, with its unit.
BUDGETS = {"rounds": "", "seconds": "s", "joules": "J", "bytes": "bytes"}
RUNNING, COMPLETE = "running", "complete"


@dataclass
class Visit:
    """One device in one round."""

    node: str
    outcome: str  # "trained", or why its update was not averaged
    device: str = ""
    samples: int = 0
    steps: int = 0
    loss: float | None = None
    seconds: float | None = None
    joules: float | None = None
    peak_bytes: int | None = None
    celsius: float | None = None
    battery_percent: float | None = None
    up_bytes: int = 0

    @property
    def trained(self) -> bool:
        return self.outcome == "trained"


@dataclass
class Round:
    """One round. `seconds` is the time since the training began, without pauses between two starts; that of virtual
    devices is simulated. `server_seconds` is the server's own time then."""

    number: int
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)
    visits: list[Visit] = field(default_factory=list)
    #: Devices that were not asked, with the reason.
    passed_over: dict[str, str] = field(default_factory=dict)
    down_bytes: int = 0
    server_seconds: float | None = None

    @property
    def bytes(self) -> int:
        return self.down_bytes + sum(visit.up_bytes for visit in self.visits)

    @property
    def joules(self) -> float | None:
        """The joules of all devices that trained, or None if one of them did not measure any."""
        spent = [visit.joules for visit in self.visits if visit.steps]
        return None if not spent or None in spent else sum(joules for joules in spent if joules is not None)


@dataclass
class Record:
    """A federated training."""

    model: str
    version: str
    settings: dict[str, Any]
    begun: str = ""  # date and time of the server's clock
    status: str = RUNNING
    rounds: list[Round] = field(default_factory=list)
    #: Devices that cannot take part, with the reason.
    refused: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Keep a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    def text(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    def write(self, folder: Path, protocols: Mapping[str, Any] | None = None) -> None:
        """Write the file, with what the protocols make of the rounds (protocols.py)."""
        known = {} if protocols is None else {PROTOCOLS: protocols}
        data = json.dumps({**json.loads(self.text()), **known}, indent=1).encode()

        def fill(file: BinaryIO) -> None:
            file.write(data)

        replace_file(folder / NAME, fill)


def newest(base: Path) -> int:
    """The number of the newest training in a folder, or 0."""
    found = [path.parent.name for path in base.glob(f"*/{NAME}")]
    return max((int(name) for name in found if name.isdigit()), default=0)


def read_record(path: str | Path) -> Record:
    """The record in a folder, or in this file. Raises ResultsError."""
    path = Path(path)
    path = path / NAME if path.is_dir() else path
    try:
        return record_of(path.read_text(encoding="utf-8"), path)
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}. Try: the folder that the server wrote") from None


def record_of(text: str, path: Path) -> Record:
    """The record in a text. `path` is where it comes from, for errors."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ResultsError(f"{path} is damaged: {error}") from None
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise ResultsError(f"{path} is not a record of federated training of format {FORMAT}")
    data.pop(PROTOCOLS, None)  # They follow from the rounds.
    try:
        rounds = [Round(**{**one, "visits": [Visit(**visit) for visit in one["visits"]]}) for one in data.pop("rounds")]
        return Record(**data, rounds=rounds)
    except (TypeError, KeyError, AttributeError) as error:
        raise ResultsError(f"{path} is damaged: {error}") from None


@dataclass(frozen=True)
class Spent:
    """What was spent until the end of a round. `joules` is None if a device did not measure them."""

    rounds: int
    seconds: float
    joules: float | None
    bytes: int

    def of(self, budget: str) -> float | None:
        value: float | None = getattr(self, budget)
        return value


def spent(record: Record) -> list[Spent]:
    """One entry per round: what all rounds until then cost together."""
    result: list[Spent] = []
    joules: float | None = 0.0
    total = 0
    for one in record.rounds:
        if one.number:  # Round 0 is the evaluation before training.
            joules = None if joules is None or one.joules is None else joules + one.joules
            total += one.bytes
        result.append(Spent(one.number, one.seconds, joules if one.number else 0.0, total))
    return result


def cost_to_target(record: Record, metric: str, target: float) -> Spent | None:
    """What it took until `metric` first reached `target`; None if it never did."""
    for one, cost in zip(record.rounds, spent(record), strict=True):
        value = one.metrics.get(metric)
        if value is not None and (value <= target if metric == "loss" else value >= target):
            return cost
    return None


def quality_under_budget(record: Record, metric: str, budget: str, amount: float) -> float | None:
    """The best `metric` that was reached for at most `amount` of rounds, seconds, joules or bytes; None if there is
    none, or if the budget was not measured."""
    if budget not in BUDGETS:
        raise ResultsError(f"there is no budget of {budget!r}. Try: {', '.join(BUDGETS)}")
    costs = [
        (one.metrics[metric], cost.of(budget))
        for one, cost in zip(record.rounds, spent(record), strict=True)
        if metric in one.metrics
    ]
    values = [value for value, cost in costs if cost is not None and cost <= amount]
    if not values:
        return None
    return min(values) if metric == "loss" else max(values)


def by_device(record: Record, until: int | None = None) -> dict[str, dict[str, float | int | None]]:
    """Device -> its rounds, samples, seconds, joules, bytes and largest peak bytes: of the whole training, or until the
    end of a round."""
    result: dict[str, dict[str, float | int | None]] = {}
    rounds = [one for one in record.rounds if until is None or one.number <= until]
    for device in sorted({visit.device for one in rounds for visit in one.visits if visit.device}):
        every = [(one, visit) for one in rounds for visit in one.visits if visit.device == device]
        visits = [visit for _, visit in every if visit.steps]
        result[device] = {
            "bytes": sum(visit.up_bytes + one.down_bytes // len(one.visits) for one, visit in every),
            "nodes": len({visit.node for visit in visits}),
            "updates": sum(visit.trained for visit in visits),
            "samples": sum(visit.samples for visit in visits),
            "seconds": _total([visit.seconds for visit in visits]),
            "joules": _total([visit.joules for visit in visits]),
            "peak_bytes": max((visit.peak_bytes or 0 for visit in visits), default=0) or None,
            "celsius": max((visit.celsius for visit in visits if visit.celsius is not None), default=None),
        }
    return result


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return None if len(known) < len(values) or not known else sum(known)


def visit_of(node: str, outcome: str, facts: Mapping[str, Any]) -> Visit:
    """A visit from what a device reported."""
    return Visit(
        node,
        outcome,
        device=str(facts.get("device", "")),
        samples=int(facts.get("samples", 0)),
        steps=int(facts.get("steps", 0)),
        loss=facts.get("loss"),
        seconds=facts.get("seconds"),
        joules=facts.get("joules"),
        peak_bytes=facts.get("peak-bytes"),
        celsius=facts.get("celsius"),
        battery_percent=facts.get("battery-percent"),
        up_bytes=int(facts.get("sent-bytes", 0)),
    )
