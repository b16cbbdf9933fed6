"""What `profile` and `show` answer before their tables, and the ceilings that this needs."""

from __future__ import annotations

import pytest

import handheld
from handheld.cli import output, run_tables
from handheld.cli.time_unit import TimeUnit
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


def shown_by(opened) -> str:
    with output.out.capture() as shown:
        run_tables.present(opened)
    return shown.get()


def test_layers_ops_and_parts_have_shares_of_the_same_step(tmp_path, monkeypatch):
    monkeypatch.setattr(output.out, "_width", 100)
    made = MadeRun(tmp_path / "one.run")
    made.steps(60)
    with made.open() as opened:
        parts, layers = opened.parts(), opened.layers()
        text = shown_by(opened)
        busy = (parts.forward + parts.backward + parts.update) / parts.ms
        assert busy < 0.99 and sum(layer.share for layer in layers) == pytest.approx(busy)
    heads = [line for line in text.splitlines() if "mean " in line]
    assert len(heads) == 3 and all("of step" in line for line in heads)


def test_short_steps_are_in_microseconds():
    for ms, name, said in ((0.0123, "µs", "12.30"), (0.95, "µs", "950.00"), (1.5, "ms", "1.500")):
        unit = TimeUnit.for_ms(ms)
        assert unit.name == name and unit.number(ms) == said


def test_tensors_of_one_size_are_counted(tmp_path):
    owners = [["a.up matmul (forward)", "activation", 2 * 2**20]] * 2 + [["b conv (forward)", "activation", 2**20]]
    made = MadeRun(tmp_path / "one.run", **{"memory.train": {"peak_op": 0, "peak_bytes": 9 * 10**8, "owners": owners}})
    made.steps(60)
    with made.open() as opened:
        assert "largest: a.up matmul (forward) 2 × 2.0 MiB, b conv (forward) 1.0 MiB" in " ".join(
            shown_by(opened).split()
        )


def test_of_many_cores_the_busiest_are_named():
    assert run_tables.cores({"0": 0.5, "1": 1.2}) == "; cores busy 50%, 100%"
    many = {str(n): n / 16 for n in range(16)}
    assert run_tables.cores(many) == "; the busiest 8 of 16 cores: 94%, 88%, 81%, 75%, 69%, 62%, 56%, 50%"
