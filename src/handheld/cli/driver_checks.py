"""What `handheld doctor` does about drivers: the check of all kernel families, and the op cases (--conformance)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from handheld.cli import output, probe
from handheld.cli.stages import stages
from handheld.conformance.report import bad, counts
from handheld.conformance.run import conformance
from handheld.device import DeviceCaps
from handheld.drivers.check import avoiding, check, checked_for, turned_off
from handheld.drivers.store import Truth, known
from handheld.errors import DeviceError
from handheld.plan.precision import HALF_COMPUTE
from handheld.progress import listener, reporting

Recheck = Annotated[bool, typer.Option("--recheck", help="Check the driver again, although it was checked before.")]
Conformance = Annotated[bool, typer.Option("--conformance", help="Run all op cases on the device and write a report.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FOLDER", help="Folder of that report; default: conformance.")
]
Sample = Annotated[
    int | None, typer.Option("--sample", metavar="N", min=1, help="Only N of the op cases, always the same.")
]


def examine(name: str, caps: DeviceCaps, again: bool) -> tuple[Truth | None, str]:
    """Let the device compute. Returns what is known about its driver, and why the device cannot be used, or "".

    A driver that was never seen is checked, and then the device has computed enough. Otherwise it computes something
    small.
    """
    truth, problem = None if again else known(caps), ""
    if truth is None and (again or not turned_off()):
        with stages(quiet=False, text=f"{name}: checking the driver, only once"):
            try:
                truth = check(name, caps, patient=again)
                if again:
                    _check_halves(name, caps, truth)
            except DeviceError as error:
                return None, f"the driver could not be checked: {error}"
    else:
        with stages(quiet=False, text=f"{name} computes"):
            problem = probe.run_in_child(name)
    if not problem and truth is not None and truth.refused:
        problem = f"{', '.join(truth.refused)} computed wrongly with every kernel; plans with them are refused"
    return truth, problem


def _check_halves(name: str, caps: DeviceCaps, truth: Truth) -> None:
    """Check the kernels in halves too. Otherwise the first plan in halves does it."""
    caps = avoiding(caps, truth)
    for precision in checked_for(caps, HALF_COMPUTE)[1:]:
        caps = avoiding(caps, check(name, caps, patient=True, precision=precision), precision)


def words(truth: Truth | None, caps: DeviceCaps | None = None, on: str = "") -> str:
    """The row about the check. `on` names the device in a command to try."""
    if truth is None:
        return f"not done: HANDHELD_DRIVER_CHECK is off. Try: handheld doctor --recheck{on}"
    halves = [] if caps is None else [known(caps, name) for name in checked_for(caps, HALF_COMPUTE)[1:]]
    rows = [truth, *(other for other in halves if other is not None)]
    return "\n".join(line for row in rows for line in (*row.words(), f"checked {row.date} in {row.seconds:.0f} s"))


def run_cases(on: str | None, out: Path | None, sample: int | None, json: bool) -> None:
    """Run the op cases on a device and print where the report is. Exits with 1 if a case failed."""
    device, folder = on or "opencl", out or Path("conformance")
    columns = (
        TextColumn("{task.completed}/{task.total}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=output.err, transient=True, disable=not output.err.is_terminal) as bar:
        task, outer = bar.add_task("capturing", total=sample), listener()

        def tell(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=name)
            if outer is not None:
                outer(name, done, total)

        def stage(what: str, done: int, total: int) -> None:
            bar.update(task, description=f"{what} {done} of {total}" if total else what)

        with reporting(stage):  # The check of the driver, and programs of a case that take long.
            summary = conformance(device, folder, sample, tell)
    if json:
        output.print_json({**summary, "counts": counts(summary)})
    else:
        output.out.print(", ".join(f"{number} {state}" for state, number in counts(summary).items() if number))
        for result in bad(summary)[:20]:
            output.out.print(f"  {result['case']}: {'; '.join(result['problems'])[:200]}", markup=False)
        output.out.print(f"The report is {folder / 'report.html'} (also as report.md and report.json).")
    if bad(summary):
        raise typer.Exit(1)
