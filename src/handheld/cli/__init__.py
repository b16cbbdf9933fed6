"""The command line, one file per command. The `handheld` script calls `entry`."""

from __future__ import annotations

import sys


def entry() -> None:
    """Run the command line. Ctrl-C during the imports, which take seconds on a small device, shows no traceback."""
    try:
        from handheld.cli.main import main
    except KeyboardInterrupt:
        sys.stderr.write("stopped: interrupted\n")
        raise SystemExit(130) from None
    main()
