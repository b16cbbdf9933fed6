"""Kills connections, runners and hosts while commands run on a target, continues, and compares with undisturbed runs.

    python bench/target_faults.py --json results/target_faults.json
    python bench/target_faults.py --only train,bench

The target is a real OpenSSH server on the loopback address. Each of the 20 kills is `kill -9` of one of three victims:
all ssh clients of the command (the connection), the runner that computes, or the command itself (the host). A kill
comes when the command has done something that could be lost: after the n-th checkpoint, step, row or part, or in the
middle of one (fault_commands.py). The result file holds, for each kill, what was done before it, what the command said,
what was kept and what continuing gave.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from fault_commands import COMMANDS  # noqa: E402
from fault_watch import CONNECTION, HOST, RUNNER, Bed, Kill  # noqa: E402
from result_file import Row, device_id, save  # noqa: E402

from helpers.opencl_library import opencl_library  # noqa: E402
from helpers.ssh_server import MISSING, ssh_server  # noqa: E402

TITLE = "Killed targets"


def kill_all(names: list[str], folder: Path) -> tuple[list[Kill], str]:
    """The kills of these commands, and the device."""
    with ssh_server(folder / "server", {"HANDHELD_OPENCL": opencl_library()}) as server:
        bed = Bed(server, folder)
        described = json.loads(bed.finish("target", "info", "--json", folder=folder / "info").out)
        for command in COMMANDS:
            if command.name in names:
                command(bed).run()
        device = described["devices"][0]
        return bed.kills, device_id(device["name"], device["platform_version"])


def rows(kills: list[Kill], device: str) -> list[Row]:
    """One row per command, with each of its kills."""
    found = []
    for name in dict.fromkeys(kill.command for kill in kills):
        own = [kill for kill in kills if kill.command == name]
        victims = {f"{victim}s": sum(kill.victim == victim for kill in own) for victim in (CONNECTION, RUNNER, HOST)}
        found.append(
            Row(
                name,
                device,
                sum(not kill.faults for kill in own),
                "kills without a loss",
                goal=f"value >= {len(own)}",
                details={
                    "kills": len(own),
                    **victims,
                    "continued to": " / ".join(dict.fromkeys(k.continued for k in own)),
                },
                figures={"kills": [kill.to_json() for kill in own]},
            )
        )
    return found


def main() -> None:
    known = [command.name for command in COMMANDS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(known), help="commands, separated by commas; default: all")
    parser.add_argument("--json", type=Path, help="write the result file")
    given = parser.parse_args()
    if MISSING:
        sys.exit(MISSING)
    names = given.only.split(",")
    if unknown := set(names) - set(known):
        sys.exit(f"{', '.join(unknown)}: not one of {', '.join(known)}")
    begun = time.monotonic()
    # Kernels that this machine has built before are not built again.
    os.environ.setdefault("POCL_CACHE_DIR", str(Path.home() / ".cache" / "pocl" / "kcache"))
    with tempfile.TemporaryDirectory() as made:
        kills, device = kill_all(names, Path(made))
    for kill in kills:
        print(json.dumps(kill.to_json(), indent=1, ensure_ascii=False))
    faults = [f"{kill.command}, {kill.victim} {kill.when}: {fault}" for kill in kills for fault in kill.faults]
    if given.json:
        save(given.json, TITLE, rows(kills, device))
    print(f"{len(kills)} kills in {time.monotonic() - begun:.0f} s, {len(faults)} faults")
    sys.exit("\n".join(faults) or 0)


if __name__ == "__main__":
    main()
