"""Flower's real programs on this machine: TLS, keys, a round, and who is refused."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from handheld.errors import HandheldError
from handheld.federated.app import settings_of, write_app
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


def test_a_training_with_keys_and_who_is_refused(tmp_path: Path) -> None:
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
