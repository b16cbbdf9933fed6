"""Kernel versions must be raised when launches change, but not for comments or formatting."""

from __future__ import annotations

import copy
import json
import sys

import pytest

from handheld.kernels import base, contract_text
from handheld.kernels.versions import VERSIONS
from handheld.plan.lowering import FAMILIES, family
from helpers.golden_launches import DEVICES, PATH, changed, digest, generate, graphs, plain

GOLDEN = json.loads(PATH.read_text(encoding="utf-8"))


def test_launches_are_those_of_their_version():
    now = generate()
    for name, kind, nodes in changed(GOLDEN, now):
        pytest.fail(
            f"the launches of {name} on a {kind} changed (first: {nodes[0]}), and tuning records would still count. "
            f'Try: raise VERSIONS["{name}"]["{kind}"] in src/handheld/kernels/versions.py, run python '
            "scripts/golden.py, and tune the shipped records again; or, where the change cannot alter how fast they "
            "run, python scripts/golden.py --same"
        )
    assert now == GOLDEN, "a version was raised: run python scripts/golden.py"


def test_every_family_with_variants_has_a_version_and_is_sampled():
    named = {family(op): sys.modules[lower.__module__] for op, lower in FAMILIES.items()}
    assert {name for name, module in named.items() if hasattr(module, "candidates")} == set(VERSIONS)
    sampled = {graph.nodes[0].op for graph in graphs()}
    assert sampled == {op for op in FAMILIES if family(op) in VERSIONS}


def test_a_change_is_seen_until_its_version_is_raised():
    now = copy.deepcopy(GOLDEN)
    launches = now["contract"]["gpu"]["launches"]
    node = next(iter(launches))
    launches[node] = "0"
    assert changed(GOLDEN, now) == [("contract", "gpu", [node])]
    now["contract"]["gpu"]["version"] += 1
    assert not changed(GOLDEN, now)


@pytest.mark.parametrize("device", ["desktop", "avx2"])
def test_comments_and_formatting_of_a_kernel_do_not_count(device, monkeypatch):
    graph, caps = next(graphs()), DEVICES[device]
    before = digest(graph, caps)

    def reworded(name: str) -> str:
        text = base.read_cl(name)
        return "/* other\n * words */\n" + plain(text).replace(";\n", ";  // why\n\n\n    ").replace("{\n", "{\n\t\n")

    monkeypatch.setattr(contract_text, "read_cl", reworded)
    assert digest(graph, caps) == before
    monkeypatch.setattr(contract_text, "read_cl", lambda name: base.read_cl(name) + "\nint more;")
    assert digest(graph, caps) != before
