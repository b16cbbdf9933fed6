"""The commands that target_faults.py kills: when, what must be kept, and what continuing must give.

Each class runs its command once undisturbed, then with each of its `KILLS`, and compares.
"""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from fault_progress import (
    Versions,
    Work,
    check_run,
    command_line,
    lines_of,
    rows_of,
    same_training,
    saved_step,
    trained,
)
from fault_watch import CONNECTION, HOST, RUNNER, Bed, Kill, family_of

from handheld.analyse.run import open_run
from handheld.errors import HandheldError
from helpers.progress import steps_in

#: Its state has weights, statistics of batch norm and Adam's moments. Dropout depends on the step's number.
MODEL = """
import torch
from torch import nn
from torch.nn import functional as F

def make():
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(784, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 10)
    model = nn.Sequential(*layers)
    return model, F.cross_entropy, torch.optim.Adam(model.parameters(), lr=1e-3)
"""
SOME = 100  # So many steps are the middle of a run.
LATEST_S = 1.0  # Steps that ended in the last second before a kill may be missing in a run file.
SAVED, WRITING = "after checkpoint", "while it writes checkpoint"
STEPS = "some steps after step"
ROW, IN_ROW = "after row", "in the middle of row"
PART = "in the middle of the part after"
CHECK = "in the middle of the check of the driver"


class Command(ABC):
    """A command with its undisturbed result."""

    name: str
    #: The victim, and when: a word and a number.
    KILLS: ClassVar[tuple[tuple[str, str, int], ...]]

    def __init__(self, bed: Bed) -> None:
        self.bed, self.folder = bed, bed.folder / self.name.replace(" ", "-")

    def run(self) -> None:
        self.undisturbed()
        for n, (victim, when, number) in enumerate(self.KILLS):
            kill = self.kill(self.folder / f"kill{n}", victim, when, number)
            print(f"{self.name}: {victim} {kill.when}: {kill.faults or 'nothing lost'}", flush=True)
        self.conclude()

    @abstractmethod
    def undisturbed(self) -> None:
        """Run it once, to compare with. Kernels are then built, so that later commands start quickly."""

    @abstractmethod
    def kill(self, folder: Path, victim: str, when: str, number: int) -> Kill:
        """Disturb it once, look what was kept, and continue."""

    def conclude(self) -> None:  # noqa: B027  Most commands are compared after each kill.
        """Continue and compare after the last kill."""

    def own_kills(self) -> list[Kill]:
        return [kill for kill in self.bed.kills if kill.command == self.name]


class Train(Command):
    """One training through all kills, which must end with the bits of the undisturbed one."""

    name = "train"
    KILLS = (
        (CONNECTION, SAVED, 3),
        (RUNNER, SAVED, 5),
        (HOST, SAVED, 4),
        (HOST, WRITING, 3),
        (CONNECTION, SAVED, 14),
        (RUNNER, SAVED, 1),
        (HOST, SAVED, 2),
    )

    def _words(self) -> tuple[str, ...]:
        words = ("train", "../mine.step", "--data", "digits", "--epochs", "5", "--batch", "16", "--no-page")
        more = ("--resume",) if (self.folder / "torn" / "state").exists() else ()
        return (*words, "--checkpoint", "state", "--every", "7", *more)

    def undisturbed(self) -> None:
        self.folder.mkdir()
        (self.folder / "mine.py").write_text(MODEL)
        self.bed.package("mine.py:make", "--data", "digits", "--batch", "16", "--out", "mine.step", folder=self.folder)
        self.bed.finish(*self._words(), folder=self.folder / "plain")

    def kill(self, folder: Path, victim: str, when: str, number: int) -> Kill:
        torn, state = self.folder / "torn", self.folder / "torn" / "state"
        begun, versions = saved_step(state), Versions(state)

        def moment(host: int) -> str:
            written = versions.seen()
            there = written >= number
            if when == WRITING:
                there = written >= number - 1 and any(torn.glob(".handheld-*.tmp"))
            return f"checkpoints: {written}, the last of step {saved_step(state)}" if there else ""

        kill = self.bed.disturb(*self._words(), folder=torn, victim=victim, when=f"{when} {number}", moment=moment)
        saved, kept = int((kill.before or "0").rpartition(" ")[2]), saved_step(state)
        kill.kept = f"the checkpoint of step {kept}"
        kill.expect(kept >= saved > begun, f"step {saved} was saved, and the checkpoint has step {kept}")
        kill.expect(victim == HOST or "--resume" in kill.said, "it does not say how to continue")
        for run in torn.glob("*.run"):
            check_run(kill, run)
        return kill

    def conclude(self) -> None:
        self.bed.finish(*self._words(), folder=self.folder / "torn")
        equal = same_training(self.folder / "plain" / "state", self.folder / "torn" / "state")
        for kill in self.own_kills():
            kill.continued = "the same bits of the whole state, the same losses" if equal else "another state"
            kill.expect(equal, "the training did not end with the same bits")


