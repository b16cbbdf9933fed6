"""Error texts: what was expected, what came, the user's own file and line, and what to try."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

import handheld
from handheld import suite
from handheld.errors import DeviceError, PlanError
from handheld.names import nearest, suggestion
from helpers.commands import fails

USER = """\
import torch
from torch import nn
from torch.nn import functional as F

def example(n=8):
    return torch.randn(n, 4), torch.zeros(n, dtype=torch.int64)

def parts(model, loss=F.cross_entropy):
    return model, loss, torch.optim.SGD(model.parameters(), 0.1)

def needs(width, depth, name="x"):
    return width

def no_batch():
    return parts(nn.Linear(4, 2))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(5, 2)

    def forward(self, x):
        y = self.a(x)
        return self.b(y)

def wrong_shapes():
    return (*parts(Net()), example())

def wrong_layer():
    return (*parts(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(5, 2))), example())

def my_loss(scores, y):
    return scores.nothing(y)

def wrong_loss():
    return (*parts(nn.Linear(4, 2), my_loss), example())

def wrong_batch():
    return (*parts(nn.Linear(4, 2)), lambda n: torch.nope(n))

def wrong_import():
    import no_such_package_anywhere
"""
LINES = {text.strip(): n for n, text in enumerate(USER.splitlines(), 1)}


@pytest.fixture(autouse=True)
def user(work):
    (work / "user.py").write_text(USER)
    (work / "syntax.py").write_text("import torch\n\ndef make(:\n    pass\n")
    (work / "data.json").write_text("{}")


def test_a_factory_that_cannot_be_called(run):
    fails(run("verify", "syntax.py:make"), "syntax.py:3: SyntaxError: ", "Try: correct that line")
    line = LINES['def needs(width, depth, name="x"):']
    fails(
        run("verify", "user.py:needs"), f"(line {line}) needs the arguments width, depth", "Try: a default (width=...)"
    )
    fails(run("verify", "user.py:no_bach"), "no function 'no_bach'. Try: no_batch")
    line = LINES["import no_such_package_anywhere"]
    fails(run("verify", "user.py:wrong_import"), f"user.py:{line}: ModuleNotFoundError", "Try: pip install no_such_p")
    line = LINES["return (*parts(nn.Linear(4, 2)), lambda n: torch.nope(n))"]
    fails(run("verify", "user.py:wrong_batch"), "called with 4", f"user.py:{line}: AttributeError", "Try: ")


def test_a_model_that_does_not_run(run):
    line = LINES["return self.b(y)"]
    fails(
        run("verify", "user.py:wrong_shapes"),
        "float32[4, 4], int64[4]",
        f"in user.py:{line}: return self.b(y): RuntimeError",
        "Try: ",
    )
    for command in ("plan", "profile", "package", "tune"):
        fails(run(command, "user.py:wrong_shapes"), f"in user.py:{line}: return self.b(y): RuntimeError")
    line = LINES["return scores.nothing(y)"]
    fails(
        run("verify", "user.py:wrong_loss"),
        f"user.py:{line}: return scores.nothing(y): AttributeError: 'Tensor' object has no",
        "Try: ",
    )
    fails(run("verify", "user.py:wrong_layer"), "in layer 2 (Linear): RuntimeError", "Try: ")


def test_a_file_that_does_not_exist(run):
    fails(run("verify", "user.pyy:no_batch"), "there is no file user.pyy. Try: user.py:no_batch")
    fails(run("verify", "uzer.py:no_batch"), "there is no file uzer.py. Try: user.py:no_batch")
    fails(run("verify", "data.json:no_batch"), "data.json is not a Python file. Try: ")


def test_advice_fits_the_command(run, tmp_path):
    fails(run("verify", "user.py:no_batch"), "Try: --data DATA, or let it return")
    fails(run("plan", "user.py:no_batch"), "Try: --data DATA, or let it return")
    result = run("bench", "user.py:no_batch", "--on", "opencl", "--steps", "1", "--out", str(tmp_path / "r"))
    said = " ".join(result.stdout.split())
    assert "Try: let it return (model, loss, optimizer, batch)" in said and "--data" not in said
    for words in (("--compare", "data.json", "data.json"), ("--resume", "data.json")):
        fails(run("bench", *words), "data.json is a file. Try: the folder that handheld bench --out FOLDER wrote")


def test_sizes_of_workloads_without_images(run):
    for name in ("lenet5", "gpt", "m1"):
        fails(run("verify", name, "--size", "64"), f"{name} has no images whose size can be chosen. Try: --size small")


def test_unknown_names_suggest_the_nearest_three(run):
    fails(run("verify", "lenet6"), "there is no workload 'lenet6'. Try: lenet5, ")
    result = run("verify", "resnet")
    fails(result, "Try: resnet50, resnet101 or resnet152")
    assert "mobilenet" not in result.stderr
    fails(run("verify", "qqqqqqq"), "Try: handheld bench --list")
    fails(run("verify", "lenet5", "--on", "opncl"), "Try: opencl")
    with pytest.raises(DeviceError, match=r"no description of 'adreno740'\. Try: adreno-740"):
        handheld.DeviceCaps.shipped("adreno740")
    assert nearest("LeNet5", ["lenet5", "alexnet"])[0] == "lenet5"
    assert suggestion("zz", ["lenet5"], "something else") == "Try: something else"


def test_the_null_device_has_no_loss(run, tmp_path):
    result = run("bench", "m1", "--on", "null", "--steps", "1", "--out", str(tmp_path / "r"))
    said = " ".join(result.stdout.split())
    assert "the null device computes nothing" in said and "NaN" not in said


def test_verify_without_tolerance_does_not_contradict_itself(run):
    said = " ".join(run("verify", "mine.py:with_batch", "--tolerance", "0", "--graph", "predict").stdout.split())
    assert "as near as PyTorch's own float32" in said and "larger error" not in said


def test_energy_without_a_sensor_is_short(run, monkeypatch):
    from handheld.profile import sampling

    monkeypatch.setattr(sampling, "find", lambda where: [])
    result = run("profile", "m1", "--energy")
    fails(result, "no power sensor that can be read", "Try: handheld doctor", "--estimate-energy")
    assert len(result.stderr) < 220


def test_show_and_export_of_a_folder(run, work):
    (work / "folder" / "runs").mkdir(parents=True)
    for command in ("show", "export"):
        fails(run(command, "folder"), "folder is a folder, not a run file. Try: a run file")
        fails(run(command, "gone.run"), "there is no run file gone.run. Try: handheld profile MODEL --out gone.run")
    (work / "folder" / "runs" / "one.run").touch()
    fails(run("show", "folder"), "such as folder/runs/one.run")


def test_show_of_a_killed_run_says_so(run, work):
    assert run("package", "m1", "--out", "m1.step").exit_code == 0
    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "handheld",
            "profile",
            "m1.step",
            "--steps",
            "1000000",
            "--out",
            "killed.run",
            "--no-ceilings",
        ],
        cwd=work,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(600):
            time.sleep(0.1)
            if (work / "killed.run").exists() and json.loads(run("show", "killed.run", "--json").stdout)["steps"]:
                break
        assert "killed" not in run("show", "killed.run").stdout.replace("killed.run", ""), "it still runs"
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert "killed: its process is gone" in " ".join(run("show", "killed.run").stdout.split())


def test_tune_of_python():
    step = suite.get("m1").step(4)
    with pytest.raises(DeviceError, match="unknown device 'foo'"):
        handheld.tune(step, device="foo")
    with pytest.raises(PlanError, match=r"reference:cpu has no variants.*Try: opencl"):
        handheld.tune(step, device="reference:cpu")
    for seconds in (-1, 0, float("nan"), float("inf")):
        with pytest.raises(PlanError, match=r"seconds=.* more than 0\. Try: seconds=120"):
            handheld.tune(step, seconds=seconds)


def test_dir_lists_the_public_names():
    assert set(handheld.__all__) <= set(dir(handheld))
    assert not {"Any", "Path", "TYPE_CHECKING", "annotations"} & set(dir(handheld))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes before Python 3.11")
def test_capture_in_python_names_the_line(work, monkeypatch):
    monkeypatch.syspath_prepend(str(work))
    monkeypatch.chdir(work)
    import user as own  # type: ignore[import-not-found]

    model, loss, optimizer, batch = own.wrong_shapes()
    with pytest.raises(RuntimeError) as error:
        handheld.capture(model, loss, optimizer, batch)
    assert error.value.__notes__ == [
        "handheld.capture ran your code on a batch of float32[8, 4], int64[8]; "
        f"the error is in user.py:{LINES['return self.b(y)']}"
    ]
