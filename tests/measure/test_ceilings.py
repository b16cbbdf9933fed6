"""Ceilings: measured, stored per device and driver, and shown."""

from __future__ import annotations

import dataclasses
import json

import pytest

import handheld
from handheld.backends.base import describe
from handheld.errors import DeviceError
from handheld.measure import ceilings, measurable, open_device, target_device
from handheld.measure.ceilings import Ceilings, measure, path_of, stored, working_sets


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """Replaces the measurement by one that takes no time and says nothing about the device."""
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path))
    for module in (ceilings, measurable, open_device, target_device):
        for name, value in (
            ("RUN_SECONDS", 1e-4),
            ("LARGEST", 64 << 10),
            ("TRANSFER", 1 << 20),
            ("LAUNCHES", 20),
            ("WIDTHS", ("4",)),
            ("SUMS", (4,)),
        ):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)


@pytest.mark.parametrize("device", ("opencl", "runner"))
def test_ceilings_are_measured_once_and_kept(quick, monkeypatch, device):
    told = []
    found = measure(device, lambda what, part: told.append((what, part)))
    caps = describe(device)
    assert (found.device, found.driver) == (caps.name, caps.driver)
    assert [m.working_set_bytes for m in found.memory] == [16 << 10, 64 << 10]
    rates = [
        found.fp32,
        found.to_device,
        found.to_host,
        *(m.read for m in found.memory),
        *(m.copy for m in found.memory),
    ]
    assert all(1e6 < rate.median < 1e16 and rate.spread >= 0 for rate in rates)
    assert found.bandwidth == found.memory[-1].copy.median and found.fp32_type == "float4"
    waits = (
        found.launch_enqueue_s,
        found.launch_device_s,
        found.launch_round_trip_s,
        found.to_device_latency_s,
        found.to_host_latency_s,
    )
    assert all(0 < wait.median < 1 for wait in waits)
    assert (found.fp16 is None) == (not caps.fp16)
    parts = [part for _, part in told]
    assert parts == sorted(parts) and parts[0] == 0 and parts[-1] < 1
    monkeypatch.setattr(ceilings, "measure", lambda device: pytest.fail("measured again"))
    assert stored(caps) == found == handheld.ceilings(device)


def test_ceilings_of_another_driver_are_not_these(quick):
    caps = describe("opencl")
    found = measure("opencl")
    assert stored(dataclasses.replace(caps, driver="another")) is None
    path = path_of(caps)
    for text in (
        "{",
        "[]",
        path.read_text().replace('"fp32"', '"fp31"'),
        path.read_text().replace('"version": 1', '"version": 9'),
        path.read_text().replace(json.dumps(caps.driver), '"another"'),
    ):
        path.write_text(text)
        assert stored(caps) is None
    path.write_text(json.dumps(found.to_json()))
    assert stored(caps) == found == Ceilings.from_json(found.to_json())


def test_ceilings_say_when_something_else_ran(quick, monkeypatch):
    assert 0 <= measure("opencl").others <= 1
    for others, said in ((0.05, ""), (0.7, "other processes used 70% of the processors")):
        then = iter([(100.0, 10.0), (200.0, 10.0 + 100 * others)])
        monkeypatch.setattr(ceilings, "_processor_s", lambda then=then: next(then))
        found = measure("opencl")
        assert found.others == pytest.approx(others) and stored(describe("opencl")) == found
        assert said in found.disturbed and bool(found.disturbed) == bool(said)
    old = {k: v for k, v in found.to_json().items() if k != "others"}
    assert Ceilings.from_json(old).others is None and not Ceilings.from_json(old).disturbed


def test_working_sets_fit_the_device():
    caps = describe("opencl")
    small = dataclasses.replace(caps, global_mem_bytes=8 << 20)
    assert list(working_sets(small)) == [16 << 10, 64 << 10, 256 << 10, 1 << 20]
    assert max(working_sets(dataclasses.replace(caps, global_mem_bytes=1 << 40))) == 1 << 30
    piece = dataclasses.replace(caps, global_mem_bytes=1 << 40, max_alloc_bytes=100 << 10)
    assert max(working_sets(piece)) == 64 << 10


def test_only_opencl_has_ceilings():
    with pytest.raises(DeviceError, match="--on opencl"):
        measure("reference:cpu")