class Profile(Command):
    """The run file opens and has the steps up to the kill, and the next profile works."""

    name = "profile"
    KILLS = ((CONNECTION, STEPS, 100), (RUNNER, STEPS, 200), (HOST, STEPS, 300))

    def __init__(self, bed: Bed) -> None:
        super().__init__(bed)
        self.words = ("profile", str(packaged(bed)), "--batch", "4", "--no-ceilings", "--no-report")

    def undisturbed(self) -> None:
        self.bed.finish(*self.words, "--out", "plain.run", folder=self.folder)

    def kill(self, folder: Path, victim: str, when: str, number: int) -> Kill:
        path, work = folder / "torn.run", Work(self.bed)

        def moment(host: int) -> str:
            steps = steps_in(path)
            return f"{steps} steps in the run file" if steps >= number and work.begun() else ""

        words = (*self.words, "--steps", "1000000", "--out", path.name)
        kill = self.bed.disturb(*words, folder=folder, victim=victim, when=f"{when} {number}", moment=moment)
        self._look(kill, path)
        kill.expect(victim == HOST or f"handheld show {path.name}" in kill.said, "it does not say what was kept")
        shown = self.bed.run("show", path.name, folder=folder)
        kill.expect(shown.code == 0, f"handheld show failed: {shown.error[-300:]}")
        self.bed.finish(*self.words, "--out", "again.run", folder=folder)
        kill.continued = "a complete profile"
        return kill

    def _look(self, kill: Kill, path: Path) -> None:
        check_run(kill, path)
        with contextlib.suppress(HandheldError), open_run(path) as run:
            steps = run.steps()
            before, missing_s = int((kill.before or "0").split()[0]), (kill.killed_ns - steps[-1].end_ns) * 1e-9
            kill.kept = f"{len(steps)} steps, up to {max(missing_s, 0.0):.2f} s before the kill"
            kill.expect(len(steps) >= before, f"{before} steps were in the file, now {len(steps)} are")
            kill.expect([step.id for step in steps] == list(range(len(steps))), "steps are missing in between")
            kill.expect(missing_s <= LATEST_S, f"the last {missing_s:.2f} s are missing")


class Bench(Command):
    """Rows that were measured stay as they are; the same command adds the others, with the same losses."""

    name = "bench"
    KILLS = ((CONNECTION, IN_ROW, 1), (RUNNER, IN_ROW, 2), (HOST, ROW, 1))

    def __init__(self, bed: Bed) -> None:
        super().__init__(bed)
        self.words = ("bench", str(packaged(bed)), "--batch", "4,16", "--steps", "1500", "--cool", "0", "--no-page")

    def results(self, folder: Path) -> Path:
        return folder / "bench-results"

    def undisturbed(self) -> None:
        self.bed.finish(*self.words, folder=self.folder)
        self.plain = trained(rows_of(self.results(self.folder)))

    def kill(self, folder: Path, victim: str, when: str, number: int) -> Kill:
        results, lines = self.results(folder), list[str]()

        def moment(host: int) -> str:
            lines[:] = lines_of(results)
            done = f"{len(lines)} of {len(self.plain)} rows"
            if when == ROW:
                return done if len(lines) >= number else ""
            named = {json.loads(line).get("run") for line in lines}
            runs = [path for path in (results / "runs").glob("*.run") if f"runs/{path.name}" not in named]
            steps = max(map(steps_in, runs), default=0)
            there = len(lines) == number - 1 and steps >= SOME
            return f"{done}, and {steps} steps of the next" if there else ""

        kill = self.bed.disturb(*self.words, folder=folder, victim=victim, when=f"{when} {number}", moment=moment)
        kept, measured = lines_of(results), trained(rows_of(results))
        kill.kept = "1 measured row" if len(measured) == 1 else f"{len(measured)} measured rows"
        kill.expect(kept[: len(lines)] == lines, "rows from before the kill are missing or changed")
        # A lost connection ends one run. The others go on.
        kill.expect(victim == HOST or len(measured) == len(self.plain) - 1, "the other runs did not go on")
        kill.expect(victim == HOST or "--retry" in kill.said, "it does not say how to repeat the lost run")
        self.bed.finish(*self.words, *(() if victim == HOST else ("--retry",)), folder=folder)
        kill.expect(lines_of(results)[: len(kept)] == kept, "continuing changed rows that were there")
        kill.expect(len(lines_of(results)) == len(kept) + len(self.plain) - len(measured), "a run was measured twice")
        self.compare(kill, results)
        for run in (results / "runs").glob("*.run"):
            check_run(kill, run)
        return kill

    def compare(self, kill: Kill, results: Path) -> None:
        got = trained(rows_of(results))
        kill.expect(got == self.plain, f"the losses are {got} instead of {self.plain}")
        kill.continued = "all rows, with the same losses" if got == self.plain else "other losses"


