"""Measures what the native runner takes: bytes of the executables, resident memory, and time to the first step.

    python bench/runner_footprint.py [--on opencl] [--starts 7] [--steps 300] [--json FILE]

LeNet-5 at batch 32 trains from a plan file: `handheld-runner train`. Memory is the peak of the process as the kernel
reports it (VmHWM). Beside it stand a process that only opens the same OpenCL device (bench/bare_opencl.c: the
driver's own share), one that also runs an empty kernel, and Python with pyopencl, which runs the same steps from a
step file. The time goes from the start of the process to its end after one step, with the binaries that an earlier
start has cached. PoCL is built into the process, so its memory is large; a phone's driver is smaller.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from result_file import Row, device_id, save

from handheld import suite
from handheld.plan import file as plan_file
from handheld.runners.find import find
from handheld.runners.platforms import PLATFORMS, this_machine

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
BATCH = 32
PERIOD_S = 0.002
PYTHON = """
import sys
import numpy as np
import handheld
step, batches, device, steps = handheld.load(sys.argv[1]), np.load(sys.argv[2]), sys.argv[3], int(sys.argv[4])
names = sorted(batches.files)
with step.plan(device).start() as trainer:
    for _ in range(steps):
        loss = trainer.step(*(batches[name] for name in names))
    float(loss)
"""


def run(command: Sequence[str], environment: dict[str, str] | None = None) -> tuple[float, float]:
    """Seconds from start to end, and the most resident memory in MiB."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **(environment or {})})
    most = 0.0
    # ru_maxrss of a child also counts this process's memory, from before its exec. The kernel's figure per process does
    # not, but it has to be read while the process lives.
    while process.poll() is None:
        most = max(most, _peak(process.pid))
        time.sleep(PERIOD_S)
    seconds = time.perf_counter() - started
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} ended with code {process.returncode}")
    return seconds, most


def _peak(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    command = Path(f"/proc/{pid}/cmdline")
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    own = command.is_file() and command.read_bytes() != Path("/proc/self/cmdline").read_bytes()
    return int(found[1]) * 1024 / MIB if found and own else 0.0


def write_batches(path: Path, batch: Sequence[np.ndarray]) -> None:
    data = [np.ascontiguousarray(value, np.int32 if value.dtype.kind in "iu" else np.float32) for value in batch]
    with open(path, "wb") as file:
        file.write(b"HANDBATC" + struct.pack("<IIQ", 2, len(data), 1))
        for value in data:
            file.write(struct.pack(f"<II{value.ndim}Q", int(value.dtype == np.int32), value.ndim, *value.shape))
        for value in data:
            file.write(value.tobytes())


def opencl() -> tuple[str, dict[str, str]]:
    """The OpenCL library that the local runner loads, and the variables that let a plain program load it too."""
    if os.environ.get("HANDHELD_OPENCL"):
        return os.environ["HANDHELD_OPENCL"], {}
    for folder in sys.path:
        for path in sorted(Path(folder or ".", "pyopencl", ".libs").glob("libOpenCL*")):
            return str(path), {"PYOPENCL_HOME": str(path.parent.parent), "LD_LIBRARY_PATH": str(path.parent)}
    return "libOpenCL.so.1", {}


def measure(device: str, starts: int, steps: int, folder: Path) -> list[Row]:
    workload = suite.get("lenet5")
    step = workload.step(BATCH)
    plan = step.plan(device)
    ((_, batch),) = workload.runs(workload.batch(BATCH, 0))
    arrays = [np.asarray(value) for value in batch]
    plan_file.write(plan, folder / "lenet5.plan")
    step.save(folder / "lenet5.step")
    write_batches(folder / "batches", arrays)
    np.savez(folder / "batches.npz", **{f"input{i}": value for i, value in enumerate(arrays)})
    library, variables = opencl()
    runner = [str(find(this_machine())), "train", str(folder / "lenet5.plan"), "--batches", str(folder / "batches")]
    runner += ["--folder", str(folder / "runner"), "--opencl", library]
    subprocess.run(["cc", "-O1", "-o", folder / "bare", HERE / "bare_opencl.c", "-ldl"], check=True)
    bare = [str(folder / "bare"), library, "0"]
    python = [
        sys.executable,
        "-c",
        PYTHON,
        str(folder / "lenet5.step"),
        str(folder / "batches.npz"),
        device,
        str(steps),
    ]

    run([*runner, "--steps", "1"])  # builds the programs
    first = sorted(run([*runner, "--steps", "1"])[0] for _ in range(starts))
    run([*bare, "kernel"], variables)
    driver, kernel = (run([*bare, mode], variables)[1] for mode in ("open", "kernel"))
    ours = run([*runner, "--steps", str(steps)])[1]
    run(python)
    theirs = run(python)[1]

    where = device_id(plan.caps.name, plan.caps.driver)
    return rows_of(where, first, {"runner": ours, "driver": driver, "kernel": kernel, "Python": theirs})


def rows_of(where: str, first: list[float], memory: dict[str, float]) -> list[Row]:
    rows = [
        Row(f"executable, {name}", where, find(name).stat().st_size / 1000, "KB", goal="value <= 200")
        for name in PLATFORMS
    ]
    above = memory["runner"] - memory["driver"]
    rows.append(Row("memory above the driver's, LeNet-5", where, round(above, 1), "MiB", goal="value <= 25"))
    processes = {
        "runner": "memory: the runner",
        "driver": "memory: a process that opens the OpenCL device",
        "kernel": "memory: one that also runs an empty kernel",
        "Python": "memory: Python, from a step file",
    }
    rows += [Row(what, where, round(memory[name], 1), "MiB") for name, what in processes.items()]
    spread = {"fastest": round(first[0], 3), "slowest": round(first[-1], 3)}
    middle = round(statistics.median(first), 3)
    rows.append(Row("start to first step, cached binaries", where, middle, "s", goal="value <= 0.5", figures=spread))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(options.on, options.starts, options.steps, Path(folder))
    for row in rows:
        met = {True: "reached", False: "MISSED", None: ""}[row.met]
        more = ", ".join(f"{name} {value}" for name, value in row.figures.items())
        print(f"{row.what:50} {row.value:8} {row.unit:4} {met} {more}")
    if options.json:
        save(options.json, "The native runner", rows)


if __name__ == "__main__":
    main()
