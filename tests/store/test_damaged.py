"""Run files that are damaged, cut short or malicious: an error that says what is wrong, or a result."""

from __future__ import annotations

import json
import sqlite3
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

import handheld
from handheld.cli.main import app
from handheld.cli.repeating import as_measured
from handheld.cli.trying import request_of
from handheld.errors import RunFileError
from handheld.graph.graph import PHASES
from handheld.store import rows
from helpers.damage import damage, export_all, read_all, rich_run

SEEDS = 200  # 2,000 take a minute.


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    return rich_run(tmp_path_factory.mktemp("good") / "good.run")


def test_the_undamaged_file_can_be_asked_for_everything(good, tmp_path):
    with handheld.open_run(good) as run:
        read_all(run, tmp_path)
        export_all(run, tmp_path)
        assert as_measured(run, request_of(run), tmp_path).batch == 8 and run.joules() and run.untuned()
        assert {"energy model", "slow steps", "caller", "heat"} <= {finding.kind for finding in run.findings()}
        assert run.op_energy() and run.energy() and run.others() and run.transfers()


@pytest.mark.filterwarnings("ignore")
def test_damaged_files_end_in_a_run_file_error_or_a_result(good, tmp_path):
    counts = {"read": 0, "refused": 0}
    for seed in range(SEEDS):
        path = tmp_path / f"{seed}.run"
        damage(good, path, seed)
        try:
            with handheld.open_run(path) as run, warnings.catch_warnings():
                read_all(run, tmp_path)
                if seed % 10 == 0:  # They take longer.
                    export_all(run, tmp_path)
            counts["read"] += 1
        except RunFileError as error:
            assert "Try: " in str(error) or "is not a run file" in str(error)
            counts["refused"] += 1
        path.unlink()
    assert min(counts.values()) > SEEDS // 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE op SET phase='sideways'", "op 0 has the phase 'sideways', not one of forward, backward, update"),
        ("UPDATE op SET flops='many'", "column flops of its table op: expected a whole number"),
        ("UPDATE op SET live='[1]'", "column live of its table op: expected an object, found"),
        ("DELETE FROM op WHERE id=1", "the commands of step 0: there is no op 1"),
        ("UPDATE command SET data='text'", "the commands of step 0 are not packed numbers"),
        ("UPDATE step SET end_ns=3 WHERE id=2", "step 2 ends before it begins"),
        ("UPDATE step SET begin_ns=0 WHERE id=2", "step 2 begins before step 1"),
        ("UPDATE step SET end_ns=1<<60 WHERE id=59", "its steps last 13,344 days"),
        ("UPDATE channel SET position=5 WHERE source=0", r"the channels of source 0 have the positions \[5\]"),
        ("UPDATE reading SET t_ns='x' WHERE source=1", "a reading of source 1: expected a whole number from 0"),
        ("UPDATE note SET t_ns=-1", "the column t_ns of its table note: expected a whole number from 0"),
        (
            "UPDATE clock SET device_ns=device_ns+(1<<60)",
            "the times of step 0 are before the start of the host's clock",
        ),
        ("UPDATE energy_window SET extra=0 WHERE id=1", "energy window 1 repeats its ops 0 times"),
        ("UPDATE meta SET value='[' WHERE key='caps'", "its entry 'caps' cannot be read"),
        ("UPDATE meta SET value='5' WHERE key='others'", "its entry 'others': expected an object, found 5"),
        ("UPDATE meta SET value='[1]' WHERE key='idle_ns'", "its entry 'idle_ns': expected a list of 2 items"),
        ("DROP TABLE note", "no such table: note|its table note has no column"),
    ],
)
def test_what_is_wrong_is_named(good, tmp_path, change, message):
    path = tmp_path / "one.run"
    path.write_bytes(good.read_bytes())
    with sqlite3.connect(path) as db:
        db.execute(change)
    db.close()
    expected = pytest.raises(RunFileError, match=f"is damaged: .*({message}).*Try: copy it again")
    with expected, handheld.open_run(path) as run:
        read_all(run, tmp_path)


def test_show_of_a_damaged_file_is_one_line(good, tmp_path):
    path = tmp_path / "one.run"
    path.write_bytes(good.read_bytes())
    with sqlite3.connect(path) as db:
        db.execute("UPDATE op SET phase='sideways'")
    db.close()
    shown = CliRunner().invoke(app, ["show", str(path)])
    assert shown.exit_code == 1 and "Traceback" not in shown.output and "op 0 has the phase 'sideways'" in shown.output
    shown = CliRunner().invoke(app, ["show", str(path), "--json"])
    assert json.loads(shown.stdout)["error"]["type"] == "RunFileError"


def test_a_file_that_may_not_be_read(good, tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # Tests may run as a user who may read everything.
    with pytest.raises(RunFileError, match=r"cannot be read: Permission denied\. Try: check who may read it"):
        handheld.open_run(good)


def test_phases_are_those_of_the_graph():
    assert rows.PHASES == PHASES


def test_an_error_of_sqlite_that_quotes_damaged_bytes(good, tmp_path):
    """Python cannot decode the text of such an error."""
    path = tmp_path / "one.run"
    data = good.read_bytes()
    at = data.index(b"CREATE TABLE note")
    path.write_bytes(data[:at] + b"CREATE \xa0\xffBLE note" + data[at + len(b"CREATE TABLE note") :])
    with pytest.raises(RunFileError, match="is damaged"), handheld.open_run(path) as run:
        run.notes()


def test_an_error_that_quotes_a_damaged_value_is_short_and_printable(good, tmp_path):
    path = tmp_path / "two.run"
    path.write_bytes(good.read_bytes())
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = CAST(? AS TEXT)", (b"\x1b[31m\xff" * 1000,))
    db.close()
    with pytest.raises(RunFileError, match="is damaged") as failed, handheld.open_run(path):
        pass
    assert len(str(failed.value)) < 500 and "\x1b" not in str(failed.value)
