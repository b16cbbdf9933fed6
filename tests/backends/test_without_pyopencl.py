"""Python without pyopencl: the runner serves `opencl`, and hints fit the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from handheld.backends.hints import driver_hint

#: Trains on `opencl` and prints the device's name, the losses and what was warned about.
TRAIN = """
import sys, warnings
import torch, torch.nn.functional as F
import handheld
warnings.simplefilter("always")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
batch = torch.randn(4, 6), torch.randint(0, 3, (4,))
step = handheld.capture(model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), batch, evaluate=False)
with warnings.catch_warnings(record=True) as said, step.plan("opencl").start() as trainer:
    losses = [float(trainer.step(*batch)) for _ in range(3)]
print(trainer.session.device_name, trainer.session.__class__.__name__, losses)
print(sum("the native runner serves" in str(one.message) for one in said))
"""


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that cannot import pyopencl."""
    folder = tmp_path_factory.mktemp("hidden")
    (folder / "pyopencl.py").write_text("raise ImportError('hidden')\n")
    path = os.pathsep.join([str(folder), *(p for p in sys.path if p)])
    return {**os.environ, "PYTHONPATH": path}


def test_opencl_is_served_by_the_runner(hidden: dict[str, str]) -> None:
    there, here = (
        subprocess.run([sys.executable, "-c", TRAIN], env=env, capture_output=True, text=True, check=False)
        for env in (hidden, dict(os.environ))
    )
    assert there.returncode == 0, there.stderr
    device, kind, losses = there.stdout.splitlines()[0].split(" ", 2)
    other, own, want = here.stdout.splitlines()[0].split(" ", 2)
    assert (kind, own) == ("RunnerSession", "OpenCLSession")
    assert device == other and losses == want
    assert there.stdout.splitlines()[1] == "1" and here.stdout.splitlines()[1] == "0"


def test_doctor_lists_the_devices_of_the_runner(hidden: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "handheld", "doctor"]
    done = subprocess.run(command, env=hidden, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "device opencl:" in text and "PASS" in text
    assert "pyopencl cannot be imported (hidden): the native runner serves the OpenCL devices here" in text


def test_no_import_of_handheld_needs_pyopencl(hidden: dict[str, str]) -> None:
    code = (
        "import pkgutil, importlib, handheld\n"
        "names = [m.name for m in pkgutil.walk_packages(handheld.__path__, 'handheld.') if '__main__' not in m.name]\n"
        "[importlib.import_module(name) for name in names]"
    )
    done = subprocess.run([sys.executable, "-c", code], env=hidden, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("machine", "prefix", "want", "never"),
    [
        ("x86_64", "", "pip install pocl-binary-distribution", "apt"),
        ("aarch64", "", "apt install pocl-opencl-icd", "pip"),
        ("armv7l", "", "apt install pocl-opencl-icd", "pip"),
        ("aarch64", "/data/data/com.termux/files/usr", "pkg install ocl-icd", "pip"),
        ("aarch64", "/data/data/com.termux/files/usr", "export LD_LIBRARY_PATH=/vendor/lib64:$PREFIX/lib", "pip"),
        ("riscv64", "", "the vendor's OpenCL driver", "pip"),
    ],
)
def test_hints_fit_the_machine(
    monkeypatch: pytest.MonkeyPatch, machine: str, prefix: str, want: str, never: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setenv("PREFIX", prefix)
    hint = driver_hint()
    assert hint.startswith("Try: ") and want in hint and never not in hint and "reference:cpu" in hint
