"""`handheld export --format csv` and `parquet`: the written tables equal the run."""

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

NAMES = (
    "ops",
    "steps",
    "commands",
    "memory",
    "samples",
    "energy",
    "op_energy",
    "joules",
    "training_steps",
    "epochs",
    "notes",
    "meta",
)


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
        files = {path.name: path for path in written}
        assert list(files) == [f"{name}.csv" for name in NAMES]
        ops = read(files["ops.csv"])
        assert [(row["path"], row["op"], row["phase"]) for row in ops] == [(o.path, o.op, o.phase) for o in run.ops()]
        assert [row["ms"] for row in ops] == ["" if o.ms is None else str(o.ms) for o in run.ops()]
        steps = read(files["steps.csv"])
        assert [int(row["begin_ns"]) for row in steps] == [s.begin_ns for s in run.steps()]
        readings = [(v, s.name) for s in run.channels for v in s.values.tolist()]
        assert readings and run.energy()
        assert [(float(row["value"]), row["channel"]) for row in read(files["samples.csv"])] == readings
        assert len(read(files["energy.csv"])) == len(run.energy())
    assert sorted(p.name for p in (tmp_path / "tables").iterdir()) == sorted(p.name for p in written)


def test_parquet_has_the_rows_of_csv_with_types(made: MadeRun, tmp_path: Path) -> None:
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    made.writer.put("step", 99, "train", None, made.now, made.now + 5, None, 0.5)
    with made.open() as run:
        written = {path.stem: parquet.read_table(path) for path in export(run, "parquet", tmp_path / "parquet")}
        plain = {path.stem: read(path) for path in export(run, "csv", tmp_path / "csv")}
        assert tuple(written) == NAMES
        for name, table in written.items():
            rows = table.to_pylist()
            assert len(rows) == len(plain[name]) and (
                rows or name in ("op_energy", "joules", "training_steps", "epochs", "notes")
            ), name
            assert [{k: "" if v is None else str(v) for k, v in row.items()} for row in rows] == plain[name]
        steps = written["steps"]
        assert steps.schema.field("begin_ns").type == arrow.int64() and steps["loss"].to_pylist()[-1] == 0.5
        assert steps["loss"].null_count == 60 and steps["batch"].to_pylist()[-1] is None
        assert written["ops"]["ms"].to_pylist() == [op.ms for op in run.ops()]
        assert written["op_energy"].schema.field("joules").type == arrow.float64()
        assert written["ops"].schema.metadata[b"handheld.run"] == b"one.run"
        started = [int(c["started"]) for step in run.timed for c in step.commands]
        assert written["commands"]["started_ns"].to_pylist() == started and len(started) == 4 * 4 * 6


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


def test_a_file_of_another_kind_is_not_replaced(
    made: MadeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made.open().close()
    mine = tmp_path / "mine.py"
    mine.write_text("my model")
    for name in ("chrome", "csv"):
        with pytest.raises(SystemExit):
            main(["export", str(made.path), "--format", name, "--out", str(mine)])
        assert f"its name is not that of a {name} file" in " ".join(capsys.readouterr().err.split())
    assert mine.read_text() == "my model"
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "ops.csv").write_text("my table")
    with pytest.raises(SystemExit):
        main(["export", str(made.path), "--out", str(folder)])
    assert "holds other csv files" in " ".join(capsys.readouterr().err.split())
    assert (folder / "ops.csv").read_text() == "my table"
    (folder / "ops.csv").unlink()
    for _ in range(2):  # An earlier export is replaced.
        with pytest.raises(SystemExit) as ended:
            main(["export", str(made.path), "--out", str(folder)])
        assert ended.value.code == 0