class Liu2019(Bench):
    """A study that fills a results folder. Its runs last for a time, so that their losses differ."""

    name = "study liu2019"
    KILLS = ((RUNNER, IN_ROW, 1), (HOST, IN_ROW, 2))

    def __init__(self, bed: Bed) -> None:
        super().__init__(bed)
        model = ("--workloads", str(packaged(bed)), "--batch", "4,16")
        self.words = ("study", "liu2019", *model, "--seconds", "2", "--cool", "0", "--no-page")

    def results(self, folder: Path) -> Path:
        return folder / "liu2019"

    def compare(self, kill: Kill, results: Path) -> None:
        study = json.loads((results / "liu2019.json").read_text())
        states = [row["status"] for row in study["rows"]]
        kill.expect(states == ["measured"] * len(self.plain), f"the study has {states}")
        kill.continued = "all runs measured" if set(states) == {"measured"} else "runs without a result"


class Das2022(Command):
    """Parts that were measured stay as they are, through all kills; the same command adds the others."""

    name = "study das2022"
    KILLS = ((CONNECTION, PART, 1), (RUNNER, PART, 2), (HOST, PART, 3))
    words = ("study", "das2022", "--models", "m1,m2", "--widths", "16", "--steps", "20", "--no-page")

    def __init__(self, bed: Bed) -> None:
        super().__init__(bed)
        self.seen: dict[str, Any] = {}

    def undisturbed(self) -> None:
        self.bed.finish(*self.words, folder=self.folder / "plain")

    def _parts(self, where: str = "torn") -> dict[str, Any]:
        """The measured parts of a result, by their names."""
        with contextlib.suppress(OSError, ValueError):
            result = json.loads((self.folder / where / "das2022" / "das2022.json").read_text())
            transfers = {"transfers": [result["transfers"], result["launches"]]} if result["launches"] else {}
            return {**transfers, **result["models"], **{f"width {row['width']}": row for row in result["sweep"]}}
        return {}

    def kill(self, folder: Path, victim: str, when: str, number: int) -> Kill:
        torn, parts, work = self.folder / "torn", dict[str, Any](), Work(self.bed)

        def moment(host: int) -> str:
            parts.update(self._parts())
            return ", ".join(parts) if len(parts) >= number and work.begun() else ""

        kill = self.bed.disturb(*self.words, folder=torn, victim=victim, when=f"{when} {number}", moment=moment)
        kept = self._parts()
        kill.kept = ", ".join(kept)
        kill.expect({name: kept.get(name) for name in parts} == parts, "measured parts are missing or changed")
        kill.expect(victim == HOST or "same command to continue" in kill.said, "it does not say how to continue")
        self.seen |= parts
        return kill

    def conclude(self) -> None:
        self.bed.finish(*self.words, folder=self.folder / "torn")
        parts, plain = self._parts(), self._parts("plain")
        same = {name: parts.get(name) for name in self.seen} == self.seen
        for kill in self.own_kills():
            kill.expect(list(parts) == list(plain), f"the study has {list(parts)}")
            kill.expect(same, "parts were measured again, or changed")
            kill.continued = "all parts, the measured ones unchanged" if same else "other parts"


class Doctor(Command):
    """Killed while it checks the driver. The next one works, and finds what the one after another kill finds."""

    name = "doctor"
    KILLS = ((CONNECTION, CHECK, 1), (HOST, CHECK, 2))

    def undisturbed(self) -> None:
        self.first: dict[str, Any] | None = None

    def _facts(self, name: str) -> dict[str, Any]:
        (device,) = json.loads(self.bed.finish("doctor", "--json", folder=self.folder / name).out)["devices"]
        return {"passed": device["passed"], "avoid": device["check"]["avoid"], "failures": device["check"]["failures"]}

    def kill(self, folder: Path, victim: str, when: str, number: int) -> Kill:
        drivers, work = self.bed.folder / "cache" / "drivers", Work(self.bed)
        for known in drivers.glob("*.json"):
            known.unlink()

        def moment(host: int) -> str:
            checks = any("handheld.drivers.worker" in command_line(process) for process in family_of(host))
            return "a part of the check" if checks and work.begun() else ""

        kill = self.bed.disturb("doctor", folder=folder, victim=victim, when=when, moment=moment)
        stored = any(drivers.glob("*.json"))
        if victim == CONNECTION:
            kill.said = (
                self.bed.words_of((folder / "stdout").read_text()).partition("result ")[2].partition(" what ")[0]
            )
            kill.expect(kill.code == 1 and "was lost" in kill.said, "it does not say that the target was lost")
        kill.kept = "a verdict about the driver" if stored else "no verdict about the driver"
        kill.expect(not stored, "an unfinished check was stored")
        facts = self._facts(f"again{number}")
        self.first = self.first or facts
        good = facts == self.first == {"passed": True, "avoid": "", "failures": []}
        kill.expect(good, f"the next one found {facts}")
        kill.continued = "a complete check" if good else "another verdict"
        return kill


COMMANDS: tuple[type[Command], ...] = (Doctor, Train, Profile, Bench, Das2022, Liu2019)


def packaged(bed: Bed) -> Path:
    """A step file that several commands run. It is opened sooner than a model."""
    path = bed.folder / "mlp.step"
    if not path.exists():
        bed.package("mlp", "--batch", "4,16", "--out", path.name, folder=bed.folder)
    return path
