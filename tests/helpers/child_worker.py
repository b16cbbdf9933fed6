"""A child process for the tests of handheld.child: it does what each message says."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from handheld.child import Parent
from handheld.progress import report


def main() -> None:
    parent = Parent()
    while (message := parent.receive()) is not None:
        match message["do"]:
            case "echo":
                print("a driver's noise", flush=True)
                os.write(1, b'{"noise": 1}\n')
                parent.send({"heard": message["what"]})
            case "start":
                held = subprocess.Popen(["sleep", "600"])  # It inherits the standard error.
                parent.send({"pid": held.pid})
            case "exit":
                print("last words", file=sys.stderr, flush=True)
                sys.exit(message["code"])
            case "abort":
                os.abort()
            case "work":
                with parent.reporting():
                    for n in range(8):
                        report("building", n, 8)
                        time.sleep(0.15)
                parent.send({"done": True})
            case "hang":
                time.sleep(600)


if __name__ == "__main__":
    main()
