"""The command line, one file per command. The `handheld` script calls `entry`."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

PATIENCE_S = 0.5


def entry() -> None:
    """Run the command line. Ctrl-C shows no traceback, also not before a command begins: the imports, which take
    seconds on a small device, and the parsing of the words."""
    try:
        with _starting():
            from handheld.cli.main import main
        main()
    except KeyboardInterrupt:
        sys.stderr.write("stopped: interrupted\n")
        raise SystemExit(130) from None


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """On a terminal, say that the imports are under way if they take long, and remove that again."""
    if not sys.stderr.isatty() or "--json" in sys.argv:
        yield
        return

    def show() -> None:
        sys.stderr.write("starting")
        sys.stderr.flush()

    timer = threading.Timer(PATIENCE_S, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        sys.stderr.write("\r\x1b[K")
