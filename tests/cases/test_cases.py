"""Every op case: exact in float64 on the reference, within float32 on OpenCL."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from handheld.backends.base import describe
from handheld.conformance.cases import CASES
from handheld.conformance.check import Held, captured, differences, limit_of, reference, run, run_plan
from handheld.conformance.variants import in_shard
from handheld.passes import half
from handheld.run.verify import verify_plan

SAMPLE = 60  # cases on OpenCL without --all-cases; building kernels takes most of the time
HALF_SAMPLE = 4
WIDTH_SAMPLE = 8


@pytest.mark.parametrize("name", CASES)
def test_exact(name: str) -> None:
    """The graph in float64 gives the results of PyTorch in float64, so capture itself is right."""
    held = Held(CASES[name])
    got = run(captured(held), held, "reference:cpu", float64=True)
    assert not differences(got, reference(held), limit_of(CASES[name], exact=True))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        names = list(CASES)
        if not metafunc.config.getoption("--all-cases"):
            names = sorted(random.Random(0).sample(names, SAMPLE))
        names = [name for name in names if in_shard(name, metafunc.config.getoption("--shard"))]
        metafunc.parametrize("case", names)
    if "half_case" in metafunc.fixturenames:
        names = list(CASES)
        if not metafunc.config.getoption("--all-cases"):
            names = sorted(random.Random(1).sample(names, HALF_SAMPLE))
        metafunc.parametrize("half_case", names)
    if "conv_case" in metafunc.fixturenames:
        names = [name for name in CASES if "conv" in name]
        if not metafunc.config.getoption("--all-cases"):
            names = sorted(random.Random(2).sample(names, WIDTH_SAMPLE))
        metafunc.parametrize("conv_case", names)


def test_opencl(case: str) -> None:
    held = Held(CASES[case])
    got = run(captured(held), held, "opencl")
    assert not differences(got, reference(held), limit_of(CASES[case], exact=False))


def test_the_other_width(conv_case: str) -> None:
    """CPUs with registers of 16 floats and CPUs with smaller registers have different kernels."""
    caps = describe("opencl")
    if caps.kind != "cpu":
        pytest.skip("the kernels are for CPUs, and this device is not a CPU")
    caps = replace(caps, vector_width=8 if caps.vector_width >= 16 else 16)
    held = Held(CASES[conv_case])
    got = run_plan(captured(held).plan("opencl", caps=caps), held)
    assert not differences(got, reference(held), limit_of(CASES[conv_case], exact=False))


def test_halves(half_case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every node with all its tensors in halves, even small ones, against PyTorch in float64 on the same halves:
    results that are stored in halves within 2^-11, others within float32."""
    monkeypatch.setattr(half, "LEAST", 1)
    held = Held(CASES[half_case])
    plan = captured(held).plan("opencl", precision="half", isolate=True)
    result = verify_plan(plan, held.batch, "case", limit_of(CASES[half_case], exact=False))
    assert result.passed, str(result)


def test_there_are_enough() -> None:
    assert len(CASES) >= 250
