"""Op cases with the variants that the tuner may choose: a random sample with a fixed seed, or --all-variants."""

from __future__ import annotations

import random

import pytest

from handheld.backends.base import describe
from handheld.conformance.cases import CASES
from handheld.conformance.variants import DESCRIPTIONS, Variants, described, in_shard
from handheld.device import DeviceCaps

SAMPLE = 1  # cases per description, one turn each; building kernels takes most of the time


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "variant" in metafunc.fixturenames:
        shard = metafunc.config.getoption("--shard")
        every = metafunc.config.getoption("--all-variants")
        metafunc.parametrize(
            "variant",
            [
                pytest.param((name, kind), id=f"{kind} {name}")
                for name in CASES
                for kind in DESCRIPTIONS
                if in_shard(name, shard)
            ]
            if every
            else [],
        )


def taken_for(kind: str) -> DeviceCaps:
    own = describe("opencl")
    caps = described(own, kind)
    if own.kind == "gpu" and caps.kind == "cpu":
        pytest.skip("kernels for CPUs do not run on a GPU: NVIDIA's driver refuses them")
    return caps


def test_every_variant(variant: tuple[str, str]) -> None:
    name, kind = variant
    found = Variants(CASES[name], "opencl", taken_for(kind))
    if not found.turns:
        pytest.skip("no variants")
    assert not found.wrong(range(found.turns))


@pytest.mark.parametrize("kind", DESCRIPTIONS)
def test_a_sample(kind: str) -> None:
    chance, caps, ran = random.Random(f"1 {kind}"), taken_for(kind), 0
    for name in chance.sample(list(CASES), len(CASES)):
        found = Variants(CASES[name], "opencl", caps)
        if found.turns:
            turn = chance.randrange(found.turns)
            assert not found.wrong(range(turn, turn + 1)), name
            ran += 1
        if ran == SAMPLE:
            return
    pytest.fail("there are fewer cases with variants than that")


def test_a_shard_is_a_part() -> None:
    parts = [{n for n in CASES if in_shard(n, f"{i}/3")} for i in (1, 2, 3)]
    assert set.union(*parts) == set(CASES) and sum(map(len, parts)) == len(CASES)
    assert min(map(len, parts)) > len(CASES) / 4
    for bad in ("0/3", "4/3", "1", "x/y", ""):
        with pytest.raises(ValueError, match="is not a part of the cases"):
            in_shard("conv", bad)
