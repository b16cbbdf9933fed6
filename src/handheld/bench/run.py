"""The loop of a benchmark: prepares, cools for, measures and records each run that has no row yet."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import cast

import handheld
from handheld import suite
from handheld.bench.eager import is_eager
from handheld.bench.folder import Results, Writer
from handheld.bench.heat import Heat
from handheld.bench.matrix import Case, Matrix, file_mark, ordered
from handheld.bench.shapes import Caps, Info, Measured, Row
from handheld.bench.task import Answer, call
from handheld.child import Message
from handheld.errors import DeviceError, HandheldError, ResultsError
from handheld.profile.facts import versions
from handheld.profile.machine import machine

LEAST_STEPS = 5
TRAINED = "trained"
NOT_FINITE = "the loss became NaN or infinite"
NOTHING = "the null device computes nothing, so it has no loss. Try: --on opencl"
_SAME = ("name", "vendor", "driver", "kind", "compute_units")  # Equal values mean the same device.


@dataclass(frozen=True)
class Settings:
    """How each run is done. All rows of a folder share the first three and the last."""

    seconds: float = 3.0  # How long to train after the first step, and at least LEAST_STEPS steps.
    steps: int | None = None  # Train this many steps instead.
    seed: int = 0  # For the models and the order of runs.
    limit_bytes: int | None = None  # The most memory that a run may hold; None: nearly all that is free.
    silence_s: float = 600.0  # A run that reports nothing for this long counts as hung.
    cool_s: float | None = None  # The pause between runs; None: the sensors decide.
    fit_bytes: int | None = None  # Plans fit into this by computing values again; None: they are as they are.


@dataclass(frozen=True)
class Progress:
    """How far a benchmark is. `left_s` is None until a run has ended."""

    done: int
    count: int
    case: Case
    stage: str
    left_s: float | None


def run(
    matrix: Matrix | None,
    folder: str | Path,
    settings: Settings | None = None,
    *,
    retry: bool = False,
    tell: Callable[[Progress], None] | None = None,
) -> Iterator[Row]:
    """Run every case that has no row in the folder yet, and yield rows as they are written.

    If `matrix` is None, the cases and settings of the folder are used. `retry` also repeats runs that did
    not train. `tell` is called with the progress. Errors in the arguments are raised before anything runs; a run that
    fails becomes a row. The folder stays locked until the iterator ends or is closed.
    """
    if settings is not None:
        check_settings(settings)
    if matrix is not None:
        matrix.cases()  # Reports unknown names before a folder is created.
    bench = Bench(folder, settings)
    try:
        bench.begin(matrix, retry)
    except BaseException:
        bench.close()
        raise
    return bench.rows(tell or (lambda progress: None))


class Bench:
    """A results folder that is being filled."""

    def __init__(self, folder: str | Path, settings: Settings | None) -> None:
        self.settings = settings or Settings()
        self._given = settings
        self.writer = Writer(folder)
        self.info: Info = {}
        self.heat: Heat | None = None
        self.left: list[Case] = []
        self.count = 0
        self._wall: list[float] = []
        self._lost: dict[str, str] = {}  # Lost devices, and how each was lost.
        self._pairs: dict[str, Answer] = {}  # What was prepared, or why that failed.

    # ── before the first run ──────────────────────────────────────────────────────────────────

    def begin(self, matrix: Matrix | None, retry: bool) -> None:
        old = self.writer.open()
        if old is not None:
            self._check_same(old.info)
        elif matrix is None:
            raise ResultsError(f"there is nothing to resume in {self.writer.folder}")
        known = [Case(**case) for case in old.info["cases"]] if old else []
        requested = known if matrix is None else matrix.cases()
        ended = {row["key"]: row for row in old.rows} if old else {}
        files = self._files([case.workload for case in requested], old, ended)
        self.left = [
            case
            for case in ordered(requested, self.settings.seed)
            if case.key not in ended or (retry and ended[case.key]["status"] != TRAINED)
        ]
        self.count = len(requested)
        self._wall = [row["wall_s"] for row in ended.values() if row.get("wall_s")]
        devices = dict(old.info["devices"]) if old else {}
        if self.left:
            devices |= self._devices(list(dict.fromkeys(c.device for c in self.left)), devices)
        base = old.info.get("base_celsius") if old else None
        self.heat = Heat(self.settings.cool_s, base, devices=[case.device for case in self.left])
        self.info = {
            "handheld": handheld.__version__,
            "created": old.info["created"] if old else _now(),
            "settings": dataclasses.asdict(self.settings),
            "devices": devices,
            "machine": machine(),
            "versions": versions(),
            "base_celsius": self.heat.base,
            "notes": old.notes if old else [],
            "files": files,
            "cases": [case.to_json() for case in dict.fromkeys((*known, *requested))],
        }
        self.writer.describe(self.info)

    def _check_same(self, info: Info) -> None:
        """Raise ResultsError if new rows could not be compared with those of the folder."""
        folder, own = self.writer.folder, handheld.__version__
        if info["handheld"] != own:
            raise ResultsError(
                f"{folder} was measured with Handheld {info['handheld']}; this "
                f"is {own}. Try: another --out, and handheld bench --compare"
            )
        if "merged" in info:
            raise ResultsError(
                f"{folder} was merged from other folders and cannot be continued. Try: another --out, and merge again"
            )
        fields = {field.name for field in dataclasses.fields(Settings)}
        before = Settings(**{k: v for k, v in info["settings"].items() if k in fields})
        if self._given is None:
            self.settings = before
        for name in ("seconds", "steps", "seed", "fit_bytes"):
            then, now = getattr(before, name), getattr(self.settings, name)
            if then != now:
                raise ResultsError(
                    f"{folder} was measured with {name}={then}, now it is {now}:"
                    f" rows could not be compared. Try: another --out, or "
                    f"handheld bench --resume {folder}"
                )

    def _files(self, names: list[str], old: Results | None, ended: dict[str, Row]) -> dict[str, str]:
        """A hash of each file that a workload is made of. Raises ResultsError if a file that rows were measured with
        has changed or is missing."""
        marks = dict(old.info.get("files", {})) if old else {}
        measured = {row["workload"] for row in ended.values() if row["status"] == TRAINED}
        for name in dict.fromkeys(names):
            before, now = marks.get(name), file_mark(name)
            if before and name in measured and now != before:
                what = "has changed since" if now else "is missing;"
                raise ResultsError(
                    f"{name} {what} {self.writer.folder} was measured with it, so rows "
                    "could not be compared. Try: another --out"
                    + ("" if now else ", or run from the folder of the file")
                )
            marks |= {name: now} if now else {}
        return marks

    def _devices(self, names: list[str], known: Mapping[str, Caps]) -> dict[str, Caps]:
        """A description of each device. Raises an error if one is missing, or differs from the folder's."""
        answer = self._call({"do": "describe", "devices": names})
        if answer.status != "done":
            raise DeviceError(answer.reason)
        devices = answer.facts["devices"]
        for name, caps in devices.items():
            before = known.get(name, caps)
            for field in _SAME:
                if before[field] != caps[field]:
                    raise ResultsError(
                        f"{self.writer.folder} was measured where the {field} of {name} is "
                        f"{before[field]!r}, but here it is {caps[field]!r}. Try: another --out, "
                        "and handheld bench --merge"
                    )
        return devices

    # ── runs ──────────────────────────────────────────────────────────────────────────────────

    def rows(self, tell: Callable[[Progress], None]) -> Iterator[Row]:
        try:
            while self.left:
                case = self.left[0]
                row = self._row(
                    case,
                    lambda stage: tell(
                        Progress(self.count - len(self.left), self.count, self.left[0], stage, self._left_s())
                    ),
                )
                self.writer.append(row)
                self.left.pop(0)
                if not any(other.pair == case.pair for other in self.left):
                    self._pairs.pop(case.pair, None)
                    self.writer.forget_steps()
                yield row
        finally:
            self.close()

    def close(self) -> None:
        if self.heat is not None:
            self.heat.close()
        self.writer.forget_steps()
        self.writer.close()

    def _left_s(self) -> float | None:
        return statistics.mean(self._wall) * len(self.left) if self._wall else None

    def _row(self, case: Case, tell: Callable[[str], None]) -> Row:
        begun, began = time.monotonic(), _now()
        row: Row = {
            "key": case.key,
            "workload": case.workload,
            "size": case.size,
            "device": case.device,
            "batch": case.batch,
            "status": "",
            "reason": "",
            "processor": self.info["devices"][case.device]["name"],
            "began": began,
        }
        answer = self._attempt(case, row, tell)
        row["status"], row["reason"] = answer.status, answer.reason
        if answer.status == "does not fit":
            row["reason"] += f". Try: {_plan_command(case)}, which finds the largest batch that fits"
        if answer.status == "done":
            row["status"] = TRAINED
            if not row["finite"]:
                row["status"], row["reason"] = "failed", NOTHING if case.device == "null" else NOT_FINITE
        run = row.get("run")
        if run and not (self.writer.folder / run).exists():
            row["run"] = None
        row["wall_s"] = time.monotonic() - begun
        self._wall.append(row["wall_s"])
        return row

    def _attempt(self, case: Case, row: Row, tell: Callable[[str], None]) -> Answer:
        if case.device in self._lost:
            return Answer("device lost", self._lost[case.device])
        if is_eager(case.device):
            return self._measure(case, row, {"do": "eager"}, tell)
        step = self.writer.step_file(case.step_file)
        if case.pair not in self._pairs:
            self._pairs[case.pair] = self._call(
                {"do": "prepare", **case.to_json(), "seed": self.settings.seed, "step": str(step)}, tell
            )
        prepared = self._pairs[case.pair]
        _take(row, prepared.facts)
        if prepared.status != "done":
            status = "does not build" if prepared.status == "failed" else prepared.status
            return Answer(status, prepared.reason)
        return self._measure(
            case,
            row,
            {
                "do": "measure",
                "data": row["data"],
                "step": str(step),
                "limit_bytes": self.settings.limit_bytes,
                "fit_bytes": self.settings.fit_bytes,
            },
            tell,
        )

    def _measure(self, case: Case, row: Row, task: Message, tell: Callable[[str], None]) -> Answer:
        assert self.heat is not None
        _take(row, self.heat.cool(tell, case.device))
        row["run"] = run = self.writer.run_file(case.file)
        answer = self._call(
            {
                **task,
                **case.to_json(),
                "batch": row["batch"],
                "run": str(self.writer.folder / run),
                "seed": self.settings.seed,
                "seconds": None if self.settings.steps else self.settings.seconds,
                "steps": self.settings.steps or LEAST_STEPS,
            },
            tell,
            self.settings.limit_bytes,
        )
        _take(row, answer.facts)
        if answer.status in ("failed", "crashed", "device lost"):
            self._look_for(case.device, answer)
        return answer

    def _look_for(self, device: str, answer: Answer) -> None:
        """After a failure, check that the device is still there. If it is lost, its other runs are skipped."""
        seen = self._call({"do": "describe", "devices": [device]})
        if seen.status != "done":
            answer.status = "device lost"
            answer.reason = f"{device} is no longer available: {seen.reason}"
            self._lost[device] = answer.reason
        elif answer.status == "device lost":  # The device is available again.
            answer.status = "failed"

    def _call(self, task: Message, tell: Callable[[str], None] | None = None, limit_bytes: int | None = None) -> Answer:
        return call(task, silence_s=self.settings.silence_s, limit_bytes=limit_bytes, tell=tell or (lambda stage: None))


def _plan_command(case: Case) -> str:
    size = f" --size {case.size}" if case.size in suite.SIZES else ""
    return f"handheld plan {case.workload}{size} --device {case.device}"


def _take(row: Row, figures: Measured) -> None:
    """Add the figures to a row."""
    row.update(cast(Row, figures))


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def check_settings(settings: Settings) -> None:
    """Raise HandheldError for impossible numbers before anything is opened."""
    if settings.steps is not None and settings.steps < 1:
        raise HandheldError(f"steps is {settings.steps}. Try: 1 or more")
    if not 0 < settings.seconds < 86_400 or settings.silence_s <= 0:
        raise HandheldError("--seconds and --timeout must be more than 0")
    for limit in (settings.limit_bytes, settings.fit_bytes):
        if limit is not None and limit < 1:
            raise HandheldError(f"a memory limit of {limit} bytes leaves nothing to train with")
