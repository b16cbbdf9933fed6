"""A real OpenSSH server on a free port of the loopback address, as this user, with its own keys and home."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin:" + os.environ.get("PATH", ""))
#: Why tests with a server cannot run here; empty if they can.
MISSING = "" if SSHD and shutil.which("ssh") and shutil.which("ssh-keygen") else "OpenSSH's server is not installed"


@dataclass
class SshServer:
    """A running server. `home` is the home folder of its logins."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def name(self) -> str:
        """The name of the target."""
        return f"ssh:{getpass.getuser()}@127.0.0.1:{self.port}"

    @property
    def client(self) -> str:
        """The value of HANDHELD_SSH that reaches it."""
        return f"ssh -F {self.folder}/client"


@contextlib.contextmanager
def ssh_server(folder: Path, environment: dict[str, str] | None = None) -> Iterator[SshServer]:
    """Starts a server with its files in `folder`. Logins get the variables of `environment`."""
    assert SSHD is not None
    (folder / "home").mkdir(parents=True)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    shutil.copy(folder / "user.pub", folder / "authorized")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kept = ("PATH", "LD_LIBRARY_PATH", "OCL_ICD_VENDORS", "POCL_CACHE_DIR")
    given = {name: os.environ[name] for name in kept if name in os.environ} | {"HOME": str(folder / "home")}
    given |= environment or {}
    (folder / "server").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
        f"PidFile {folder}/pid\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
        f"KbdInteractiveAuthentication no\nMaxStartups 100\nMaxSessions 100\n"
        "SetEnv " + " ".join(f'{name}="{value}"' for name, value in given.items()) + "\n"
    )
    (folder / "client").write_text(
        f"IdentityFile {folder}/user\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/known\n"
    )
    key = " ".join((folder / "host.pub").read_text().split()[:2])
    (folder / "known").write_text(f"[127.0.0.1]:{port} {key}\n")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # As root, sshd wants this folder for its separated privileges.
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "server"], stdin=subprocess.DEVNULL, stderr=log)
    try:
        _wait(port, process, folder / "log")
        yield SshServer(folder, port, process)
    finally:
        process.terminate()
        process.wait()


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        assert process.poll() is None, log.read_text()
        time.sleep(0.02)
    raise AssertionError("sshd does not answer")
