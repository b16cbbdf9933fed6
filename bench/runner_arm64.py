"""Trains with the ARM64 runner in emulation, and compares every value with PyTorch in float64.

    scripts/arm64_root build/arm64                                    # once: Debian arm64 with its PoCL
    python bench/runner_arm64.py --root build/arm64 [--steps 3] [--only lenet5,lstm_lm] [--json FILE]
    python bench/runner_arm64.py --root build/arm64 --android         # the Android executable

Each step starts from the state of PyTorch's float64. A value passes if its error is at most four times that of
PyTorch's own float32, plus 1e-6, as in scripts/check_equality.py. The same comparison runs with the x86-64 runner
first. Times in emulation say nothing about a board.

With --android, the executable for Android runs on the emulated Debian. Two small libraries, `libc.so` and `libdl.so`,
stand in for Android's: they offer its names (`__libc_init`, `__errno`, `sysconf` with its numbers) over glibc. This
tries the start-up code, the hand-written declarations and the calls. It does not try Android's linker.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

from result_file import Row, save

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]
from check_equality import SMALL, problem  # noqa: E402

from handheld import suite  # noqa: E402
from handheld.runners.compilers import gcc, zig  # noqa: E402
from handheld.runners.find import OVERRIDE, find  # noqa: E402
from handheld.runners.platforms import named  # noqa: E402
from handheld.targets.local import COMMAND  # noqa: E402
from helpers.equality import compare_updates, excess  # noqa: E402

MODELS = ("lenet5", "lstm_lm", "mobilenet_v2")
STAND_IN = """
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
int *__errno(void) { return &errno; }
void __libc_init(long *stack, void (*at_exit)(void), int (*run)(int, char **, char **), const void *lists) {
    (void)at_exit, (void)lists;
    char **arguments = (char **)(stack + 1);
    exit(run((int)stack[0], arguments, arguments + stack[0] + 1));
}
/* Android's numbers differ from glibc's. */
extern long glibc_sysconf(int) __asm__("__sysconf");
long sysconf(int what) {
    return glibc_sysconf(what == 0x27 ? _SC_PAGESIZE : what == 0x61 ? _SC_NPROCESSORS_ONLN : what);
}
"""


@dataclass(frozen=True)
class Result:
    """The comparison of one model on one runner."""

    values: int
    over: int
    kinks: int
    worst: float
    what: str
    device: str
    ready_s: float
    step_s: float


def emulated(root: Path, android: bool, folder: Path) -> dict[str, str]:
    """The variables with which the local target starts the ARM64 runner in emulation."""
    command = [str(ROOT / "scripts" / "arm64_run"), str(root)]
    if android:
        libraries = stand_ins(folder)
        loader = root / "lib" / "ld-linux-aarch64.so.1"
        system = "/usr/lib/aarch64-linux-gnu:/lib/aarch64-linux-gnu"
        command += [str(loader.resolve()), "--library-path", f"{libraries}:{system}"]
    runner = find("android-arm64" if android else "linux-arm64")
    return {
        OVERRIDE: str(runner),
        COMMAND: shlex.join(command),
        # Building in emulation takes minutes, so what was built is kept for the next time.
        "HANDHELD_CACHE": f"{root}.cache/handheld",
        "POCL_CACHE_DIR": f"{root}.cache/pocl",
        "HANDHELD_OPENCL": "libOpenCL.so.1",
        # The loader of this machine's PoCL wheel must not lead the emulated one to x86-64 libraries.
        "OCL_ICD_VENDORS": "/etc/OpenCL/vendors",
    }


def stand_ins(folder: Path) -> Path:
    """A folder with libraries under Android's names that a glibc serves."""
    where = folder / "libraries"
    where.mkdir()
    platform = named("linux-arm64")
    compiler = gcc(platform) or zig(platform)
    assert compiler is not None, "needs zig or gcc-aarch64-linux-gnu"
    for name, text in (("libc.so", STAND_IN), ("libdl.so", "int handheld_stand_in;\n")):
        (where / f"{name}.c").write_text(text)
        flags = ["-shared", "-fPIC", f"-Wl,-soname,{name}", str(where / f"{name}.c"), "-o", str(where / name)]
        subprocess.run([*compiler.command, *flags], check=True)
    return where


def compare(name: str, steps: int) -> Result:
    """Trains a model through the local runner as the environment describes it."""
    batch, options = SMALL[name]
    step, modules, updates, batches = problem(suite.get(name, **options), batch, steps)
    started = time.perf_counter()
    plan = step.plan("runner", graphs=[u.graph for u in updates])
    with plan.start() as trainer:
        ready = time.perf_counter()
        found = compare_updates(modules, updates, trainer, batches)
        ended = time.perf_counter()
    noise = [row for row in found.over if row[2] >= 1]
    rows = [row for row in found.rows if row not in noise]
    return Result(
        values=len(found.rows) + len(found.kinks),
        over=sum(excess(row) > 1 for row in rows),
        kinks=len(found.kinks),
        worst=excess(rows[0]),
        what=rows[0][0],
        device=f"{plan.caps.name} {plan.caps.driver}",
        ready_s=ready - started,
        step_s=(ended - ready) / steps,
    )


def apart(name: str, steps: int, variables: dict[str, str]) -> Result:
    """`compare` in a process of its own: a process keeps the runner that it has started."""
    command = [sys.executable, __file__, "--root", ".", "--steps", str(steps), "--one", name]
    done = subprocess.run(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, check=True, text=True)
    return Result(**json.loads(done.stdout.splitlines()[-1]))


def row_of(name: str, label: str, result: Result) -> Row:
    print(
        f"{name:14} {label:13} {result.values:6} values, {result.over} over, {result.kinks} kinks, worst "
        f"{result.worst:.2f} ({result.what}); ready after {result.ready_s:.0f} s, {result.step_s:.1f} s per step; "
        f"{result.device}",
        flush=True,
    )
    return Row(
        what=f"{name}, {label}",
        device="arm64-emulated" if label != "linux-x86_64" else "pocl-3.0",
        value=result.over,
        unit="values over the limit",
        goal="value <= 0",
        details={"values": result.values, "kinks": result.kinks, "worst": round(result.worst, 2)},
        figures={"ready_s": round(result.ready_s, 1), "step_s": round(result.step_s, 2), "driver": result.device},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="the folder that scripts/arm64_root filled")
    parser.add_argument("--android", action="store_true", help="run the Android executable")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.one:
        print(json.dumps(asdict(compare(options.one, options.steps))))
        return
    label = "android-arm64" if options.android else "linux-arm64"
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        variables = emulated(options.root.resolve(), options.android, Path(folder))
        for name in options.only.split(","):
            if not options.android:
                rows.append(row_of(name, "linux-x86_64", apart(name, options.steps, {})))
            rows.append(row_of(name, label, apart(name, options.steps, variables)))
            if options.json:
                save(options.json, "ARM64 in emulation", rows)
    raise SystemExit(any(row.value for row in rows))


if __name__ == "__main__":
    main()
