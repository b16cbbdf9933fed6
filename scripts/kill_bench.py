"""Kills benchmarks at random moments, resumes them, and checks that nothing is lost or run twice.

    python scripts/kill_bench.py [--times 2] [--seed 0] [--out FOLDER] [--most SECONDS]
                                 [--json] [-- NAMES and options of handheld bench]

`handheld bench` runs in its own process. It is killed `--times` times with SIGKILL, each time after a
random time of up to `--most` seconds, and started again with the same command. The last run finishes.
Then every case must have one row, no row from before a kill may be missing or changed, and every run
file must open. Without names, four small workloads run on OpenCL.

    python scripts/kill_bench.py --most 600                              # four small workloads
    python scripts/kill_bench.py --most 900 -- --on opencl,pytorch:cpu   # all workloads, as bench does
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import handheld
from handheld import bench
from handheld.errors import HandheldError

SMALL = ["m1", "m3", "mlp", "lenet5", "--on", "opencl", "--seconds", "1", "--cool", "0"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=2, help="number of kills")
    parser.add_argument("--most", type=float, default=30.0, help="most seconds until a kill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="keep the results in this folder")
    parser.add_argument("--json", action="store_true", help="print one document")
    parser.add_argument("command", nargs="*", help="names and options of handheld bench")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.out or Path(stack.enter_context(tempfile.TemporaryDirectory())) / "results"
        found = trial(
            folder,
            options.command or SMALL,
            options.times,
            options.most,
            random.Random(options.seed),
            (lambda *_: None) if options.json else print,
        )
    if options.json:
        print(json.dumps(found))
    return 1 if found["problems"] else 0


def trial(folder: Path, words: list[str], times: int, most: float, draw: random.Random, say: Any) -> dict[str, Any]:
    begun, kills = time.monotonic(), []
    before: list[dict[str, Any]] = []
    problems: list[str] = []
    for n in range(times + 1):
        after = draw.uniform(0, most) if n < times else None
        how = once(folder, words, after)
        lines = kept(folder)
        problems += lost(before, lines)
        kills.append({"after_s": after, "rows": len(lines), "ended": how})
        say(
            f"{'killed after ' + format(after, '.1f') + ' s' if after and how == 'killed' else how}"
            f": {len(lines)} rows, {len(lines) - len(before)} new",
            flush=True,
        )
        before = lines
        if how not in ("killed", "finished"):
            problems.append(how)
            break
    problems += unsound(folder)
    seconds = time.monotonic() - begun
    say(
        "\n".join(problems)
        or f"nothing lost, nothing run twice: {len(before)} rows in "
        f"{seconds:.0f} s, with {sum(k['ended'] == 'killed' for k in kills)} kills"
    )
    return {"kills": kills, "rows": len(before), "seconds": seconds, "problems": problems}


def once(folder: Path, words: list[str], after: float | None) -> str:
    """Runs handheld bench until it ends, or kills it after `after` seconds; returns how it ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "handheld", "bench", *words, "--out", str(folder), "--json"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _, errors = process.communicate(timeout=after)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return "killed"
    return "finished" if process.returncode == 0 else f"failed: {errors.strip()[-500:]}"


def kept(folder: Path) -> list[dict[str, Any]]:
    try:
        return bench.open_results(folder).lines
    except HandheldError:  # It was killed before it wrote anything.
        return []


def lost(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    return [] if after[: len(before)] == before else ["rows from before the kill are missing or changed"]


def unsound(folder: Path) -> list[str]:
    """The problems of the results folder of a finished run."""
    results = bench.open_results(folder)
    keys = [row["key"] for row in results.lines]
    wanted = {bench.Case(**case).key for case in results.info["cases"]}
    problems = [f"{key} has {keys.count(key)} rows" for key in {*keys, *wanted} if keys.count(key) != 1]
    for row in results.rows:
        path = results.run_path(row)
        if path is None:
            if row["status"] == "trained":
                problems.append(f"{row['key']} has no run file")
            continue
        try:
            with handheld.open_run(path) as run:
                if row["status"] == "trained" and not run.complete:
                    problems.append(f"{path} is not complete")
        except HandheldError as error:
            problems.append(str(error))
    named = {row["run"] for row in results.rows if row.get("run")}
    files = {f"runs/{path.name}" for path in (folder / "runs").iterdir()}
    problems += [f"{name} belongs to no row" for name in sorted(files - named)]
    return problems


if __name__ == "__main__":
    sys.exit(main())
