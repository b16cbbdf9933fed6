"""Checks a device within a given time: are its results right, and how fast is it?

    python scripts/check_device.py --out FOLDER [--on opencl] [--minutes 9] [--parts cases,peers]
                                   [--jobs N]

Parts that check results run first and use all cores. Parts that measure run after them, one at a time,
in the order of --parts. The output of a part is in FOLDER/PART.txt, or FOLDER/PART.N.txt for each of its
processes; figures are in FOLDER/PART.json. A part that runs out of time is stopped and reported, and parts
that were not reached are listed at the end. The exit code is 0 if every part that ran succeeded.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODELS = ("mlp", "lenet5", "mobilenet_v2", "resnet18", "squeezenet", "lstm_lm", "transformer", "dcgan")


@dataclass(frozen=True)
class Part:
    """Commands that may take `seconds` in total. `{on}`, `{json}` and `{folder}` (a new folder) are filled in.
    Several commands, or the shards of one with `{shard}`, run at the same time."""

    name: str
    seconds: int
    commands: tuple[str, ...]

    @property
    def together(self) -> bool:
        return len(self.commands) > 1 or "{shard}" in self.commands[0]


PARTS = (
    Part("equality", 240, tuple(f"scripts/check_equality.py --on {{on}} --steps 10 --only {m}" for m in MODELS)),
    Part(
        "cases",
        400,
        (
            "-m pytest -q --tb=short -p no:cacheprovider --all-cases "
            "--shard {shard} tests/cases/test_cases.py -k opencl",
        ),
    ),
    Part(
        "variants",
        560,
        (
            "-m pytest -q --tb=short -p no:cacheprovider --all-variants "
            "--shard {shard} tests/cases/test_variants.py -k 'every and own'",
        ),
    ),
    Part(
        "peers", 150, ("bench/peers.py --on {on} --only small --against eager --rounds 7 --seconds 0.2 --json {json}",)
    ),
    Part(
        "large", 150, ("bench/peers.py --on {on} --only large --against eager --rounds 3 --seconds 0.3 --json {json}",)
    ),
    Part("kernels", 150, ("bench/kernels.py --on {on} --rounds 5 --seconds 0.1 --json {json}",)),
    Part("das2022", 240, ("-m handheld study das2022 --on {on} --out {folder}",)),
    Part(
        "liu2019",
        260,
        (
            "-m handheld study liu2019 --on {on} --workloads squeezenet,resnet50,"
            "densenet40,char_cnn,dqn --batch 4,64 --cool 0 --out {folder}",
        ),
    ),
    Part("bench", 540, ("-m handheld bench --on {on} --seconds 2 --cool 1 --out {folder}",)),
    Part("memory", 60, ("bench/memory.py --on {on} --only bcde --json {json}",)),
    Part("first_step", 120, ("bench/first_step.py --on {on} --json {json}",)),
    Part("overhead", 180, ("bench/overhead.py --on {on} --only small --rounds 5 --seconds 0.5 --json {json}",)),
    Part("accounts", 500, ("bench/accounts.py --on {on} --minutes 7.5 --out {folder}",)),
)
#: these parts are tests, which always run on the first OpenCL device
FIRST = ("cases", "variants")


class Check:
    def __init__(self, on: str, out: Path, jobs: int, until: float) -> None:
        self.on, self.out, self.jobs, self.until = on, out, jobs, until
        self.failed: list[str] = []

    def run(self, part: Part) -> None:
        began = time.monotonic()
        limit = min(part.seconds, self.until - began)
        lines = self._lines(part)
        logs = [
            self.out / (f"{part.name}.{i}.txt" if len(lines) > 1 else f"{part.name}.txt") for i in range(len(lines))
        ]
        # Processes that run at the same time would slow each other down with more threads.
        settings = {**os.environ, **({"OMP_NUM_THREADS": "1"} if part.together else {})}
        children = [_start(line, log, settings) for line, log in zip(lines, logs, strict=True)]
        codes = [_wait(child, began + limit) for child in children]
        text = [log.read_text(errors="replace") for log in logs]
        print(f"{part.name}: {time.monotonic() - began:.0f} s, {_verdict(codes)}", flush=True)
        for line in _summary(text):
            print(f"  {line}", flush=True)
        if any(code != 0 for code in codes):
            self.failed.append(part.name)

    def _lines(self, part: Part) -> list[str]:
        count = self.jobs if "{shard}" in part.commands[0] else 1
        return [
            command.format(
                on=self.on, json=self.out / f"{part.name}.json", folder=self.out / part.name, shard=f"{i + 1}/{count}"
            )
            for command in part.commands
            for i in range(count)
        ]


def _start(line: str, log: Path, settings: dict[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, *shlex.split(line)], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, env=settings
        )


def _wait(child: subprocess.Popen[bytes], until: float) -> int | None:
    """The exit code, or None if the process was stopped."""
    try:
        return child.wait(max(until - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGINT)  # pytest and handheld then print their results so far.
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        return None


def _verdict(codes: Sequence[int | None]) -> str:
    bad = [code for code in codes if code]
    stopped = sum(code is None for code in codes)
    words = [f"{sum(code == 0 for code in codes)} of {len(codes)} ended well"]
    words += [f"exit codes {sorted(set(bad))}"] if bad else []
    words += [f"{stopped} out of time"] if stopped else []
    return ", ".join(words)


def _summary(logs: Sequence[str]) -> list[str]:
    """For tests: the total counts and the names of failed tests. For other parts: the last lines of output."""
    progress = re.compile(r"^([.sFEx]{2,}|[.sFEx](?= +\[))", re.M)
    dots = "".join("".join(progress.findall(log)) for log in logs)
    if dots:
        counts = {
            what: dots.count(mark)
            for what, mark in (("passed", "."), ("failed", "F"), ("errors", "E"), ("skipped", "s"))
        }
        named = [line for log in logs for line in log.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return [", ".join(f"{n} {what}" for what, n in counts.items() if n), *named[:20]]
    most = 1 if len(logs) > 1 else 14
    return [line for log in logs for line in log.rstrip().splitlines()[-most:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--jobs", type=int, default=max((os.cpu_count() or 2) - 2, 1))
    parser.add_argument("--parts", default=",".join(part.name for part in PARTS))
    options = parser.parse_args()
    known = {part.name: part for part in PARTS}
    names = [name for name in options.parts.split(",") if name]
    if unknown := [name for name in names if name not in known]:
        parser.error(f"there is no part {', '.join(unknown)}. Try: {', '.join(known)}")
    if options.on != "opencl" and (fixed := [n for n in names if n in FIRST]):
        parser.error(
            f"{', '.join(fixed)} run on the first OpenCL device, whatever --on says. Try: "
            "leave them out, or set OCL_ICD_VENDORS so that only that device is visible"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    check = Check(options.on, options.out.resolve(), options.jobs, time.monotonic() + 60 * options.minutes)
    left = sorted((known[name] for name in names), key=lambda part: not part.together)
    while left and check.until - time.monotonic() > 5:
        check.run(left.pop(0))
    if left:
        print("no time left for:", ", ".join(part.name for part in left))
    sys.exit(bool(check.failed))


if __name__ == "__main__":
    main()
