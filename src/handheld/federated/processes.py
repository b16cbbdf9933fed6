"""SuperLink and SuperNodes as processes of this machine: their commands, and a supervisor that starts them again.

Flower's own programs run; this file only knows their options. A SuperNode that was killed is started again. If the
SuperLink was killed, it is started again and the app is run again; the server continues after its last round.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from handheld.backends.table import backend
from handheld.device import canonical
from handheld.errors import HandheldError
from handheld.federated.keys import CERT, KEY, Keys
from handheld.targets.names import is_target, parse

#: Seconds until a program answers; seconds that it gets to end; how often a program is started again.
READY_S, END_S, TRIES = 90.0, 10.0, 5
#: How much of a log a message shows.
LAST_LINES = 12


def is_local(host: str) -> bool:
    """Whether nobody outside this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def program(name: str) -> str:
    """A program of Flower, from the environment of this Python."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise HandheldError(f"{name} is not installed. Try: pip install 'flwr==1.41.*'")
    return str(path)


def environment() -> dict[str, str]:
    """The variables of this process, with the programs of this Python first. Flower's start each other by name,
    also where the environment of this Python was not activated."""
    return {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])}


def check_device(device: str) -> None:
    """Raises DeviceError if this is no name of a device. Whether the device is there, its SuperNode says."""
    backend(canonical(device))
    if is_target(device):
        parse(device)


def link_command(host: str, port: int, keys: Keys | None, database: Path | None = None) -> list[str]:
    """The command of a SuperLink. Beyond this machine it needs keys."""
    command = [program("flower-superlink"), "--host", host, "--port", str(port)]
    command += ["--disable-runtime-dependency-installation"]
    if database is not None:
        command += ["--database", str(database)]
    if keys is not None:
        keys.check()
        folder = keys.folder
        command += ["--ssl-certfile", str(folder / CERT), "--ssl-keyfile", str(folder / KEY)]
        return [*command, "--ssl-ca-certfile", str(keys.ca), "--enable-supernode-auth"]
    if not is_local(host):
        raise HandheldError(
            f"a SuperLink on {host} can be reached by others, so it needs TLS and keys. Try: handheld federate keys "
            "FOLDER --host NAME, then --keys FOLDER"
        )
    return [*command, "--insecure"]


def node_command(
    link: str, port: int, config: Mapping[str, str | int], keys: Keys | None, key: Path | None
) -> list[str]:
    """The command of a SuperNode for one device."""
    host, colon, number = link.rpartition(":")
    if not (host and colon and number.isdigit() and 0 < int(number) < 2**16):
        raise HandheldError(f"{link!r} is no address of a SuperLink. Try: --link HOST:PORT, such as server.local:8000")
    pairs = " ".join(
        f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}" for name, value in config.items()
    )
    command = [program("flower-supernode"), "--superlink", link, "--port", str(port), "--node-config", pairs]
    if keys is None:
        if not is_local(host.strip("[]")):
            raise HandheldError(
                f"a SuperLink on {link} is reached over a network, so it needs keys. "
                "Try: --keys FOLDER --key FOLDER/node-1.key"
            )
        return [*command, "--insecure"]
    if not keys.ca.is_file():
        raise HandheldError(f"{keys.folder} lacks {keys.ca.name}. Try: copy it from the machine of the SuperLink")
    if key is None or not key.is_file():
        raise HandheldError(f"{key or keys.folder / 'node-1.key'} is missing. Try: copy the key of this device there")
    return [*command, "--root-certificates", str(keys.ca), "--auth-supernode-private-key", str(key)]


def write_connection(home: Path, address: str, keys: Keys | None) -> None:
    """Tell Flower's commands, by FLWR_HOME, how the SuperLink is reached."""
    home.mkdir(parents=True, exist_ok=True)
    secure = f'root-certificates = "{keys.ca.resolve()}"' if keys else "insecure = true"
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "handheld"\n\n[superlink.handheld]\naddress = "{address}"\n{secure}\n',
        encoding="utf-8",
    )


def free_port(wanted: int | None = None, host: str = "127.0.0.1") -> int:
    """A port that nobody uses. A wanted one that is in use is an error."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, wanted or 0))
        except socket.gaierror as error:
            raise HandheldError(
                f"{host} is no address of this machine: {error.strerror}. Try: --host 0.0.0.0 for all of them"
            ) from None
        except OSError as error:
            raise HandheldError(
                f"port {wanted} of {host} cannot be used: {error.strerror}. Try: another --port, or stop what uses it"
            ) from None
        return int(probe.getsockname()[1])


@dataclass
class Member:
    """One process that must keep running."""

    name: str
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0

    def start(self, environment: Mapping[str, str]) -> None:
        self.starts += 1
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                self.command,
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
                env=dict(environment),
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self) -> None:
        """End the process and those that it started."""
        if self.process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S)
                if number == signal.SIGTERM and not _group(self.process.pid):
                    return

    def tail(self) -> str:
        """The last lines of its log, without colours."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()[-LAST_LINES:])


