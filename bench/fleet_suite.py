"""Whether a fleet of three local targets finishes the small suite although one is lost on the way, and resumes.

    python bench/fleet_suite.py --json results/fleet_suite.json

`handheld bench` runs every workload of the suite on `--on fleet:all`: PoCL, the native runner and PyTorch's operators,
as three targets of this machine. When one of them has finished some workloads, its process is killed (SIGKILL). The
others must go on to their end; then the same command runs again and must finish the lost one, without repeating what
was done. What counts is completeness: three targets share one processor, so no time of a step is worth keeping.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from result_file import Row, device_id, save

from handheld import suite
from handheld.backends.base import describe
from handheld.bench.folder import open_results
from handheld.bench.shapes import Row as Result
from handheld.errors import ResultsError

FLEET = """\
[devices.pocl]
target = "opencl"
[devices.native]
target = "runner"
[devices.reference]
target = "reference:cpu"
"""
TARGETS, LOST = ("pocl", "native", "reference"), "native"
#: The target is killed after so many workloads.
BEFORE = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=list(suite.WORKLOADS), metavar="NAME")
    parser.add_argument("--before", type=int, default=BEFORE, metavar="N", help="workloads before the kill")
    parser.add_argument("--folder", type=Path, help="keep the folder of the fleet here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="bring the figures into a result file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="handheld-fleet-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "fleet.toml").write_text(FLEET)
        row = measured(folder, options.workloads, options.before)
    print(f"{row.what}: {row.value} {row.unit} {row.details}")
    if options.json:
        save(options.json, "A fleet finishes the suite", [row])


def measured(folder: Path, workloads: list[str], before: int) -> Row:
    """Run the fleet, kill one target, run it again."""
    command = [sys.executable, "-m", "handheld", "bench", *workloads, "--on=fleet:all", "--steps=2", "--cool=0"]
    command += ["--out=results"]
    with (folder / "first.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        while len(rows(folder, LOST)) < before:
            if process.poll() is not None:
                raise SystemExit(f"the fleet ended before the kill; see {log.name}")
            time.sleep(0.2)
        kill(process.pid, LOST)
        first = process.wait()
    kept = {target: rows(folder, target) for target in TARGETS}
    with (folder / "second.log").open("wb") as log:
        second = subprocess.run(command, cwd=folder, stdout=log, stderr=log, check=False).returncode
    found = {target: [row for row in rows(folder, target) if row["workload"] in workloads] for target in TARGETS}
    repeated = sum(row not in rows(folder, target) for target in TARGETS for row in kept[target])
    caps = describe("opencl")
    return Row(
        f"{len(workloads)} small workloads on three targets, one lost and resumed",
        device_id(caps.name, caps.driver),
        sum(len({row["workload"] for row in found[target]}) for target in TARGETS),
        "finished",
        command="python bench/fleet_suite.py",
        goal=f"value >= {len(TARGETS) * len(workloads)}",
        details={
            "trained": sum(row["status"] == "trained" for target in TARGETS for row in found[target]),
            "done before the loss": len(kept[LOST]),
            "done by the others then": sum(len(kept[target]) for target in TARGETS if target != LOST),
            "repeated": repeated,
            "exit codes": f"{first}, {second}",
        },
        figures={
            "not trained": {
                target: {row["workload"]: row["reason"] for row in found[target] if row["status"] != "trained"}
                for target in TARGETS
            }
        },
    )


def rows(folder: Path, target: str) -> list[Result]:
    """The workloads that a target has finished."""
    try:
        return open_results(folder / "results" / target).rows
    except ResultsError:
        return []


def kill(fleet: int, target: str) -> None:
    """Kill the process of a target, and those that it started."""
    for child in psutil.Process(fleet).children():
        if any(file.path.endswith(f"fleet/{target}.json") for file in child.open_files()):
            for process in (child, *child.children(recursive=True)):
                process.kill()
            return
    raise SystemExit(f"the fleet has no process for {target}")


if __name__ == "__main__":
    main()
