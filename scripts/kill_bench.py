"""Kills benchmarks at random moments, resumes them, and checks that nothing is lost or run twice.

    python scripts/kill_bench.py [--times 2] [--seed 0] [--out FOLDER] [--most SECONDS]
                                 [--json] [-- NAMES and options of handheld bench]

`handheld bench` runs in a process of its own, which is killed with SIGKILL, `--times` times, each
after a random time of up to `--most` seconds, and started again with the same command; the last
time it comes to its end. Then every case must have one row, no row that was there before a kill may
be gone or changed, and every run file must open. Without names: four small workloads, on OpenCL.

    python scripts/kill_bench.py --most 600                       # four small ones
    python scripts/kill_bench.py --most 900 -- --on opencl,pytorch:cpu   # all, as bench does
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
    parser.add_argument("--times", type=int, default=2, help="kills")
    parser.add_argument("--most", type=float, default=30.0, help="seconds until a kill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="keep the results there")
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
        if how not in ("killed", "came to its end"):
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
    """Runs it until it ends, or is killed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "handheld", "bench", *words, "--out", str(folder), "--json"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _, said = process.communicate(timeout=after)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return "killed"
    return "came to its end" if process.returncode == 0 else f"failed: {said.strip()[-500:]}"


def kept(folder: Path) -> list[dict[str, Any]]:
    try:
        return bench.open_results(folder).lines
    except HandheldError:  # killed before there was anything
        return []


def lost(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    return [] if after[: len(before)] == before else ["rows that were there are gone or changed"]


def unsound(folder: Path) -> list[str]:
    """What is wrong with a folder that came to its end."""
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
                    problems.append(f"{path} did not come to its end")
        except HandheldError as error:
            problems.append(str(error))
    named = {row["run"] for row in results.rows if row.get("run")}
    files = {f"runs/{path.name}" for path in (folder / "runs").iterdir()}
    problems += [f"{name} belongs to no row" for name in sorted(files - named)]
    return problems


if __name__ == "__main__":
    sys.exit(main())
