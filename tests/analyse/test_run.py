"""The tables of runs in which every number is known."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from handheld.analyse import stats
from handheld.analyse.overhead import Overhead
from handheld.sensors.base import Channel
from handheld.store.commands import DOWNLOAD, LAUNCH, UPLOAD
from helpers.run_files import MS, PLAIN, START, MadeRun, busy, kinds, rising


@pytest.fixture
def plain(tmp_path):
    made = MadeRun(tmp_path / "plain.run")
    made.steps(60)
    with made.open() as run:
        yield run


def test_ops_and_what_they_add_up_to(plain):
    rows = plain.ops()
    assert [(r.op, r.ms) for r in rows] == [("conv", 6.0), ("conv_input", 3.0)]
    assert rows[0].share == pytest.approx(2 / 3) and rows[0].cv == 0
    assert rows[0].gflops == pytest.approx(1000 / 6e-3 * 1e-9)
    assert rows[0].recorded == 18  # three of the four steps in each of six windows
    assert {r.phase: r.ms for r in plain.phases()} == {"forward": 6.0, "backward": 3.0}
    assert plain.modules()[0].to_json() == pytest.approx(
        {
            "path": "layer",
            "ms": 9.0,
            "share": 1.0,
            "ops": 2,
            "launches": 2,
            "flops": 2000,
            "bytes": 4000,
            "forward_ms": 6.0,
            "backward_ms": 3.0,
        }
    )
    assert [r.op for r in plain.kinds()] == ["conv", "conv_input"]


def test_parts_add_up_to_the_period(plain):
    for period in plain.periods:
        assert sum(dataclasses.astuple(period.parts)) == period.length
        assert period.parts.unexplained == 0
    parts = plain.parts()
    assert parts.forward == 6.0 and parts.backward == 3.0
    assert parts.upload == pytest.approx(0.1) and parts.download == pytest.approx(0.05)
    whole = sum(parts.by_name().values())
    assert parts.ms == pytest.approx(whole)
    # A period lasts from the first command of a step to that of the next, on the host's clock too.
    steps = plain.steps()
    assert parts.ms == pytest.approx((steps[2].begin_ns - steps[1].begin_ns) / MS)


def test_a_slow_host_is_launching_and_a_slow_caller_is_not(tmp_path):
    made = MadeRun(tmp_path / "one.run")
    made.steps(40, outside_ms=lambda i: 4.0)
    with made.open() as run:
        parts = run.parts()
        assert parts.caller == pytest.approx(4.0, abs=0.01)
        assert parts.launching == pytest.approx(0.0028) and parts.unexplained == 0


def test_the_device_clock_is_mapped_with_its_error_and_drift(tmp_path):
    made = MadeRun(tmp_path / "one.run", offset=0)
    made.steps(8)
    made.writer.commit()
    made.writer._db.execute("DELETE FROM clock")
    # The device's clock runs 100 ppm slow and has another start.
    for at in np.linspace(START, made.now, 5).astype(int).tolist():
        made.writer.put("clock", round((at - START) * (1 - 1e-4)) + 77, at, 1200)
    with made.open() as run:
        assert run.clock.error_ns == 1200 and run.clock.drift_ppm == pytest.approx(100, rel=1e-2)
        back = run.clock.host(np.array([77, 77 + 10**7]), START, START + 10**7)
        assert back.tolist() == pytest.approx([START, START + 10**7 * (1 + 1e-4)], abs=2)
        assert run.summary().clock_error_us == pytest.approx(1.2)


@pytest.mark.parametrize("by", [-4_000_000_000, 70_000_000])
def test_a_device_clock_that_is_set_spoils_the_window_it_is_set_in_and_no_other(tmp_path, by):
    made = MadeRun(tmp_path / "one.run")
    made.writer.commit()
    made.writer._db.execute("DELETE FROM clock")

    def window() -> None:
        made.writer.put("clock", made.now + made.offset, made.now, 500)
        made.steps(4)
        made.now += 100_000
        made.writer.put("clock", made.now + made.offset, made.now, 500)
        made.steps(6, every=10**6, first=4)

    window()
    made.offset += by  # between two windows
    window()
    made.writer.put("clock", made.now + made.offset, made.now, 500)
    made.steps(2)
    made.offset -= by  # in the middle of the third
    made.steps(2)
    made.writer.put("clock", made.now + made.offset, made.now, 500)
    made.steps(6, every=10**6, first=4)
    window()
    with made.open() as run:
        assert [one.step for one in run.timed] == [*range(4), *range(10, 14), *range(30, 34)]
        assert run.parts().forward == pytest.approx(6) and run.parts().unexplained == 0
        assert all(one.begin <= one.commands["started"][0] < one.end for one in run.timed)
        notes = [note.text for note in run.notes() if note.kind == "clock"]
        assert len(notes) == 2 and f"{by * 1e-9:+.6f} s" in notes[0], notes
        assert run.clock.drift_ppm == 0


def test_transfers_are_cut_into_latency_and_bandwidth(tmp_path):
    """Transfers of two sizes; each takes 20 µs + bytes / 1 GB/s."""
    made = MadeRun(tmp_path / "one.run")
    commands = [(UPLOAD, -1, 0.02 + 1.0), (UPLOAD, -1, 0.02 + 0.001), *PLAIN[1:]]
    made.steps(8, commands=commands)
    made.writer.commit()
    for step in range(4):
        run_rows = made.writer._db.execute("SELECT data FROM command WHERE step=?", (step,)).fetchone()[0]
        table = np.frombuffer(run_rows, "<i8").reshape(9, -1).copy()
        table[2, :2] = 1_000_000, 1000
        made.writer.put("command", step, table.shape[1], table.tobytes())
    with made.open() as run:
        rows = [r for r in run.transfers() if r.kind == "upload"]
        assert [r.bytes for r in rows] == [1_000_000, 1000]
        for row in rows:
            assert row.latency_ms == pytest.approx(0.02, rel=1e-3)
            assert row.bandwidth_gbytes_s == pytest.approx(1.0, rel=1e-3)
            assert row.split_from == "this run" and row.per_step == 1.0
        (down,) = (r for r in run.transfers() if r.kind == "download")
        assert down.latency_ms is None and down.split_from.startswith("not known")
        assert down.ms == pytest.approx(0.05)


def test_ceilings_split_a_transfer_of_one_size(tmp_path):
    known = {
        "flops": 1e9,
        "bytes_s": 1e9,
        "to_device_bytes_s": 2e9,
        "to_device_latency_s": 1e-5,
        "to_host_bytes_s": 4e9,
        "to_host_latency_s": 3e-5,
    }
    made = MadeRun(tmp_path / "one.run", ceilings=known)
    made.steps(8)
    with made.open() as run:
        up, down = run.transfers()
        assert (up.latency_ms, up.bandwidth_gbytes_s) == pytest.approx((0.01, 2.0))
        assert (down.latency_ms, down.bandwidth_gbytes_s) == pytest.approx((0.03, 4.0))
        assert up.split_from == "the device's ceilings"
        use = run.utilisation()
        moved = 4000 / (run.periods[0].length * 1e-9)
        assert use.bandwidth_share == pytest.approx(moved / 1e9)
        assert use.device_busy == pytest.approx(9 / run.parts().ms)


def test_launches_and_the_host(plain):
    launches = plain.launches()
    assert launches.per_step == 2 and launches.enqueue_us == pytest.approx(0.8)
    assert launches.between_us == pytest.approx(2.0) and launches.start_us is None
    host = plain.host()
    assert host.enqueue_ms == pytest.approx(4 * 0.0008)
    assert host.enqueue_ms + host.waiting_ms + host.other_ms == pytest.approx(host.call_ms)
    assert host.outside_ms == 0


def test_a_run_without_times_says_so_with_none(tmp_path):
    made = MadeRun(tmp_path / "one.run")
    for n in range(30):
        made.writer.put("step", n, "train", 8, START + n * 10 * MS, START + n * 10 * MS + 8 * MS, None, None)
    with made.open() as run:
        assert run.parts() is None and run.launches() is None and run.host() is None
        assert run.transfers() == [] and run.ops()[0].ms is None
        assert run.variance().times.median == pytest.approx(10.0)
        assert run.summary().step_ms == pytest.approx(10.0)
        (found,) = run.findings()  # 2 of 10 ms are outside of the calls
        assert found.kind == "caller" and "2.00 ms between" in found.text and "is not known" in found.text


def test_an_empty_run_opens(tmp_path):
    with MadeRun(tmp_path / "one.run").open() as run:
        one = run.summary()
        assert one.steps == 0 and one.parts is None and run.findings() == []
        assert run.energy() == [] and run.op_energy() == [] and run.samples() == []


def test_two_graphs_are_told_apart(tmp_path):
    made = MadeRun(tmp_path / "one.run")
    made.writer.put("op", 2, "g", 0, "matmul", "aten.mm", "forward", "", "sig2", "", 1, 1, 1, "{}")
    for _ in range(10):
        made.steps(4, every=100)
        made.writer.put("step", made.count, "g", 8, made.now, made.now + 30 * MS, None, None)
        made.count, made.now = made.count + 1, made.now + 30 * MS
    with made.open() as run:
        assert run.graphs == ["train", "g"] and run.graph == "train"
        assert run.parts("g") is None and run.parts("train").ms > 9
        assert run.summary().graphs["g"].steps == 10
        assert run.memory("g") == [], "an empty account is no account"
        assert [r.bytes for r in run.memory()] == [64, 64]


def test_memory_is_compared_with_the_process(tmp_path):
    resident = Channel("resident", "memory")
    made = MadeRun(
        tmp_path / "one.run",
        started_ns=START - 500 * MS,
        allocated_bytes=1000,
        plan_bytes=1000,
        caps={"name": "made up", "unified_memory": True},
        **{"memory.train": {"peak_op": 1, "peak_bytes": 900, "owners": []}},
    )
    made.steps(60)
    made.source(
        "process",
        [resident, *busy("cpu time")],
        10,
        lambda t: [5000.0 if t < -1 else 6500.0 if t < 0.2 else 6800.0, 0.0],
    )
    with made.open() as run:
        found = run.memory_summary()
        assert found.peak_bytes == 900 and found.not_alive_bytes == 100
        assert found.process_growth_bytes == 1800
        assert [e.bytes for e in found.explained] == [1000, 500, 300]
        assert sum(e.bytes for e in found.explained) == found.process_growth_bytes


def test_what_the_device_itself_says_it_has_given(tmp_path):
    made = MadeRun(tmp_path / "one.run", started_ns=START - 500 * MS)
    made.steps(60)
    made.source("memory", [Channel("used", "memory")], 100, lambda t: [7e9 * (1 + (t > 0))])
    made.source(
        "nvidia", [Channel("gpu0 memory used", "memory", covers=("memory",))], 100, lambda t: [1e9 if t < -1 else 3e9]
    )
    with made.open() as run:
        assert run.memory_summary().device_growth_bytes == 2e9


def test_utilisation_and_idle_ratios(tmp_path):
    made = MadeRun(tmp_path / "one.run")
    made.steps(300)
    # One core works all the time, one every other half second, one never.
    half = rising(lambda t: float(t % 1 < 0.5))
    made.source("cpu", busy("cpu0", "cpu1", "cpu2"), 10, lambda t: [t, half(t), 0.0])
    made.source(
        "nvidia",
        [
            Channel("gpu0 load", "utilisation", covers=("gpu",)),
            Channel("gpu0 memory load", "utilisation", covers=("memory",)),
        ],
        100,
        lambda t: [80.0, 35.0],
    )
    with made.open() as run:
        use = run.utilisation()
        assert use.cores["cpu0"] == pytest.approx(1, abs=0.01)
        assert use.cores["cpu1"] == pytest.approx(0.5, abs=0.1) and use.cores["cpu2"] == 0
        assert use.cores_idle["cpu0"] == 0 and use.cores_idle["cpu2"] == 1
        assert use.cores_idle["cpu1"] == pytest.approx(0.4, abs=0.15)
        assert use.device_busy + use.device_idle == pytest.approx(1)
        assert use["nvidia/gpu0 load"] == pytest.approx(0.8), "what the hardware says"
        assert use["nvidia/gpu0 memory load"] == pytest.approx(0.35)


def test_the_overhead_of_a_run_that_was_killed(tmp_path):
    """Neither the profiler nor the sampler could write its total cost."""
    made = MadeRun(tmp_path / "one.run", status="running", begun_monotonic_ns=START, recording_ns=30 * MS)
    made.steps(100)
    made.source("cpu", busy("cpu0"), 10, lambda t: [t])
    made.writer.put("cost", 0, 300, 2, 0.030, 0.001, 0.020)
    with made.open() as run:
        found = run.summary().overhead
        assert found.recording_share == pytest.approx(30 * MS / (made.now - START))
        assert found.recorded_over_others == pytest.approx(1, abs=0.01)
        seconds = found.sampler.elapsed_s
        assert found.sampler.sources["cpu"].cpu_share == pytest.approx(0.020 / seconds)
    empty = MadeRun(tmp_path / "two.run", status="running")
    with empty.open() as run:
        assert run.summary().overhead == Overhead(recording_share=None, recorded_over_others=None, sampler=None)


def test_samples_are_summed_up(tmp_path):
    made = MadeRun(tmp_path / "one.run")
    made.steps(60)
    made.source(
        "thermal",
        [Channel("soc", "temperature"), Channel("skin", "temperature")],
        50,
        lambda t: [40.0 + t, float("nan")],
    )
    with made.open() as run:
        (row,) = run.samples()  # A channel without a value is left out; it is not zero.
        assert row.channel == "soc" and row.unit == "°C" and row.n > 5
        assert 40 <= row.min < row.mean < row.max < 41


# ── variance ──────────────────────────────────────────────────────────────────────────────────


def test_warm_up_is_found():
    times = np.array([90, 60, 30, 20, 12] + [10, 11, 10, 9, 10] * 8)
    assert stats.warm_up_end(times) == 5
    assert stats.warm_up_end(np.array([10] * 40)) == 0
    assert stats.warm_up_end(np.array([99, 10])) == 0


@pytest.mark.parametrize(("slow", "first"), [(None, 0), (15, 16)])
def test_recorded_steps_are_no_warm_up(tmp_path, slow, first):
    """Between windows the time of one step in eight is known: 7, 15, 23 and so on."""
    made = MadeRun(tmp_path / "one.run")
    made.steps(64, every=8, slower=lambda i: 3.0 if i == slow else 1.0)
    with made.open() as run:
        assert run.variance().warm_up == first


def test_a_host_that_runs_ahead_does_not_make_steps_shorter():
    """Two of three calls return at once; the device takes 2 ms per step."""
    calls = np.array([100_000, 100_000, 5_800_000] * 200)
    steady = stats.steady(calls, np.zeros(600, np.int64))
    assert np.median(steady) == pytest.approx(2e6, rel=0.05) and steady.sum() == calls.sum()
    assert len(stats.slow(calls, steady)) == 0 and len(stats.slow(calls)) == 200
    calls[300] = 50_000_000
    assert stats.slow(calls, steady).tolist() == [300]


def test_stretches_and_long_steps_stay_apart():
    times = np.array([60, 80, 10, 20, 30, 7]) * 1_000_000
    stretches = np.array([0, 0, 1, 1, 1, 4])
    assert (stats.steady(times, stretches) * 1e-6).tolist() == [60, 80, 20, 20, 20, 7]
    assert stats.steady(np.zeros(4, np.int64), np.zeros(4, np.int64)).tolist() == [0] * 4
    assert len(stats.steady(np.zeros(0, np.int64), np.zeros(0, np.int64))) == 0


def test_slow_steps_are_far_above_the_others():
    rng = np.random.default_rng(0)
    times = rng.normal(100, 2, 200)
    assert len(stats.slow(times)) == 0
    times[[20, 77]] = 180, 150
    assert stats.slow(times).tolist() == [20, 77]


def test_drift_is_steady():
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 2, 200)
    assert stats.drift(np.full(200, 100.0) + noise) == 0
    assert stats.drift(np.linspace(100, 130, 200) + noise) == pytest.approx(0.26, abs=0.04)
    jump = np.where(np.arange(200) < 150, 100.0, 130.0) + noise
    assert stats.drift(jump) == 0, "a jump is no drift"
    assert stats.drift(np.array([1.0, 2.0])) is None


def test_distribution():
    found = stats.distribution(np.arange(1, 102, dtype=float))
    assert (found.median, found.p5, found.p95, found.n) == (51, 6, 96, 101)
    assert found.cv == pytest.approx(np.arange(1, 102).std(ddof=1) / 51)
    assert stats.distribution(np.array([3.0])).cv == 0


def test_drift_of_a_long_run_is_a_finding(tmp_path):
    made = MadeRun(tmp_path / "one.run")
    made.steps(700, slower=lambda i: 1 + 0.4 * i / 700)
    cpu = rising(lambda t: 1.0)
    made.source("cpu", busy("cpu0 busy"), 100, lambda t: [cpu(t)])
    with made.open() as run:
        assert kinds(run) == {"drift"}
        assert run.findings()[0].evidence["share"] == pytest.approx(0.32, abs=0.05)


def test_launches_of_an_idle_device(tmp_path):
    """The second launch is enqueued only after the first has ended. The device begins it 15 µs after the host
    has enqueued it."""
    made = MadeRun(tmp_path / "one.run", offset=0)
    for n in range(4):
        t = START + n * 10 * MS
        u, v = t + 2 * MS, t + 4 * MS
        rows = [
            (LAUNCH, 0, 0, t, t + 1000, 0, 0, t + 16_000, t + 1 * MS),
            (LAUNCH, 1, 0, u, u + 1000, 0, 0, u + 16_000, u + 1 * MS),
            (DOWNLOAD, -1, 4, v, v + 1000, 0, 0, v + 1 * MS, v + 1 * MS + 10),
        ]
        made.writer.put("step", n, "train", 8, t - 1000, t + 6 * MS, 1, None)
        made.writer.put("command", n, 3, np.array(rows, "<i8").T.tobytes())
    with made.open() as run:
        assert run.launches().start_us == pytest.approx((15 + 999) / 2)
        parts = run.parts()
        # The gaps: before the second launch, before the download, and from the download's end to that of the call.
        assert parts.launching == pytest.approx(1.001 + 1.001 + 1.0, abs=0.01)
        assert parts.caller == pytest.approx(3.999, abs=0.01)
        assert parts.ms == pytest.approx(10.0)
