"""Machines behind ssh: the client of OpenSSH, with the user's own keys, known hosts and ~/.ssh/config.

Nothing is ever asked in the terminal (BatchMode), and an unknown host key is an error. `HANDHELD_SSH` replaces the
command, as GIT_SSH_COMMAND does for git: `HANDHELD_SSH="ssh -F other_config"`.
"""

from __future__ import annotations

import os
import shlex
import shutil

from handheld.child import Ending
from handheld.errors import DeviceError
from handheld.targets.names import TargetName
from handheld.targets.shell import ShellTarget

COMMAND = "HANDHELD_SSH"
CONNECT_S = 10
ALIVE_S, ALIVE_COUNT = 5, 3  # A connection without an answer for this many seconds, this many times, is lost.
_FAILED = 255  # ssh exits with it if the connection failed; other codes are the command's.


class SshTarget(ShellTarget):
    """A machine behind ssh. Its folder is in the home of the login."""

    home = "$HOME"

    def __init__(self, name: TargetName) -> None:
        super().__init__(name.target)
        user, at, host = name.where.rpartition("@")
        self.host = host.strip("[]")
        self.login = f"{user}{at}{self.host}"
        self.port = name.port
        #: The command that a user types to log in, for messages.
        self.shown = f"ssh{f' -p {self.port}' if self.port else ''} {self.login}"
        self._client = shlex.split(os.environ.get(COMMAND, "")) or ["ssh"]
        if shutil.which(self._client[0]) is None:
            raise DeviceError(
                f"{self.name}: the program {self._client[0]} is not installed. "
                "Try: apt install openssh-client, or the OpenSSH of your system"
            )

    def command(self, script: str) -> list[str]:
        assert "'" not in script and "\n" not in script, script
        options = (
            "BatchMode=yes",
            f"ConnectTimeout={CONNECT_S}",
            f"ServerAliveInterval={ALIVE_S}",
            f"ServerAliveCountMax={ALIVE_COUNT}",
            "LogLevel=ERROR",
            "ClearAllForwardings=yes",
        )
        port = ["-p", str(self.port)] if self.port else []
        given = [word for option in options for word in ("-o", option)]
        return [*self._client, "-T", *given, *port, "--", self.login, f"exec sh -c '{script}'"]

    def trouble(self, ending: Ending, messages: str) -> str | None:
        if ending.code is None:
            return f"it does not answer. Try: {self.shown}"
        if ending.code < 0:
            return f"{Ending(ending.code).describe('the connection (ssh)')}. Try: again"
        return self._failed(messages) if ending.code == _FAILED else None

    def _failed(self, messages: str) -> str:
        for text, problem in (
            (
                "HOST IDENTIFICATION HAS CHANGED",
                f"its host key has changed. Try: make sure that it is the same machine, then ssh-keygen -R {self._key}",
            ),
            ("Host key verification failed", f"its host key is not known yet. Try: {self.shown}, and accept the key"),
            ("Too many authentication", f"it refused all keys. Try: {self.shown} -o IdentitiesOnly=yes"),
            ("Permission denied", f"it refused the login without a password. Try: {self._copy_id}"),
            ("Could not resolve", f"the host {self.host} is not known. Try: check the name, or use its address"),
            ("Connection refused", f"no ssh server answers {self._there}. Try: start sshd on it, or check the port"),
            ("timed out", f"it does not answer {self._there}. Try: check that it is switched on: ping {self.host}"),
            ("Timeout, server", "the connection was silent for too long. Try: check the network, then again"),
            ("No route to host", f"it cannot be reached {self._there}. Try: check the network: ping {self.host}"),
            ("unreachable", f"it cannot be reached {self._there}. Try: check the network: ping {self.host}"),
            ("Bad configuration option", f"ssh refuses its configuration: {_last(messages)}. Try: {self.shown}"),
        ):
            if text in messages:
                return problem
        said = _last(messages)
        return f"the connection was closed{f' ({said})' if said else ''}. Try: {self.shown}"

    @property
    def _there(self) -> str:
        return f"at port {self.port or 22}"

    @property
    def _key(self) -> str:
        return f'"[{self.host}]:{self.port}"' if self.port else self.host

    @property
    def _copy_id(self) -> str:
        return f"ssh-copy-id{f' -p {self.port}' if self.port else ''} {self.login}"


def _last(messages: str) -> str:
    return (messages.strip().splitlines() or [""])[-1].strip().rstrip(".")
