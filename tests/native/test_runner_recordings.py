"""The runner replays steps with the same results as plain launches, and says how it runs them.

Qualcomm's extensions come from an OpenCL layer (qcom_layer.c), which also checks their rules.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from helpers.qcom import build_layer, environment, seen
from helpers.runner import Refused, Wire, opencl_library
from helpers.tiny_plan import TinyPlan

PLAN, CLOSE, END = 3, 4, 5
WRITE, READ, RUN = 10, 11, 12
RECORD, RECORDED = 20, 21
AUTO, OFF, KHR, QCOM = 0, 2, 4, 6  # flags of OPEN and PLAN
HINTS = "high performance, low priority"
STEPS = 5


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_layer(tmp_path_factory.mktemp("layer"))


@pytest.fixture
def plan(described: dict[str, object]) -> TinyPlan:
    unified = bool(described["unified_memory"])
    return TinyPlan(str(described["name"]), max(int(str(described["base_align_bytes"])), 4), unified).fill()


def opened(wire: Wire, plan: TinyPlan, flags: int = AUTO) -> dict[str, object]:
    data = plan.pack()
    facts: dict[str, object] = json.loads(
        wire.ask(PLAN, struct.pack("<II", 0, flags) + hashlib.sha256(data).digest() + data)[4:]
    )
    return facts


def trained(wire: Wire, plan: TinyPlan) -> list[bytes]:
    """What the plan computes in some steps, each from other numbers."""
    at, results = max(plan.align, 256), []
    for i in range(STEPS):
        wire.send(WRITE, struct.pack("<IIQ", 0, 0, 0) + np.arange(i, i + 64, dtype=np.float32).tobytes())
        wire.send(RUN, struct.pack("<I", 0))
        results.append(wire.ask(READ, struct.pack("<IIQQ", 0, 0, at, 256)))
        results.append(wire.ask(READ, struct.pack("<IIQQ", 1, 0, at, 4)))  # copied after the launches
    return results


def test_an_adreno_replays_its_steps(runner: Path, layer: Path, plan: TinyPlan, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Wire(runner, tmp_path / "folder", env=environment(layer, log)) as wire:
        facts = opened(wire, plan, OFF)
        assert (facts["recording"], facts["hints"]) == ("plain", HINTS)
        plain = trained(wire, plan)
        assert opened(wire, plan)["recording"] == "qcom"
        assert trained(wire, plan) == plain
        wire.ask(RECORD, struct.pack("<I", 1))
        assert trained(wire, plan) == plain
        launches = sum(row[0] == 0 for row in struct.iter_unpack("<9q", wire.ask(RECORDED)))
        assert launches == 2 * STEPS, "steps whose commands keep times are launched"
        wire.ask(RECORD, struct.pack("<I", 0))
        assert trained(wire, plan) == plain
        wire.ask(END)
    assert seen(log) == {
        "recorded": 1,
        "replays": 2 * STEPS - 1,
        "replayed": 2 * (2 * STEPS - 1),
        "broken": 0,
        "hints": 2,
    }


def test_a_driver_that_refuses_gets_launches(runner: Path, layer: Path, plan: TinyPlan, tmp_path: Path) -> None:
    with Wire(runner, tmp_path / "folder", env=environment(layer, tmp_path / "log", "hints recordings")) as wire:
        facts = opened(wire, plan)
        assert str(facts["hints"]).startswith("refused: ")
        refused = trained(wire, plan)
        opened(wire, plan, OFF)
        assert refused == trained(wire, plan)
        wire.ask(END)
        assert wire.process.stderr is not None
        assert (
            "cannot record a step (CL_OUT_OF_RESOURCES (-5)); its launches go on" in wire.process.stderr.read().decode()
        )


def test_a_command_buffer_computes_the_same(
    runner: Path, described: dict[str, object], plan: TinyPlan, tmp_path: Path
) -> None:
    if "cl_khr_command_buffer" not in str(described["extensions"]).split():
        pytest.skip("the device has no cl_khr_command_buffer")
    with Wire(runner, tmp_path / "folder") as wire:
        opened(wire, plan, OFF)
        plain = trained(wire, plan)
        assert opened(wire, plan, KHR)["recording"] == "khr"
        assert trained(wire, plan) == plain
        wire.ask(END)


def test_a_device_without_recordings(
    runner: Path, described: dict[str, object], plan: TinyPlan, tmp_path: Path
) -> None:
    with Wire(runner, tmp_path / "folder") as wire:
        facts = opened(wire, plan)
        assert facts["recording"] == described["recording"] == "plain" and "hints" not in facts
        with pytest.raises(Refused, match=r"has no cl_qcom_recordable_queues\. Try: HANDHELD_RECORDING=off"):
            opened(wire, plan, QCOM)
        assert opened(wire, plan, OFF)["recording"] == "plain"
    strange = {**os.environ, "HANDHELD_RECORDING": "sometimes"}
    with (
        Wire(runner, tmp_path / "folder", env=strange) as wire,
        pytest.raises(Refused, match=r"HANDHELD_RECORDING=sometimes is no way to run a step\. Try: auto, off"),
    ):
        opened(wire, plan)


def test_info_names_the_way(runner: Path, layer: Path, tmp_path: Path) -> None:
    said = subprocess.run(
        [runner, "info", *opencl_library()], env=environment(layer, tmp_path / "log"), capture_output=True, check=True
    )
    assert json.loads(said.stdout)["devices"][0]["recording"] == "qcom"
