"""Finds the fastest variant for every signature of a step, and records each result at once.

For each signature, the heaviest first:

    1. Every candidate runs once, is checked, and is timed briefly. The default variant comes first.
    2. The best few and the default alternate and are timed longer. The best median wins if it beats
       the default by more than noise.

Each signature gets a part of the budget by its estimated share of the step. Candidates that do not fit
in the budget are left to the next run. The record is written after every candidate. It also holds
candidates that gave a wrong result, were rejected by the driver, or crashed the child process; these are
never tried again.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from handheld.child import SILENCE_S
from handheld.device import DeviceCaps
from handheld.drivers.check import described
from handheld.errors import PlanError, TargetLost
from handheld.graph.codec import to_json
from handheld.kernels.base import Choice
from handheld.measure.jobs import Job, find_jobs
from handheld.measure.process import WorkerFailed, WorkerProcess
from handheld.plan.precision import prepare
from handheld.plan.tuning import Entry, TuningRecord
from handheld.step import Step

#: Seconds that a candidate may be silent: at least this, or as many times the longest of those that answered. Compilers
#: of slow devices need minutes.
TIMEOUT, SLOWER = 30.0, 4.0
BRIEF, LONG, ROUNDS = 0.02, 0.03, 5  # Seconds of timing in parts 1 and 2, and rounds in part 2.
FINALISTS, NEAR = 4, 1.25  # Part 2: how many candidates, and how much slower than the best they may be.
WORTH = 0.98  # A variant must be below this share of the default's time; a smaller gain is noise.
LEAST = 1.0  # Seconds that every signature gets at least.


@dataclass(frozen=True)
class Progress:
    """How far the search is."""

    signature: str
    position: int
    jobs: int
    tried: int
    candidates: int
    seconds_left: float


@dataclass(frozen=True)
class Row:
    """One signature of the step, and its entry in the record."""

    signature: str
    count: int
    entry: Entry | None

    @property
    def saved_ms(self) -> float:
        """Milliseconds saved per step."""
        entry = self.entry
        if entry is None or entry.default_ms is None or entry.best_ms is None:
            return 0.0
        return self.count * (entry.default_ms - entry.best_ms)


@dataclass
class Tuner:
    """A search over jobs on one device. `record` holds the results so far; it is written to `path` as they arrive."""

    device: str
    caps: DeviceCaps
    jobs: Sequence[Job]
    record: TuningRecord
    path: Path
    worker: WorkerProcess = field(default_factory=WorkerProcess)
    timeout: float = TIMEOUT
    slowest_s: float = 0.0  # the longest time that a variant took to answer
    progress: Callable[[Progress], None] = lambda now: None
    #: Signatures that could not be timed at all.
    notes: list[str] = field(default_factory=list)

    def run(self, budget: float) -> None:
        """Search until everything is tuned, or for about `budget` seconds. KeyboardInterrupt loses only the candidate
        that is being tried."""
        deadline = time.monotonic() + budget
        waiting = [(i, job) for i, job in enumerate(self.jobs) if not self._entry(job).done]
        # Unfinished signatures already have a best variant, so new ones come first.
        waiting.sort(key=lambda item: self._entry(item[1]).best_ms is not None)
        try:
            for n, (position, job) in enumerate(waiting):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                rest = sum(job.share for _, job in waiting[n:]) or 1.0
                part = max(left * job.share / rest, LEAST)
                until = time.monotonic() + min(part, left)
                try:
                    _Search(self, job, position, until, deadline).run()
                except PlanError as error:
                    self.notes.append(str(error))
        finally:
            self.worker.close()

    def rows(self) -> list[Row]:
        return [Row(job.signature, job.count, self.record.entries.get(job.signature)) for job in self.jobs]

    def _entry(self, job: Job) -> Entry:
        return self.record.entries.get(job.signature, Entry())

    def patience_s(self, choice: Choice | None) -> float:
        """How long a variant may be silent. The default shows how slow the compiler is, so it gets all the time."""
        return SILENCE_S if choice is None else max(self.timeout, SLOWER * self.slowest_s)

    def save(self) -> None:
        self.record.date = datetime.date.today().isoformat()
        self.record.write(self.path)


def tune(step: Step, device: str, seconds: float, precision: str = "float32") -> Path:
    """Tune the graphs of a step that train on a device. Known results are kept."""
    caps = described(device, precision)  # An unknown device is reported as such.
    if not caps.takes_launches:
        raise PlanError(f"{device} has no variants to choose from. Try: opencl")
    if not 0 < seconds < float("inf"):
        raise PlanError(f"seconds={seconds!r} must be a time to spend, more than 0. Try: seconds=120")
    names = [name for name, graph in step.graphs.items() if graph.writes]
    graphs, _ = prepare(step, names, caps, precision)
    record, path, _ = known_record(TuningRecord.of(caps))
    Tuner(device, caps, find_jobs(graphs, caps), record, path).run(seconds)
    return path


def known_record(new: TuningRecord) -> tuple[TuningRecord, Path, list[str]]:
    """The record of the device so far, its path, and a note if the file was damaged. Entries that do not fit today's
    kernels are left out."""
    path = new.path()
    try:
        for kept in (path, new.earlier_path()):
            if kept.exists():
                record = TuningRecord.read(kept)
                record.drop_stale()
                return record, path, []
        return new, path, []
    except PlanError as error:
        return new, path, [f"{error}. A new record replaces it"]


class _Search:
    """The search over the variants of one signature."""

    def __init__(self, tuner: Tuner, job: Job, position: int, until: float, deadline: float):
        self.tuner, self.job, self.position = tuner, job, position
        self.until, self.deadline = until, deadline
        self.entry = tuner.record.entries.setdefault(job.signature, Entry())
        self.entry.candidates = len(job.candidates)
        self.process = 0  # The child process that has this node open.

    def run(self) -> None:
        """Run both parts. Every result is recorded at once, so an interruption loses nothing else."""
        entry, finished = self.entry, True
        own = self._attempt(None)
        fresh = 0
        for choice in self.job.candidates:
            if self._failed(choice) or any(choice == c for c, _ in entry.timed):
                continue
            if time.monotonic() >= self.until and fresh:
                finished = False
                break
            self._report()
            ms = self._attempt(choice)
            if ms is not None:
                entry.timed.append((choice, ms))
            fresh += 1
            self.tuner.save()
        self._decide(own)
        entry.done = finished
        if finished:
            entry.timed.clear()
        self.tuner.save()

    def _failed(self, choice: Choice | None) -> bool:
        return any(choice == c for c, _ in self.entry.failed)

    def _report(self) -> None:
        entry = self.entry
        self.tuner.progress(
            Progress(
                self.job.signature,
                self.position + 1,
                len(self.tuner.jobs),
                len(entry.timed) + len(entry.failed),
                entry.candidates,
                max(self.deadline - time.monotonic(), 0.0),
            )
        )

    # ── the child ─────────────────────────────────────────────────────────────────────────────

    def _attempt(self, choice: Choice | None, seconds: float = BRIEF) -> float | None:
        """Milliseconds, or None for a candidate that fails or that equals another one."""
        self._open()
        return None if self._failed(choice) else self._ask(choice, seconds)

    def _open(self) -> None:
        """Open the node in the child process and run a reference there: the default variant or, if that fails, the
        first variant that runs. A new child process has neither."""
        worker = self.tuner.worker
        while not worker.running or worker.running != self.process:
            try:
                answer = worker.ask(
                    {"do": "open", "device": self.tuner.device, "graph": to_json(self.job.graph)}, SILENCE_S
                )
            except WorkerFailed as error:
                answer = {"failed": str(error)}
            if "lost" in answer:
                raise TargetLost(answer["lost"])
            if "failed" in answer:
                raise PlanError(f"{self.job.signature} cannot be timed: {answer['failed']}")
            self.process = worker.running
            ran = [None, *(choice for choice, _ in self.entry.timed)]
            reference = [choice for choice in ran if not self._failed(choice)]
            if reference:
                self._ask(reference[0], 0.0)

    def _ask(self, choice: Choice | None, seconds: float) -> float | None:
        """Milliseconds of a variant. A failure is recorded."""
        plain = None if choice is None else dict(choice)
        begun = time.monotonic()
        try:
            answer = self.tuner.worker.ask(
                {"do": "try", "choice": plain, "seconds": seconds}, self.tuner.patience_s(choice) + seconds
            )
            self.tuner.slowest_s = max(self.tuner.slowest_s, time.monotonic() - begun)
        except WorkerFailed as error:
            answer = {"failed": str(error)}
        if "lost" in answer:
            raise TargetLost(answer["lost"])
        if "crashed" in answer:  # It ended the runner of the target, so the node must be opened again.
            self.process, answer = 0, {"failed": answer["crashed"]}
        if "failed" in answer:
            self.entry.failed.append((choice, answer["failed"][:300]))
            self.entry.timed = [(c, ms) for c, ms in self.entry.timed if c != choice]
            self.tuner.save()
        return 1e3 * median(answer["seconds"]) if "seconds" in answer else None

    # ── the second part ───────────────────────────────────────────────────────────────────────

    def _decide(self, own: float | None) -> None:
        entry = self.entry
        entry.choice, entry.default_ms, entry.best_ms = None, own, own
        if own is None and len(entry.timed) < 2:
            return  # Without a second variant, nothing confirms the result.
        final = self._finals(own)
        if not final:
            return
        best = min(final, key=lambda choice_ms: choice_ms[1])
        entry.default_ms = next((ms for choice, ms in final if choice is None), None)
        if entry.default_ms is not None and best[1] > WORTH * entry.default_ms:
            best = (None, entry.default_ms)
        entry.choice, entry.best_ms = best

    def _finals(self, own: float | None) -> list[tuple[Choice | None, float]]:
        """Time the best few and the default in turns."""
        ranked = sorted(self.entry.timed, key=lambda row: row[1])[:FINALISTS]
        slowest = min([ms for _, ms in ranked[:1]] + ([] if own is None else [own])) * NEAR
        left: list[Choice | None] = [choice for choice, ms in ranked if ms <= slowest]
        if own is not None:
            left.insert(0, None)
        times: list[list[float]] = [[] for _ in left]
        for _ in range(ROUNDS):
            for choice, samples in zip(left, times, strict=True):
                # A new child process has to build the variant again.
                ms = self._attempt(choice, LONG)
                if ms is not None:
                    samples.append(ms)
        return [
            (choice, median(samples))
            for choice, samples in zip(left, times, strict=True)
            if samples and not self._failed(choice)
        ]
