"""The process of one device of a fleet: runs an ordinary command, and reports what it does to the fleet's process.

The standard output of the command, one JSON document, and its standard error go to files. Ctrl-C comes from the
fleet's process, as the signal SIGINT. The process ends when that one ends.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from handheld.child import Parent


def main() -> None:
    parent = Parent()
    task = parent.receive()
    if task is None:
        return
    for path, number in ((task["document"], 1), (task["log"], 2)):
        with Path(path).open("wb") as file:
            os.dup2(file.fileno(), number)
    # A signal during an import may be lost, so the fleet's process waits for this message before it sends one.
    from handheld.cli.main import main as command

    signal.signal(signal.SIGINT, signal.default_int_handler)

    def work() -> None:
        parent.send({"ready": True})
        command(task["words"])

    with parent.reporting():
        code = _ended(work)
    sys.stdout.flush()
    sys.exit(code)


def _ended(command: Callable[[], None]) -> int:
    """The exit code of the command."""
    try:
        command()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception:  # A bug: the log has it.
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main()
