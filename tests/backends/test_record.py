"""Recorded steps compute the same bits as plain launches, and what cannot be recorded is launched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyopencl as cl
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import handheld
from handheld.backends.opencl.devices import find
from handheld.backends.opencl.record import KHR, QCOM, VARIABLE, submitter_for
from handheld.backends.opencl.submit import Enqueuer
from handheld.errors import DeviceError
from helpers.qcom import build_layer, environment, seen
from helpers.recorded_steps import STEPS, run

REPLAYS = STEPS + 2 - 2  # all but the first step and the one that keeps times


@pytest.fixture(scope="module")
def step() -> handheld.Step:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5))
    batch = torch.randn(4, 12), torch.randint(0, 5, (4,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return handheld.capture(model, F.cross_entropy, optimizer, batch, evaluate=False)


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_layer(tmp_path_factory.mktemp("layer"))


def in_a_process(step: handheld.Step, env: dict[str, str], folder: Path, *ways: str) -> dict[str, Any]:
    file = folder / "a.step"
    step.save(file)
    source = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-m", "helpers.recorded_steps", str(file), *ways],
        env={**env, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def test_an_adreno_replays_its_steps(step: handheld.Step, layer: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    got = in_a_process(step, environment(layer, log), tmp_path, "off", "auto")
    assert got["auto"]["replays"] == REPLAYS and got["off"]["replays"] == 0
    assert [got["auto"][k] for k in ("losses", "state", "noted")] == [
        got["off"][k] for k in ("losses", "state", "noted")
    ]
    saw = seen(log)
    launches = step.plan("opencl", tuning=False).graphs["train"].launches
    assert saw == {"recorded": 1, "replays": REPLAYS, "replayed": REPLAYS * launches, "broken": 0, "hints": 0}


def test_a_driver_that_refuses_gets_launches(step: handheld.Step, layer: Path, tmp_path: Path) -> None:
    got = in_a_process(step, environment(layer, tmp_path / "log", "recordings"), tmp_path, "qcom", "off")
    assert got["qcom"]["replays"] == 0
    assert got["qcom"]["state"] == got["off"]["state"]
    (said,) = got["qcom"]["warnings"]
    assert "cannot record a step (clNewRecordingQCOM: OUT_OF_RESOURCES)" in said and "launches go on" in said


def test_a_command_buffer_computes_the_same(step: handheld.Step) -> None:
    if KHR not in find("opencl").device.extensions.split():
        pytest.skip(f"the device has no {KHR}")
    plain, replayed = run(step, "off"), run(step, "khr")
    assert replayed["replays"] == REPLAYS
    assert replayed["state"] == plain["state"] and replayed["losses"] == plain["losses"]


def test_a_device_without_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    device: cl.Device = find("opencl").device
    assert isinstance(submitter_for(device, "off"), Enqueuer)
    for way, extension in (("qcom", QCOM), ("khr", KHR)):
        if extension not in device.extensions.split():
            with pytest.raises(DeviceError, match=rf"has no {extension}\. Try: {VARIABLE}=off"):
                submitter_for(device, way)
    monkeypatch.setenv(VARIABLE, "sometimes")
    with pytest.raises(DeviceError, match=r"HANDHELD_RECORDING='sometimes' .* Try: auto, off, qcom or khr"):
        submitter_for(device)
