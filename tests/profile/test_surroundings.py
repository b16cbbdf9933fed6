"""The facts of a plan that advice needs: missing tuning, tensors passed between loops, other devices."""

from __future__ import annotations

import json

from handheld.plan.signature import signature
from handheld.plan.tuning import Entry, TuningRecord
from handheld.profile.surroundings import chains, other_devices
from handheld.profile.tuning import tuning_facts


def test_ops_without_a_record_are_named_until_they_have_one(step, plan, tmp_path):
    untuned = tuning_facts(step.plan("opencl", graphs=["train"], tuning=False))
    assert untuned is not None and untuned["variants"] >= len(untuned["without"]) > 0 and not untuned["records"]
    nodes = plan.graphs["train"].graph.nodes
    assert {nodes[i].op for i in untuned["without"]} <= {"conv", "conv_input", "conv_weight", "matmul"}
    assert {"conv", "matmul"} & set(untuned["gains"]), "shipped records say what such ops gained"
    for gain in untuned["gains"].values():
        assert 0 < gain["low"] <= gain["high"] <= 1.0 and 0 < gain["mean"] <= 1 and gain["shapes"] > 0
    record = TuningRecord.of(plan.caps)
    keys = {signature(node, plan.graphs["train"].graph) for node in nodes}
    record.entries = {key: Entry(None, 1.0, 0.9, 2, True) for key in keys}
    record.write(tmp_path / "own.json")
    tuned = tuning_facts(step.plan("opencl", graphs=["train"], tuning=str(tmp_path / "own.json")))
    assert tuned is not None and tuned["without"] == [] and tuned["records"] == ["own.json"]
    json.dumps(tuned)


def test_a_device_without_variants(step):
    assert tuning_facts(step.plan("reference:cpu", graphs=["train"])) is None


def test_links_name_a_tensor_that_one_other_loop_reads(plan):
    graph = plan.graphs["train"].graph
    for first, second, passed, moved, more in chains(plan):
        assert graph.nodes[first].op in ("map", "reduce") and graph.nodes[second].op in ("map", "reduce")
        assert first < second and 0 < passed <= moved and passed <= more * 2
        assert graph.nodes[first].origin.phase == graph.nodes[second].origin.phase


def test_the_device_itself_is_no_other_device(plan):
    assert all(row["name"] != plan.caps.name for row in other_devices(plan))
