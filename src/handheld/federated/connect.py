"""What Flower's commands keep on this machine: the connection to a SuperLink, and the SuperLink of simulations."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from handheld.errors import HandheldError
from handheld.federated.keys import Keys
from handheld.federated.processes import END_S, environment, program

#: The name of the connection: flwr run APP handheld.
NAME = "handheld"
#: What Flower says of a key that it knows already.
KNOWN = "Public key already in use"


def home() -> Path:
    """Where Flower keeps its settings."""
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")


def connect(link: str, keys: Keys) -> tuple[int, int]:
    """Write the connection to a SuperLink into Flower's settings, beside the others there, and register all devices of
    a folder of keys. Returns how many were registered now, and how many were before."""
    keys.check()
    path = home() / "config.toml"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    others = re.sub(rf"(?ms)^\[superlink\.{NAME}\]\n.*?(?=^\[|\Z)", "", before).rstrip()
    own = f'[superlink.{NAME}]\naddress = "{link}"\nroot-certificates = "{keys.ca.resolve()}"\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{others}\n\n{own}" if others else own, encoding="utf-8")
    new = 0
    for key in keys.nodes:
        command = [program("flwr"), "supernode", "register", f"{key}.pub", NAME]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        said = done.stderr + done.stdout
        if done.returncode and KNOWN not in said:
            raise HandheldError(
                f"{key.name}.pub could not be registered on {link}: {said.strip()[-400:]}. Try: check that the "
                "SuperLink runs there (handheld federate link) and that the keys are its own"
            )
        new += not done.returncode
    return new, len(keys.nodes) - new


def stop_simulation() -> list[int]:
    """Stop the SuperLink that `flwr run` left in the background for simulations. Returns its processes, if any."""
    found = simulations()
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + END_S
    while (left := set(found) & set(simulations())) and time.monotonic() < until:
        time.sleep(0.1)
    if left:
        raise HandheldError(f"the SuperLink (process {min(left)}) does not stop. Try: kill -9 {min(left)}")
    return found


def simulations() -> list[int]:
    """The processes of SuperLinks that serve simulations of this user's Flower home. They write their log there."""
    log = str(home() / "local-superlink" / "superlink.log")
    listed = subprocess.run(["ps", "-axww", "-o", "pid=,stat=,args="], capture_output=True, text=True, check=True)
    found = []
    for line in listed.stdout.splitlines():
        pid, state, command = (*line.split(None, 2), "", "")[:3]
        if "flower-superlink" in command and "--simulation" in command and log in command and state[:1] != "Z":
            found.append(int(pid))
    return found
