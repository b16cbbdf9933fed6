"""The JSON objects that bench writes and prints, with the names and types of their fields.

A class with `total=False` has only the fields that are known. Rows of older folders have fewer fields.
"""

from __future__ import annotations

from typing import Any, TypedDict

#: A device, as DeviceCaps.to_json describes it.
Caps = dict[str, Any]


class RailRow(TypedDict):
    """What one power sensor measured while steps ran."""

    rail: str
    covers: list[str]
    part_of: str
    watts: float | None
    idle_watts: float | None
    joules_step: float | None
    ticks: int


class Measured(TypedDict, total=False):
    """The figures of a run."""

    # preparing
    data: str
    parameters: int
    prepare_s: float
    # planning
    planned_bytes: int | None
    available_bytes: int | None
    held_bytes: int
    #: What the plan does to fit; "" if it fits as it is.
    fit: str
    # cooling
    cooled_s: float
    cooled_by: str
    celsius: float | None
    warmer_by: float | None
    # measuring
    run: str | None
    arithmetic: str
    steps: int
    step_ms: float | None
    timed_by: str | None
    step_p5_ms: float | None
    step_p95_ms: float | None
    samples_s: float | None
    loss: float | None
    finite: bool
    peak_bytes: int | None
    allocated_bytes: int | None
    resident_bytes: int
    device_busy: float | None
    gflops: float | None
    others_cores: float | None
    others_top: str | None
    first_step_s: float
    findings: list[str]
    # energy
    joules_sample: float | None
    rail: str | None
    watts: float | None
    energy: list[RailRow]
    # the end
    error: str
    wall_s: float


class Facts(Measured, total=False):
    """What a child process reports."""

    batch: int
    devices: dict[str, Caps]


class CaseShape(TypedDict):
    """A case of a matrix, which is one run."""

    workload: str
    size: str
    device: str
    batch: int | None


class DescribeTask(TypedDict):
    """Asks a worker what devices are."""

    devices: list[str]


class PrepareTask(CaseShape):
    """Asks a worker to capture the step of a case into the file `step`."""

    seed: int
    step: str


class EagerTask(CaseShape):
    """Asks a worker to train a case with plain PyTorch and to write the run file `run`."""

    run: str
    seed: int
    steps: int
    seconds: float | None


class MeasureTask(TypedDict):
    """Asks a worker to run the captured step `step` and to write the run file `run`."""

    workload: str
    size: str
    device: str
    batch: int
    data: str
    step: str
    run: str
    seed: int
    steps: int
    seconds: float | None
    limit_bytes: int | None
    fit_bytes: int | None


class _Ended(CaseShape):
    key: str
    status: str
    reason: str
    processor: str
    began: str


class Row(_Ended, Measured):
    """A line of results.jsonl: one run, and how it ended."""


class Info(TypedDict, total=False):
    """The content of bench.json."""

    format: int
    handheld: str
    created: str
    settings: dict[str, Any]
    devices: dict[str, Caps]
    machine: dict[str, Any]
    versions: dict[str, str]
    base_celsius: dict[str, float] | None
    notes: list[str]
    files: dict[str, str]
    cases: list[CaseShape]
    merged: list[dict[str, object]]


# ── the report card ───────────────────────────────────────────────────────────────────────────


class Beside(TypedDict):
    """The best run of another device, for comparison with the best of all."""

    device: str
    batch: int | None
    samples_s: float
    joules_sample: float | None
    ratio: float


class Frugal(TypedDict):
    """The run with the least energy per sample."""

    device: str
    batch: int | None
    joules_sample: float


class Untrained(TypedDict):
    """A run that did not train, and why."""

    device: str
    batch: int | None
    status: str
    reason: str
    planned_bytes: int | None


class _Line(TypedDict):
    workload: str
    size: str
    trains: bool
    largest_batch: int | None


class Line(_Line, total=False):
    """A workload on the report card: where it is fastest, or why it trains nowhere."""

    # if it trains
    device: str
    processor: str
    batch: int | None
    samples_s: float | None  # None if too few steps ran to time them
    step_ms: float | None
    joules_sample: float | None
    rail: str | None
    planned_bytes: int | None
    parameters: int | None
    others: list[Beside]
    least_joules: Frugal | None
    not_trained: list[Untrained]
    # if it does not train
    status: str
    reason: str


# ── two folders ───────────────────────────────────────────────────────────────────────────────


class Side(TypedDict):
    """A row of one of the two folders."""

    status: str
    reason: str
    samples_s: float | None
    step_ms: float | None
    joules_sample: float | None
    planned_bytes: int | None
    step_p5_ms: float | None
    step_p95_ms: float | None
    others_cores: float | None


class Judged(TypedDict):
    """The time per sample of b divided by that of a, with an interval, and whether the difference is more than noise
    (`slower`, `faster`, or `same`).

    `by` says where the interval comes from: `run files` (95%, docs/compare.md), or the `spread` of the steps of both
    rows, from 5% to 95% of them.
    """

    ratio: float
    low: float
    high: float
    verdict: str
    by: str


class Pair(TypedDict):
    """A key in two folders; `ratios` are b's figures divided by a's.

    `within_spread` says whether the step times of the two overlap, from 5% to 95% of the steps. None: not known.
    `judged` is None if the times cannot be compared, and `why` says why then.
    """

    key: str
    workload: str
    size: str
    device: str
    batch: int | None
    a: Side | None
    b: Side | None
    ratios: dict[str, float]
    within_spread: bool | None
    judged: Judged | None
    why: str


class Mean(TypedDict):
    """A geometric mean, and the number of its rows."""

    ratio: float
    rows: int


class Comparison(TypedDict):
    """The comparison of two folders."""

    a: str
    b: str
    rows: list[Pair]
    means: dict[str, Mean | None]
    differences: list[str]
    warnings: list[str]
