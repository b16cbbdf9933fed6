"""Plans: verified memory, descriptions of absent devices, JSON, errors."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import handheld
from handheld.device import DeviceCaps
from handheld.errors import DeviceError, OutOfMemory, PlanError
from handheld.plan.codec import from_json, to_json
from handheld.plan.memory import GraphMemory, Place, Segments, WorkspaceKey, place_state
from handheld.plan.verify import _Bytes, verify
from helpers.models import MODELS, loss, make

SHIPPED = ["adreno-620", "adreno-740", "jetson-orin-nano", "mali-g78", "minimal-embedded", "raspberry-pi-5"]


@pytest.fixture(scope="module")
def steps():
    found = {}
    for name in MODELS:
        model, optimizer, batch = make(name)
        found[name] = handheld.capture(model, loss, optimizer, batch)
    return found


@pytest.mark.parametrize("device", SHIPPED)
@pytest.mark.parametrize("name", MODELS)
def test_plans_for_phones_are_made_and_proved_here(name: str, device: str, steps) -> None:
    caps = DeviceCaps.shipped(device)
    plan = steps[name].plan("opencl", caps=caps)
    assert max(plan.segments) <= caps.max_alloc_bytes
    for graph in plan.graphs.values():
        for lowered in graph.lowered:
            for launch in lowered.launches:
                assert np.prod(launch.local_size) <= caps.max_work_group
                assert all(g % n == 0 for g, n in zip(launch.global_size, launch.local_size, strict=True))
        assert graph.launches == sum(len(low.launches) for low in graph.lowered) > 0
    words = plan.explain()  # Direct convolutions of a CPU divide the images of a batch into parts.
    assert "graph train" in words and ("images" not in words or caps.kind == "cpu")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_plan_in_words_fits_the_terminal(width: int, steps) -> None:
    plan = steps["vision"].plan("opencl", caps=DeviceCaps.shipped("mali-g78"))
    lines = plan.explain("train", width).splitlines()
    assert max(map(len, lines)) <= width
    joined = " ".join(plan.explain("train", width).split())
    assert joined == " ".join(plan.explain("train", 10**6).split())  # No text is lost.
    with pytest.raises(PlanError, match="no graph 'treain'; it has train"):
        plan.explain("treain")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": 3}, "device=3 must be a name"),
        ({"caps": "adreno-740"}, "must be a DeviceCaps"),
        ({"graphs": "train"}, r"such as \['train'\]"),
        ({"graphs": 1}, "graphs=1 must be a list of names"),
        ({"memory_limit_bytes": "256MB"}, "must be a number of bytes"),
        ({"memory_limit_bytes": 0}, "must be a number of bytes"),
        ({"tuning": 1.5}, "must be True, False or the path"),
    ],
)
def test_options_of_a_plan_that_make_no_sense(options, said: str, steps) -> None:
    with pytest.raises(PlanError, match=said):
        steps["vision"].plan(**{"device": "null", **options})


def test_an_option_that_a_plan_does_not_have(steps) -> None:
    with pytest.raises(TypeError, match=r"^Step\.plan\(\) got an unexpected .* 'unknown'"):
        steps["vision"].plan(unknown=1)
    with pytest.raises(DeviceError, match="null has no option 'profiling'; it has: none"):
        steps["vision"].plan("null").start(profiling=True)


@pytest.mark.parametrize("name", MODELS)
def test_memory_is_reused(name: str, steps) -> None:
    plan = steps[name].plan("opencl", caps=DeviceCaps.shipped("mali-g78"), graphs=["train"])
    isolated = steps[name].plan("opencl", caps=DeviceCaps.shipped("mali-g78"), graphs=["train"], isolate=True)
    assert plan.arena_bytes < 0.8 * plan.graphs["train"].tensor_bytes
    assert plan.arena_bytes < isolated.arena_bytes
    assert not plan.graphs["train"].copies  # Every update is computed in its slot.


def test_small_segments(steps) -> None:
    caps = dataclasses.replace(DeviceCaps.shipped("mali-g78"), max_alloc_bytes=64 << 10)
    plan = steps["vision"].plan("opencl", caps=caps)
    assert len(plan.segments) > 2 and max(plan.segments) <= 64 << 10


def test_the_verifier_finds_a_stolen_byte(steps) -> None:
    plan = steps["vision"].plan("opencl", caps=DeviceCaps.shipped("mali-g78"), graphs=["train"])
    graph = plan.graphs["train"]
    rng = np.random.default_rng(0)
    movable = [
        t
        for node in graph.graph.nodes
        for t in node.outputs
        if graph.places[t].segment >= plan.arena and t not in graph.graph.packs
    ]
    found = 0
    for tensor in rng.permutation(movable)[:40]:
        places = dict(graph.places)
        other = places[int(rng.choice(movable))]
        place = places[int(tensor)]
        if place.offset == other.offset or other.offset + place.nbytes > plan.segments[other.segment]:
            continue
        places[int(tensor)] = Place(other.segment, other.offset, place.nbytes)
        changed = dataclasses.replace(plan, graphs={"train": dataclasses.replace(graph, places=places)})
        try:
            verify(changed)
        except PlanError:
            found += 1
    assert found >= 5


@pytest.mark.parametrize("change", ["outside", "unaligned", "no copy"])
def test_the_verifier_finds_what_is_wrong(change: str, steps) -> None:
    plan = steps["vision"].plan(
        "opencl", caps=DeviceCaps.shipped("mali-g78"), graphs=["train"], isolate=change == "no copy"
    )
    graph = plan.graphs["train"]
    places, copies = dict(graph.places), graph.copies
    tensor = graph.graph.nodes[0].outputs[0]
    if change == "outside":
        places[tensor] = dataclasses.replace(places[tensor], offset=1 << 30)
    elif change == "unaligned":
        places[tensor] = dataclasses.replace(places[tensor], offset=places[tensor].offset + 4)
    else:
        assert copies
        copies = copies[1:]
    broken = dataclasses.replace(graph, places=places, copies=copies)
    with pytest.raises(PlanError):
        verify(dataclasses.replace(plan, graphs={"train": broken}))


def workspaces(steps, sizes: tuple[int, ...]):
    """A plan whose first two nodes need workspaces of these sizes."""
    plan = steps["vision"].plan("opencl", caps=DeviceCaps.shipped("mali-g78"), graphs=["train"])
    graph = plan.graphs["train"]
    lowered = [
        dataclasses.replace(low, workspace=sizes if i < 2 else low.workspace) for i, low in enumerate(graph.lowered)
    ]
    segments = Segments(1 << 30, 128)
    state = place_state(plan.slots, [graph.graph], segments)
    memory = GraphMemory(graph.graph, lowered, state, segments, isolate=False)
    first = len(segments.sizes)
    memory.place_arena(segments, first)
    made = dataclasses.replace(
        graph, lowered=tuple(lowered), places=memory.places, workspace=memory.workspace, copies=tuple(memory.copies)
    )
    return dataclasses.replace(plan, graphs={"train": made}, segments=tuple(segments.sizes), state=state)


def test_a_node_may_have_any_number_of_workspaces(steps) -> None:
    plan = workspaces(steps, (256,) * 40)
    keys = {key for key in plan.graphs["train"].workspace if key.node < 2}
    assert keys == {WorkspaceKey(node, n) for node in range(2) for n in range(40)}
    verify(plan)


def test_workspaces_that_overlap_or_are_missing_are_found(steps) -> None:
    plan = workspaces(steps, (256,) * 17)
    graph = plan.graphs["train"]
    one, other = WorkspaceKey(0, 0), WorkspaceKey(0, 16)
    for said, workspace in (
        ("workspaces of node 0 overlap", {**graph.workspace, one: graph.workspace[other]}),
        ("workspace 16 of node 0 has no place", {k: p for k, p in graph.workspace.items() if k != other}),
    ):
        with pytest.raises(PlanError, match=said):
            verify(dataclasses.replace(plan, graphs={"train": dataclasses.replace(graph, workspace=workspace)}))


def test_bytes_know_their_owner() -> None:
    rng = np.random.default_rng(0)
    intervals, plain = _Bytes(), np.full(200, -1)
    for owner in range(300):
        start = int(rng.integers(0, 190))
        end = int(rng.integers(start + 1, 200))
        intervals.claim(start, end, owner)
        plain[start:end] = owner
        a = int(rng.integers(0, 190))
        b = int(rng.integers(a + 1, 200))
        who = int(rng.choice(plain[a:b]))
        if who >= 0:
            assert intervals.owned(a, b, who) == bool((plain[a:b] == who).all())


def test_a_plan_is_a_file(steps) -> None:
    step = steps["attention"]
    plan = step.plan("opencl", caps=DeviceCaps.shipped("adreno-740"))
    text = json.dumps(to_json(plan), allow_nan=False)
    data = json.loads(text)  # The keys of a plan file do not change when fields are renamed.
    launch = next(n for low in data["graphs"]["train"]["nodes"] for n in low["launches"])
    assert data["sources"][launch["source"]] in {n.text for low in plan.graphs["train"].lowered for n in low.launches}
    again = from_json(json.loads(text), step)
    assert again == plan
    for broken in (
        text.replace('"version": 3', '"version": 9'),
        text.replace('"kernel"', '"colonel"'),
        "{}",
        text.replace('"buffer"', '"bucket"'),
        text.replace('"arena"', '"area"'),
    ):
        with pytest.raises(PlanError):
            from_json(json.loads(broken), step)


def test_too_little_memory_says_what_is_large(steps) -> None:
    with pytest.raises(
        OutOfMemory, match=r"needs .* KiB .* only 9\.8 KiB are available.*Largest tensors.*No batch fits.*Try: "
    ):
        steps["vision"].plan("opencl", memory_limit_bytes=10_000, recompute=False)
    tiny = dataclasses.replace(DeviceCaps.shipped("mali-g78"), max_alloc_bytes=1024)
    with pytest.raises(OutOfMemory, match="in one piece"):
        steps["vision"].plan("opencl", caps=tiny)


def test_unknown_names(steps) -> None:
    with pytest.raises(PlanError, match="no graph"):
        steps["vision"].plan("opencl", graphs=["fly"])
    with pytest.raises(DeviceError, match="there are opencl"):
        steps["vision"].plan("gpu")
    with pytest.raises(DeviceError, match="Try: opencl:"):
        steps["vision"].plan("opencl:no-such-device")
    with pytest.raises(DeviceError, match="adreno-740"):
        DeviceCaps.shipped("abacus")
