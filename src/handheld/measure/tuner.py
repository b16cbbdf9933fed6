"""Finds the fastest variant for every signature of a step, and writes it down as it goes.

For each signature, the heaviest first:

    1. every candidate runs once, is checked, and is timed briefly; the family's own comes first
    2. the best few and the family's own take turns and are timed longer; the best median wins, if
       it beats the family's own by more than noise

A signature gets a part of the budget by its estimated share of the step; candidates for which
there is no time are left to the next run. The record is written after every candidate. A candidate
that is wrong, that the driver rejects, or that takes the child process down is in the record too,
and is never tried again.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from handheld.backends.base import describe
from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.graph.codec import to_json
from handheld.measure.jobs import Job, find_jobs
from handheld.measure.process import WorkerFailed, WorkerProcess
from handheld.plan.lowering import Choice
from handheld.plan.precision import prepare
from handheld.plan.tuning import Entry, TuningRecord
from handheld.step import Step

TIMEOUT = 30.0  # seconds for a candidate: some drivers compile for many
BRIEF, LONG, ROUNDS = 0.02, 0.03, 5  # seconds of timing, and turns in the second part
FINALISTS, NEAR = 4, 1.25  # how many, and how much slower than the best, get to the second part
WORTH = 0.98  # of the family's own time: less is noise
LEAST = 1.0  # seconds that any signature gets


@dataclass(frozen=True)
class Progress:
    """Where the search stands."""

    signature: str
    position: int
    jobs: int
    tried: int
    candidates: int
    seconds_left: float


@dataclass(frozen=True)
class Row:
    """One signature of the step and what is known of it."""

    signature: str
    count: int
    entry: Entry | None

    @property
    def saved_ms(self) -> float:
        """Of a whole step."""
        entry = self.entry
        if entry is None or entry.default_ms is None or entry.best_ms is None:
            return 0.0
        return self.count * (entry.default_ms - entry.best_ms)


@dataclass
class Tuner:
    """A search over jobs on one device. `record` is what is known so far; it is written to `path`
    as the search goes on."""

    device: str
    caps: DeviceCaps
    jobs: Sequence[Job]
    record: TuningRecord
    path: Path
    worker: WorkerProcess = field(default_factory=WorkerProcess)
    timeout: float = TIMEOUT
    progress: Callable[[Progress], None] = lambda now: None
    #: signatures that could not be timed at all
    notes: list[str] = field(default_factory=list)

    def run(self, budget: float) -> None:
        """Ends when everything is tuned, or within about `budget` seconds. KeyboardInterrupt loses
        the candidate under way and no more."""
        deadline = time.monotonic() + budget
        waiting = [(i, job) for i, job in enumerate(self.jobs) if not self._entry(job).done]
        # what was begun and not finished has a best already: new shapes first
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

    def save(self) -> None:
        self.record.date = datetime.date.today().isoformat()
        self.record.write(self.path)


def tune(step: Step, device: str, seconds: float, precision: str = "float32") -> Path:
    """The graphs of a step that train, on a device; what is known already is kept."""
    if device.partition(":")[0] != "opencl":
        raise PlanError(f"{device} has no variants to choose from. Try: opencl")
    caps = describe(device)
    names = [name for name, graph in step.graphs.items() if graph.writes]
    graphs, _ = prepare(step, names, precision, align_bytes=caps.base_align_bytes)
    record, path, _ = known_record(TuningRecord.of(caps))
    Tuner(device, caps, find_jobs(graphs, caps), record, path).run(seconds)
    return path


def known_record(new: TuningRecord) -> tuple[TuningRecord, Path, list[str]]:
    """What is known of the device already, where it is kept, and a note if that was damaged. Entries that the
    kernels of today do not fit are left out."""
    path = new.path()
    try:
        for kept in (path, new.earlier_path()):
            if kept.exists():
                record = TuningRecord.read(kept)
                record.drop_stale()
                return record, path, []
        return new, path, []
    except PlanError as error:
        return new, path, [f"{error}. It is replaced"]


class _Search:
    """One signature."""

    def __init__(self, tuner: Tuner, job: Job, position: int, until: float, deadline: float):
        self.tuner, self.job, self.position = tuner, job, position
        self.until, self.deadline = until, deadline
        self.entry = tuner.record.entries.setdefault(job.signature, Entry())
        self.entry.candidates = len(job.candidates)
        self.process = 0  # the child process that has this node open

    def run(self) -> None:
        """Both parts. What is found is in the record, whatever happens in between."""
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
        """Milliseconds; None for a candidate that fails, or that another one equals."""
        self._open()
        return None if self._failed(choice) else self._ask(choice, seconds)

    def _open(self) -> None:
        """Makes the node the child's subject and gives it a reference: the family's own variant or,
        where that fails, the first that ran. A new child knows nothing."""
        worker = self.tuner.worker
        while not worker.running or worker.running != self.process:
            try:
                answer = worker.ask(
                    {"do": "open", "device": self.tuner.device, "graph": to_json(self.job.graph)}, self.tuner.timeout
                )
            except WorkerFailed as error:
                answer = {"failed": str(error)}
            if "failed" in answer:
                raise PlanError(f"{self.job.signature} cannot be timed: {answer['failed']}")
            self.process = worker.running
            ran = [None, *(choice for choice, _ in self.entry.timed)]
            reference = [choice for choice in ran if not self._failed(choice)]
            if reference:
                self._ask(reference[0], 0.0)

    def _ask(self, choice: Choice | None, seconds: float) -> float | None:
        """Milliseconds of a variant. A failure is remembered."""
        plain = None if choice is None else dict(choice)
        try:
            answer = self.tuner.worker.ask(
                {"do": "try", "choice": plain, "seconds": seconds}, self.tuner.timeout + seconds
            )
        except WorkerFailed as error:
            answer = {"failed": str(error)}
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
            return  # nothing vouches for a result that no other variant has
        final = self._finals(own)
        if not final:
            return
        best = min(final, key=lambda choice_ms: choice_ms[1])
        entry.default_ms = next((ms for choice, ms in final if choice is None), None)
        if entry.default_ms is not None and best[1] > WORTH * entry.default_ms:
            best = (None, entry.default_ms)
        entry.choice, entry.best_ms = best

    def _finals(self, own: float | None) -> list[tuple[Choice | None, float]]:
        """The best few and the family's own take turns."""
        ranked = sorted(self.entry.timed, key=lambda row: row[1])[:FINALISTS]
        slowest = min([ms for _, ms in ranked[:1]] + ([] if own is None else [own])) * NEAR
        left: list[Choice | None] = [choice for choice, ms in ranked if ms <= slowest]
        if own is not None:
            left.insert(0, None)
        times: list[list[float]] = [[] for _ in left]
        for _ in range(ROUNDS):
            for choice, found in zip(left, times, strict=True):
                # a new child builds again what it is asked for
                ms = self._attempt(choice, LONG)
                if ms is not None:
                    found.append(ms)
        return [
            (choice, median(found))
            for choice, found in zip(left, times, strict=True)
            if found and not self._failed(choice)
        ]
