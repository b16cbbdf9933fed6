"""What `profile` and `show` answer before their tables, and the ceilings that this needs."""

from __future__ import annotations

import pytest

import handheld
from handheld.cli import output, run_tables
from handheld.measure import ceilings
from helpers.known_ceilings import store_ceilings
from helpers.run_files import MadeRun

SHORT = ("profile", "mine.py:with_batch", "--steps", "8")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Each test begins without ceilings."""
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "cache"))


def test_missing_ceilings_are_measured_once(run, tmp_path, monkeypatch):
    measured = []

    def measure(device: str, progress: object) -> None:
        measured.append(device)
        store_ceilings()

    monkeypatch.setattr(ceilings, "measure", measure)
    without = run(*SHORT, "--no-ceilings")
    assert without.exit_code == 0 and not measured, without.output
    assert without.stdout.startswith(("Bound by compute or memory: ", "Bound by launches: ", "Bound by host: "))
    assert "The ceilings of the device were not measured." in " ".join(without.stdout.split())
    assert run(*SHORT, "--on", "reference:cpu").exit_code == 0 and not measured
    first = run(*SHORT)
    assert measured == ["opencl"] and "--no-ceilings skips it" in " ".join(first.stderr.split())
    second = run(*SHORT, "--out", str(tmp_path / "second.run"))
    assert measured == ["opencl"] and "--no-ceilings" not in second.stderr
    with handheld.open_run(tmp_path / "second.run") as opened:
        assert opened.meta["ceilings"]["launch_device_s"] == 2e-6 and opened.bound().ops


def test_ceilings_that_cannot_be_measured_do_not_stop_the_run(run, monkeypatch):
    def broken(device: str, progress: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(ceilings, "measure", broken)
    result = run(*SHORT)
    assert result.exit_code == 0 and "the ceilings could not be measured: MemoryError: no room" in result.stderr


def test_full_shows_every_row(run):
    run("profile", "lenet5", "--steps", "12", "--out", "one.run", "--no-ceilings")
    short, full = (run("show", "one.run", *more).stdout for more in ((), ("--full",)))
    assert "more ops" in short and "more ops" not in full
    assert "memory at the peak" in full and "memory at the peak" not in short
    assert max(map(len, full.splitlines())) <= 80


def test_tables_of_a_run_with_everything(tmp_path, monkeypatch, capsys):
    """Tables with long names and several rails still fit 80 columns."""
    monkeypatch.setattr(output.out, "_width", 80)
    made = MadeRun(
        tmp_path / "one.run",
        estimate={"watts_busy": 5.0, "watts_idle": 1.0},
        recording_share=0.01,
        allocated_bytes=10**9,
        plan_bytes=10**9,
        **{
            "memory.train": {
                "peak_op": 0,
                "peak_bytes": 9 * 10**8,
                "owners": [["a.very.long.path.to.a.module." * 3 + "conv (forward)", "activation", 10**8]] * 3,
            }
        },
    )
    made.steps(60)
    made.writer.note("gap", "a sensor went away")
    with made.open() as opened, output.out.capture() as shown:
        run_tables.present(opened)
    lines = shown.get().splitlines()
    assert max(map(len, lines[:-1])) <= 80 and any("858.3 MiB alive" in line for line in lines)
    assert "note: a sensor went away" in capsys.readouterr().err
