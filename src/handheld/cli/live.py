"""Shows a run file while it is written, from a separate process so that the run is not slowed down.

`handheld profile --live` starts it as `python -m handheld.cli.live FILE.run`. It ends when its
standard input is closed, and leaves nothing on the screen.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from handheld.analyse.run import Run, open_run
from handheld.cli import output, run_tables
from handheld.errors import RunFileError

EVERY_S = 1.0
BUSY = 0.1  # Largest average share of a core: a large file is read less often.
OPS = 8


@contextlib.contextmanager
def watching(path: Path) -> Iterator[None]:
    """Show the file until the block ends."""
    process = subprocess.Popen(
        (sys.executable, "-W", "ignore", "-m", "handheld.cli.live", str(path)),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stdin is not None
    try:
        yield
    finally:
        process.stdin.close()
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def so_far(path: Path) -> Group:
    """What the file holds so far."""
    try:
        with open_run(path) as run:
            if not run.steps():
                return Group(Text("preparing", style="bold"))
            return Group(_how_far(run), *run_tables.live(run, OPS))
    except RunFileError:  # The file does not exist yet.
        return Group(Text("preparing", style="bold"))


def _how_far(run: Run) -> Text:
    settings = run.meta.get("settings") or {}
    done = len(run.steps()) // max(len(settings.get("graphs", ())), 1)
    steps = settings.get("steps")
    windows = len(run.file.rows("SELECT 1 FROM energy_window"))
    text = f"{done} of {output.count(steps, 'step')}" if steps else output.count(done, "step")
    ahead_ns = (run.meta.get("clock") or {}).get("ahead_ns", 0)  # of the clock of a target
    seconds = (time.monotonic_ns() + ahead_ns - run.meta["begun_monotonic_ns"]) * 1e-9
    return Text.assemble(
        (text, "bold"),
        f", {output.count(windows, 'window')} for energy" if windows else "",
        (f"  {output.duration(seconds)}", "dim"),
    )


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The profile command handles Ctrl-C.
    with contextlib.suppress(OSError):
        os.nice(10)
    path = Path(sys.argv[1])
    wait = 0.2
    with Live(console=Console(stderr=True, highlight=False), transient=True, auto_refresh=False) as screen:
        while not select.select([0], [], [], wait)[0]:
            begun = time.process_time()
            screen.update(so_far(path), refresh=True)
            wait = max(EVERY_S, (time.process_time() - begun) / BUSY)


if __name__ == "__main__":
    main()
