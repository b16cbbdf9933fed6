"""Plans take the way that a description's `avoid` asks for, say so, and compute the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from handheld.backends.base import describe
from handheld.cli.probe import probe_step
from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.plan.quirks import build_threads, keeps_programs, known_avoid, mended, quirks_of


def test_a_plan_takes_another_way_and_says_so() -> None:
    caps = describe("opencl")
    usual = probe_step().plan("opencl", caps=caps)
    other = "gpu" if caps.kind == "cpu" else "small"
    plan = probe_step().plan("opencl", caps=replace(caps, avoid=f"matmul={other}"))
    texts = [[low.launches[0].text for low in p.graphs["probe"].lowered] for p in (usual, plan)]
    assert texts[0][0] == texts[1][0] and texts[0][1] != texts[1][1]
    said = " ".join(plan.explain(width=200).split())
    assert "because the usual ones are wrong on this driver" in said and "avoided on this driver: matmul" in said
    assert "avoided" not in usual.explain()
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    results = []
    for p in (usual, plan):
        with p.start() as trainer:
            trainer.run("probe", x)
            results.append(trainer.outputs()["z"])
    assert np.allclose(*results, rtol=1e-4, atol=1e-3)


def test_a_refused_op_names_its_place() -> None:
    with pytest.raises(PlanError, match=r"matmul \(forward of probe.*every kernel that Handheld has"):
        probe_step().plan("opencl", caps=replace(describe("opencl"), avoid="matmul=none"))


def test_quirks_of_oclgrind() -> None:
    caps = replace(describe("opencl"), name="Oclgrind Simulator", driver="OpenCL 1.2 (Oclgrind 21.10); Oclgrind 21.10")
    assert build_threads(caps) == 1 and known_avoid(caps) == ""
    text = "#pragma clang loop vectorize(assume_safety) interleave(disable)\nfor (;;) {}"
    assert mended(text, caps) == "#pragma clang loop vectorize(disable)\nfor (;;) {}"
    assert mended(text, describe("opencl")) == text
    assert all(quirk.why and quirk.source for quirk in quirks_of(caps))
    plan = probe_step().plan("opencl", caps=replace(caps, kind="cpu"))
    from handheld.plan.texts import program_texts

    assert not any("assume_safety" in text for text in program_texts(plan).compiled.values())


def test_only_drivers_with_a_cache_keep_their_programs() -> None:
    pocl = replace(describe("opencl"), name="cpu-cortex-a76", driver="OpenCL 3.0 PoCL 6.0  Linux, Release; 6.0")
    assert keeps_programs(pocl) and not keeps_programs(DeviceCaps.shipped("adreno-740"))


def test_descriptions_without_avoid_are_read() -> None:
    caps = describe("opencl")
    data = caps.to_json()
    del data["avoid"]
    assert DeviceCaps.from_json(data) == replace(caps, avoid="")
