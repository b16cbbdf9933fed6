"""`handheld import`: a trace of torch.profiler as a run. The traces are real; that of a GPU is a real one of a CPU with
kernels added in the form in which the profiler writes them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from handheld.analyse.run import Run, open_run
from handheld.cli.main import app
from handheld.errors import TraceError
from handheld.export import export
from handheld.traces import events
from handheld.traces.pytorch import import_trace

torch = pytest.importorskip("torch")
nn = torch.nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())
        self.head = nn.Linear(4 * 26 * 26, 10)

    def forward(self, x):
        with torch.profiler.record_function("flat <i>"):
            flat = self.body(x).flatten(1)
        return self.head(flat)


def record(path: Path, steps: int = 5, mark: bool = True, **options: Any) -> Path:
    """A real trace of a few training steps."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x, y = torch.randn(8, 1, 28, 28), torch.randint(0, 10, (8,))
    if mark:
        # One step before those of the trace, so that the profiler itself is warm.
        options["schedule"] = torch.profiler.schedule(wait=0, warmup=1, active=steps, repeat=1)
    options["on_trace_ready"] = lambda done: done.export_chrome_trace(str(path))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options) as profiler:
        for _ in range(steps + mark):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if mark:
                profiler.step()
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def full(folder: Path) -> Path:
    return record(folder / "full.json", with_stack=True, record_shapes=True, profile_memory=True)


@pytest.fixture(scope="module")
def document(full: Path) -> dict[str, Any]:
    return json.loads(full.read_text())


def imported(trace: Path, out: Path) -> Run:
    return open_run(import_trace(trace, out))


def titles(run: Run) -> dict[str, list[str]]:
    """The ops of each phase in their order, as `path op`."""
    found: dict[str, list[str]] = {}
    for row in run.op_rows:
        found.setdefault(row.phase, []).append(row.title)
    return found


def test_ops_have_modules_phases_and_times(full: Path, document: dict[str, Any], tmp_path: Path) -> None:
    with imported(full, tmp_path / "full.run") as run:
        ops = titles(run)
        assert ops["forward"][:4] == [
            "Net_0.flat <i>.Sequential_0.Conv2d_0 conv2d",
            "Net_0.flat <i>.Sequential_0.ReLU_0 relu",
            "Net_0.flat <i> flatten",
            "Net_0.Linear_0 linear",
        ]
        assert "Net_0.flat <i>.Sequential_0.Conv2d_0 convolution_backward" in ops["backward"]
        assert "Net_0.Linear_0 mm" in ops["backward"] and "(model) add_" in ops["update"]
        conv = next(row for row in run.op_rows if row.op == "conv2d")
        assert conv.signature == "aten::conv2d 8x1x28x28 4x1x3x3 4" and conv.source == "aten.conv2d"
        assert conv.bytes == 4 * (8 * 28 * 28 + 4 * 9 + 4)
        marks = [e for e in document["traceEvents"] if str(e.get("name")).startswith("ProfilerStep#")]
        assert [s.id for s in run.steps()] == sorted(int(e["name"].partition("#")[2]) for e in marks)
        begins = sorted(round(e["ts"] * 1000) for e in marks)
        assert [s.begin_ns for s in run.steps()] == begins
        # Every conv2d of the trace is there, with its own times.
        expected = sorted((round(e["ts"] * 1000), round(e["dur"] * 1000)) for e in of(document, "aten::conv2d"))
        found = sorted(
            (int(c["started"]), int(c["ended"] - c["started"]))
            for step in run.timed
            for c in step.commands
            if c["op"] == conv.id
        )
        assert found == expected and len(found) == len(run.steps())
        parts = run.parts()
        assert parts is not None and parts.forward > 0 and parts.backward > 0 and parts.update > 0
        (memory,) = run.channels
        assert memory.rail == "pytorch cpu/allocated" and memory.values.max() > 0
        assert run.meta["device"] == "pytorch:cpu" and run.meta["begun_unix_ns"] > 1_600_000_000_000_000_000
        assert not run.notes(), run.notes()