def _group(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


@dataclass
class Federation:
    """A SuperLink and SuperNodes on this machine. `tell` gets a sentence about everything that happens."""

    folder: Path
    devices: Sequence[str]
    keys: Keys | None = None
    port: int | None = None
    tell: Callable[[str], None] = print
    nodes: list[Member] = field(default_factory=list)

    def __enter__(self) -> Federation:
        for device in self.devices:
            check_device(device)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port(self.port)
        host = "127.0.0.1"
        self.environment = {
            **environment(),
            "FLWR_HOME": str(self.folder / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }
        self.link = Member(
            "SuperLink",
            link_command(host, self.port, self.keys, self.folder / "superlink.db"),
            self.folder / "superlink.log",
        )
        write_connection(self.folder / "flower", f"{host}:{self.port}", self.keys)
        try:
            self._start_link()
            self._start_nodes()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_link(self) -> None:
        self.link.start(self.environment)
        waited = 0.0  # Counted, because a machine that sleeps meanwhile is not late.
        while not _answers(self.port or 0):
            if not self.link.alive or waited > READY_S:
                raise HandheldError(
                    f"the SuperLink did not start within {READY_S:.0f} s. The end of its log, {self.link.log}:\n"
                    f"{self.link.tail()}\nTry: the same command again, or mend what the log says"
                )
            time.sleep(0.2)
            waited += 0.2
        self.tell(f"SuperLink on 127.0.0.1:{self.port}")

    def _start_nodes(self) -> None:
        keys = self.keys.nodes if self.keys else []
        if self.keys and len(keys) < len(self.devices):
            raise HandheldError(
                f"{self.keys.folder} has keys for {len(keys)} devices, not for {len(self.devices)}. "
                f"Try: handheld federate keys {self.keys.folder} --nodes {len(self.devices)}"
            )
        for number, device in enumerate(self.devices):
            if self.keys:
                self.flwr("supernode", "register", f"{keys[number]}.pub")
            config: dict[str, str | int] = {
                "device": device,
                "partition-id": number,
                "num-partitions": len(self.devices),
            }
            command = node_command(
                f"127.0.0.1:{self.port}", free_port(), config, self.keys, keys[number] if self.keys else None
            )
            node = Member(f"node {number + 1} ({device})", command, self.folder / f"node-{number + 1}.log")
            self.nodes.append(node)
            node.start(self.environment)
        self.tell(f"{len(self.nodes)} SuperNodes: {', '.join(self.devices)}")

    def flwr(self, *arguments: str) -> str:
        """Run a command of Flower to its end."""
        done = subprocess.run(
            [program("flwr"), *arguments], env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise HandheldError(f"flwr {' '.join(arguments[:2])} failed: {(done.stderr or done.stdout).strip()[-600:]}")
        return done.stdout

    def run(self, app: Path, settings: Sequence[str], finished: Callable[[], bool]) -> Iterator[str]:
        """Run an app until `finished` is true; yields the lines of its log. Programs that died are started again."""
        runs = 0
        last: deque[str] = deque(maxlen=LAST_LINES)
        while True:
            runs += 1
            command = [program("flwr"), "run", str(app), "handheld", "--stream"]
            command += [part for setting in settings for part in ("--run-config", setting)]
            with subprocess.Popen(
                command,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            ) as streaming:
                for line in self._watched(streaming):
                    last.append(line)
                    yield line
            if finished():
                return
            # Flower also ends a run that was silent for long, such as that of a machine that slept.
            failed = any(re.match(r"ERROR|Traceback|\w*(Error|Exit)\b", line.strip()) for line in last)
            if runs > TRIES or (self.link.alive and failed):
                raise HandheldError(
                    "the training ended before its last round. The end of its log:\n" + "\n".join(last) + "\n"
                    "Try: mend what it says, then the same command, which continues after the last round. "
                    f"The SuperLink's log: {self.link.log}"
                )
            if self.link.alive:
                self.tell("Flower ended the run; the app is run again and continues after its last round")
                continue
            self.tell("the SuperLink ended; it is started again, and the app continues after its last round")
            self.link.stop()
            self._start_link()

    def _watched(self, streaming: subprocess.Popen[bytes]) -> Iterator[str]:
        assert streaming.stdout is not None
        os.set_blocking(streaming.stdout.fileno(), False)
        rest = b""
        while True:
            code, data = streaming.poll(), streaming.stdout.read()
            *lines, rest = (rest + (data or b"")).split(b"\n")
            yield from (re.sub(r"\x1b\[[0-9;]*m", "", line.decode(errors="replace")) for line in lines)
            if code is not None:
                return
            if not self.link.alive:
                streaming.terminate()
                return
            self._revive()
            time.sleep(0.2)

    def _revive(self) -> None:
        for node in self.nodes:
            if not node.alive and node.starts <= TRIES:
                self.tell(f"{node.name} ended; it is started again. Its log: {node.log}")
                node.stop()  # what it left running
                node.start(self.environment)

    def __exit__(self, *_: object) -> None:
        for member in (*self.nodes, self.link):
            member.stop()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
