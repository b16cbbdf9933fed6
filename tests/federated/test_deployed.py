"""Flower's real programs on this machine: TLS, keys, a round, and who is refused."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

from handheld.errors import HandheldError
from handheld.federated.app import settings_of, write_app
from handheld.federated.clock import AHEAD_S, BEHIND_S, check_clock
from handheld.federated.connect import connect
from handheld.federated.keys import Keys, make_keys
from handheld.federated.processes import Federation, free_port, link_command, node_command
from handheld.federated.record import COMPLETE, read_record

#: What a SuperLink or a SuperNode says when it turns somebody away.
REFUSED = ("Failed to initialize the connection to the SuperLink", "Connection attempt failed")


def turned_away(command: list[str], federation: Federation, folder: Path) -> str:
    """Start a SuperNode that must not be let in; returns what it said."""
    log = folder / "refused.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env=federation.environment, start_new_session=True
        )
        try:
            until = time.monotonic() + 40
            while (
                time.monotonic() < until and process.poll() is None and not any(w in log.read_text() for w in REFUSED)
            ):
                time.sleep(0.3)
        finally:
            process.kill()
            process.wait()
    return log.read_text()


def test_a_training_with_keys_and_who_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app, results = tmp_path / "digits", tmp_path / "results"
    write_app(app)
    keys = make_keys(tmp_path / "keys", ["127.0.0.1", "localhost"], 2)
    stranger = make_keys(tmp_path / "strange", ["127.0.0.1"], 1)
    said: list[str] = []
    with Federation(tmp_path / "processes", ["reference:cpu"] * 2, keys, None, said.append) as federation:
        link, config = f"127.0.0.1:{federation.port}", {"device": "reference:cpu"}
        settings = [f'out="{results.as_posix()}"', "rounds=1", "local-epochs=1"]
        lines = list(federation.run(app, settings, lambda: finished(results)))
        record = read_record(results / "1")
        assert [visit.outcome for visit in record.rounds[-1].visits] == ["trained", "trained"], lines
        assert "accuracy" in record.rounds[-1].metrics
        # An app that fails is an error at once: nothing died that could be started again.
        begun = time.monotonic()
        with pytest.raises(HandheldError, match="ended before its last round"):
            list(federation.run(app, [*settings[:1], 'compress="zip"'], lambda: False))
        assert said.count(next(iter(said))) == 1 and time.monotonic() - begun < 120
        # A wrong key, no key, and no TLS.
        wrong = node_command(link, free_port(), config, keys, stranger.nodes[0])
        keyless = [part for part in wrong if part not in ("--auth-supernode-private-key", str(stranger.nodes[0]))]
        plain = node_command(link, free_port(), config, None, None)
        for command in (wrong, keyless, plain):
            text = turned_away(command, federation, tmp_path)
            assert any(word in text for word in REFUSED), text
        # One command registers what is new, and keeps the other connections of Flower.
        monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
        (tmp_path / "home").mkdir()
        other = '[superlink]\ndefault = "mine"\n\n[superlink.mine]\naddress = "10.0.0.1:8000"\ninsecure = true\n'
        (tmp_path / "home" / "config.toml").write_text(other)
        make_keys(keys.folder, [], 3)
        assert connect(link, keys) == (1, 2) and connect(link, keys) == (0, 3)
        kept = (tmp_path / "home" / "config.toml").read_text()
        assert kept.startswith(other) and kept.count("[superlink.handheld]") == 1 and link in kept
        check_clock(link, keys)
        for ahead, word in ((60, r"6\d s ahead of"), (-3600, r"3,\d+ s behind")):
            monkeypatch.setattr("handheld.federated.clock.time.time", (time.time() + ahead).__float__)
            with pytest.raises(HandheldError, match=rf"{word} that of the SuperLink on {link}.*check the clock"):
                check_clock(link, keys)
        monkeypatch.undo()
        listed = federation.flwr("supernode", "list", "--format", "json")
        assert listed.count('"online"') == 2, listed
    assert not any(node.alive for node in (*federation.nodes, federation.link))


def finished(results: Path) -> bool:
    return (results / "1" / "federated.json").exists() and read_record(results / "1").status == COMPLETE


def test_beyond_this_machine_keys_are_needed(tmp_path: Path) -> None:
    with pytest.raises(HandheldError, match=r"needs TLS and keys. Try: handheld federate keys"):
        link_command("0.0.0.0", 8000, None)
    with pytest.raises(HandheldError, match=r"needs keys. Try: --keys"):
        node_command("server.local:8000", 9000, {}, None, None)
    with pytest.raises(HandheldError, match=r"lacks ca.crt, server.crt, server.key. Try: handheld federate keys"):
        link_command("0.0.0.0", 8000, Keys(tmp_path))
    keys = make_keys(tmp_path / "keys", ["localhost"], 1)
    more = make_keys(tmp_path / "keys", [], 3)
    assert len(more.nodes) == 3 and keys.nodes[0].stat().st_mode & 0o077 == 0
    with pytest.raises(HandheldError, match=r"--host NAME"):
        make_keys(tmp_path / "new", [], 1)


def test_a_port_in_use_is_an_error() -> None:
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        with pytest.raises(HandheldError, match=r"cannot be used: Address already in use. Try: another --port"):
            free_port(held.getsockname()[1])


def test_the_limits_of_clocks_are_those_of_flower() -> None:
    assert BEHIND_S == TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE and AHEAD_S == SYSTEM_TIME_TOLERANCE


def test_addresses_of_ipv6() -> None:
    assert free_port(None, "::1") > 0
    assert "--insecure" in link_command("::1", 8000, None)
    assert "[::1]:8000" in node_command("[::1]:8000", 9000, {}, None, None)
    with pytest.raises(HandheldError, match=r"needs TLS and keys"):
        link_command("::", 8000, None)


def test_the_superlink_of_simulations_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    """Only that of this user's Flower home; no other program is touched."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    assert "no SuperLink of simulations runs" in run("federate", "stop").stdout
    words = ["flower-superlink", "--simulation", "--log-file"]
    logs = [tmp_path / "local-superlink" / "superlink.log", tmp_path / "other" / "local-superlink" / "superlink.log"]
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    mine, other = (subprocess.Popen([*sleeping, *words, str(log)]) for log in logs)
    try:
        assert json.loads(run("federate", "stop", "--json").stdout) == {"stopped": [mine.pid]}
        assert mine.wait(10) == -signal.SIGTERM and other.poll() is None
    finally:
        for process in (mine, other):
            process.kill()
            process.wait()


def test_apps(tmp_path: Path) -> None:
    files = write_app(tmp_path / "my-app")
    assert [path.relative_to(tmp_path).as_posix() for path in files][:2] == [
        "my-app/pyproject.toml",
        "my-app/my_app/app.py",
    ]
    assert settings_of(tmp_path / "my-app")["rounds"] == 10
    with pytest.raises(HandheldError, match=r"exists already"):
        write_app(tmp_path / "my-app")
    with pytest.raises(HandheldError, match=r"is no Flower app"):
        settings_of(tmp_path)
    shutil.copy(tmp_path / "my-app" / "my_app" / "app.py", tmp_path / "pyproject.toml")
    with pytest.raises(HandheldError, match=r"not that of a Flower app"):
        settings_of(tmp_path)