def of(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [e for e in document["traceEvents"] if e.get("cat") == "cpu_op" and e.get("name") == name]


def test_no_op_is_counted_twice(full: Path, tmp_path: Path) -> None:
    with imported(full, tmp_path / "full.run") as run:
        for step in run.timed:
            assert (step.commands["started"][1:] >= step.commands["ended"][:-1]).all()
        parts = run.parts()
        assert parts is not None and parts.unexplained == pytest.approx(0, abs=1e-6)


def test_without_modules_marks_and_shapes(folder: Path, tmp_path: Path) -> None:
    """Steps end with the optimizer's step, and a note says what is missing."""
    trace = record(folder / "plain.json", steps=4, mark=False)
    with imported(trace, tmp_path / "plain.run") as run:
        assert len(run.steps()) == 4 and run.parts() is not None
        assert {"flat <i> conv2d", "(model) linear"} <= set(titles(run)["forward"])
        assert run.utilisation().gflops is None and run.utilisation().gbytes_s is None


def test_every_view_of_a_run_takes_it(full: Path, tmp_path: Path) -> None:
    out = tmp_path / "seen.run"
    result = CliRunner().invoke(app, ["import", str(full), "--out", str(out)], prog_name="handheld")
    assert result.exit_code == 0, result.output
    assert "conv2d" in result.stdout and "seen.run" in result.stdout
    for command in (["show", str(out)], ["show", str(out), "--json"], ["report", str(out)]):
        shown = CliRunner().invoke(app, command, prog_name="handheld")
        assert shown.exit_code == 0, shown.output
    with open_run(out) as run:
        assert export(run, "chrome", tmp_path / "again.json")[0].stat().st_size > 1000
    again = CliRunner().invoke(app, ["import", str(full), "--out", str(out)], prog_name="handheld")
    assert again.exit_code == 1 and "exists" in again.stderr and "Try:" in again.stderr


def test_a_compressed_trace(full: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(full.read_bytes()))
    with imported(packed, tmp_path / "a.run") as a, imported(full, tmp_path / "b.run") as b:
        assert [row.to_json() for row in a.ops()] == [row.to_json() for row in b.ops()]


# ── a GPU ─────────────────────────────────────────────────────────────────────────────────────


def with_kernels(document: dict[str, Any]) -> dict[str, Any]:
    """The same trace as if each conv2d launched two kernels, each linear one, and every step one upload."""
    made = json.loads(json.dumps(document))
    made["deviceProperties"] = [{"id": 0, "name": "A Made Up GPU"}]
    added: list[dict[str, Any]] = []
    at = 0.0

    def launch(op: dict[str, Any], cat: str, name: str, dur: float, **args: Any) -> None:
        nonlocal at
        number = len(added) + 1
        host = {"ph": "X", "pid": op["pid"], "tid": op["tid"], "ts": op["ts"] + 1 + number % 2, "dur": 0.5}
        added.append({**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": {"correlation": number}})
        at = max(at, host["ts"] + 5)
        device = {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": at, "dur": dur}
        added.append({**device, "args": {"correlation": number, "stream": 7, "External id": 0, **args}})
        at += dur

    for event in sorted((e for e in made["traceEvents"] if e.get("ph") == "X"), key=lambda e: e["ts"]):
        if event["name"] == "aten::conv2d":
            launch(event, "gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 2.0, bytes=25_088)
            launch(event, "kernel", "void im2col<float>(int)", 3.0)
            launch(event, "kernel", "sgemm_128x64", 40.0)
        elif event["name"] in ("aten::linear", "aten::convolution_backward"):
            launch(event, "kernel", "sgemm_128x64", 30.0)
    made["traceEvents"] += added
    return made


def test_kernels_belong_to_the_op_that_launched_them(document: dict[str, Any], tmp_path: Path) -> None:
    trace = tmp_path / "gpu.json"
    trace.write_text(json.dumps(with_kernels(document)))
    with imported(trace, tmp_path / "gpu.run") as run:
        assert run.meta["device"] == "pytorch:cuda" and run.meta["caps"]["name"] == "A Made Up GPU"
        rows = {(row.path.rpartition(".")[2], row.op, row.phase, row.variant): row.ms for row in run.ops()}
        assert rows == {
            ("Conv2d_0", "conv2d", "forward", "sgemm_128x64"): pytest.approx(0.040),
            ("Conv2d_0", "conv2d", "forward", "void im2col<float>(int)"): pytest.approx(0.003),
            ("Linear_0", "linear", "forward", "sgemm_128x64"): pytest.approx(0.030),
            ("Conv2d_0", "convolution_backward", "backward", "sgemm_128x64"): pytest.approx(0.030),
        }
        (upload,) = run.transfers()
        assert (upload.kind, upload.bytes, upload.per_step) == ("upload", 25_088, 1.0)
        launches = run.launches()
        assert launches is not None and launches.per_step == 4 and launches.enqueue_us == pytest.approx(0.5)


def test_a_kernel_without_its_op_is_kept_and_noted(document: dict[str, Any], tmp_path: Path) -> None:
    made = with_kernels(document)
    for event in made["traceEvents"]:
        if event.get("cat") == "kernel" and "im2col" in event["name"]:
            event["args"] = {"stream": 7}
    trace = tmp_path / "lost.json"
    trace.write_text(json.dumps(made))
    with imported(trace, tmp_path / "lost.run") as run:
        assert any("without the op that launched it" in note.text for note in run.notes())
        assert {row.op for row in run.op_rows} == {
            "conv2d",
            "linear",
            "convolution_backward",
            "void im2col<float>(int)",
        }


# ── bad input ─────────────────────────────────────────────────────────────────────────────────


def refused(path: Path, content: bytes | str, match: str) -> None:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    out = path.with_suffix(".run")
    with pytest.raises(TraceError, match=match) as error:
        import_trace(path, out)
    assert "Try:" in str(error.value) and not out.exists()


def test_what_is_not_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    refused(path, "", "not JSON")
    refused(path, "hello", "not JSON")
    refused(path, b"\x89PNG\xff\xfe\x00", "not text|not JSON")
    refused(path, "[" * 100_000, "nested too deeply|cut short")
    refused(path, "{}", "no list traceEvents")
    refused(path, '{"traceEvents": {}}', "no list traceEvents")
    refused(path, '{"traceEvents": []}', "no op of PyTorch")
    refused(path, '{"traceEvents": [1]}', "event 0 of 1")
    with pytest.raises(TraceError, match="does not exist"):
        import_trace(tmp_path / "none.json", tmp_path / "none.run")
    with pytest.raises(TraceError, match="is a folder"):
        import_trace(tmp_path, tmp_path / "none.run")


def test_a_trace_cut_short(full: Path, tmp_path: Path) -> None:
    text = full.read_bytes()
    for share in (0.3, 0.9, 0.999):
        refused(tmp_path / "short.json", text[: int(len(text) * share)], "cut short")
    packed = gzip.compress(text)
    refused(tmp_path / "short.json.gz", packed[: len(packed) // 2], "cut short or damaged")


def test_damaged_events(document: dict[str, Any], tmp_path: Path) -> None:
    for change in ({"ts": None}, {"ts": "soon"}, {"dur": float("nan")}, {"args": [1]}, {"name": None, "pid": None}):
        made = json.loads(json.dumps(document))
        op = next(e for e in made["traceEvents"] if e.get("cat") == "cpu_op")
        op.update(change)
        path = tmp_path / "damaged.json"
        if "name" in change:
            path.write_text(json.dumps(made))
            import_trace(path, tmp_path / "odd.run")  # odd, but readable
        else:
            refused(path, json.dumps(made), "cannot be read")


def test_too_large(full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_BYTES", 1000)
    refused(tmp_path / "large.json", full.read_bytes(), "up to 1.0 KB is read|up to 1000 B is read|is read")
    bomb = gzip.compress(b" " * 100_000)
    assert len(bomb) < 1000
    refused(tmp_path / "bomb.json.gz", bomb, "more than")
    monkeypatch.setattr(events, "MOST_BYTES", 1 << 30)
    monkeypatch.setattr(events, "MEMORY", 1 << 50)
    refused(tmp_path / "memory.json", full.read_bytes(), "of memory")


def test_too_few_steps(folder: Path, tmp_path: Path) -> None:
    trace = record(folder / "few.json", steps=2, mark=False)
    with pytest.raises(TraceError, match=r"2 steps.*schedule"):
        import_trace(trace, tmp_path / "few.run")
