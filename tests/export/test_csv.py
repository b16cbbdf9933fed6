"""`handheld export --format csv`: the written tables equal the run."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from handheld.cli.main import main
from handheld.errors import RunFileError
from handheld.export import FORMATS, export
from handheld.sensors.base import Channel
from helpers.run_files import MadeRun


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    run = MadeRun(tmp_path / "one.run")
    run.steps(60)
    run.source("meter", (Channel("wall", "power", covers=("system",)),), 20, lambda s: (5.0 + s,))
    return run


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_tables_read_back_equal_the_run(made: MadeRun, tmp_path: Path) -> None:
    with made.open() as run:
        written = export(run, "csv", tmp_path / "tables")
        assert [path.name for path in written] == ["ops.csv", "steps.csv", "samples.csv", "energy.csv"]
        ops = read(written[0])
        assert [(row["path"], row["op"], row["phase"]) for row in ops] == [(o.path, o.op, o.phase) for o in run.ops()]
        assert [row["ms"] for row in ops] == ["" if o.ms is None else str(o.ms) for o in run.ops()]
        steps = read(written[1])
        assert [int(row["begin_ns"]) for row in steps] == [s.begin_ns for s in run.steps()]
        readings = [(v, s.name) for s in run.channels for v in s.values.tolist()]
        assert readings and run.energy()
        assert [(float(row["value"]), row["channel"]) for row in read(written[2])] == readings
        assert len(read(written[3])) == len(run.energy())
    assert sorted(p.name for p in (tmp_path / "tables").iterdir()) == sorted(p.name for p in written)


def test_an_unknown_format_is_an_error_that_lists_the_others(made: MadeRun, tmp_path: Path) -> None:
    with made.open() as run, pytest.raises(RunFileError, match=f"Try one of: {', '.join(FORMATS)}"):
        export(run, "papyrus", tmp_path)


def test_a_place_that_cannot_be_written_is_an_error(made: MadeRun, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with made.open() as run, pytest.raises(RunFileError, match="cannot be written"):
        export(run, "csv", tmp_path / "file")


def test_the_command_writes_beside_the_run_file(made: MadeRun, capsys: pytest.CaptureFixture[str]) -> None:
    with made.open():
        pass
    with pytest.raises(SystemExit) as ended:
        main(["export", str(made.path), "--json"])
    assert ended.value.code == 0
    files = [Path(name) for name in json.loads(capsys.readouterr().out)["files"]]
    assert {path.parent.name for path in files} == {"one-csv"} and all(path.is_file() for path in files)
