"""Every op case: exact in float64 on the reference, within float32 on OpenCL."""

from __future__ import annotations

import random

import pytest

from cases import CASES
from casework import Held, captured, differences, limit_of, reference, run
from variants import in_shard

SAMPLE = 60  # on OpenCL, unless --all-cases: building kernels takes most of the time


@pytest.mark.parametrize("name", CASES)
def test_exact(name: str) -> None:
    """The graph in float64 gives what PyTorch gives in float64: capture itself is right."""
    held = Held(CASES[name])
    got = run(captured(held), held, "torch:cpu", float64=True)
    assert not differences(got, reference(held), limit_of(CASES[name], exact=True))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        names = list(CASES)
        if not metafunc.config.getoption("--all-cases"):
            names = sorted(random.Random(0).sample(names, SAMPLE))
        names = [name for name in names if in_shard(name, metafunc.config.getoption("--shard"))]
        metafunc.parametrize("case", names)


def test_opencl(case: str) -> None:
    held = Held(CASES[case])
    got = run(captured(held), held, "opencl")
    assert not differences(got, reference(held), limit_of(CASES[case], exact=False))


def test_there_are_enough() -> None:
    assert len(CASES) >= 250
