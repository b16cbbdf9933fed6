"""The command line: one file a command. `entry` is what the `handheld` script calls."""

from __future__ import annotations

import sys


def entry() -> None:
    """Imports take seconds on a small device: Ctrl-C there leaves no traceback either."""
    try:
        from handheld.cli.main import main
    except KeyboardInterrupt:
        sys.stderr.write("stopped: interrupted\n")
        raise SystemExit(130) from None
    main()
