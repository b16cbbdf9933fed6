"""What the events of a thread belong to: the op around them, its place in the model, and its phase.

Events of one thread nest by their times. The op of an event is the outermost one around it, as the user called it:
aten::linear, not the addmm within it. What only wraps ops is skipped: nodes of autograd and compiled regions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from handheld.traces.events import Event

STEP = "ProfilerStep#"
_NODE = "autograd::engine::evaluate_function: "
_MODULE = "nn.Module: "
_OPTIMIZER = "Optimizer."


@dataclass(slots=True)
class Place:
    """Where an event is: its op (or None), phase, names around it, and the number of autograd's node."""

    event: Event
    op: Place | None = None
    phase: str = "forward"
    path: tuple[str, ...] = ()
    node: int | None = None
    children: list[Place] = field(default_factory=list)

    @property
    def wraps(self) -> bool:
        """Whether this op only calls other ops."""
        name = self.event.name
        inside = any(child.event.kind == "cpu_op" for child in self.children)
        return name.startswith(_NODE) or (inside and ("::" not in name or name.startswith("torch::autograd::")))


def places(events: Iterable[Event]) -> list[Place]:
    """The place of every event on the threads of the host."""
    threads: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        threads.setdefault(event.thread, []).append(event)
    result: list[Place] = []
    for nested in threads.values():
        for root in _nested(nested):
            result += _placed(root, Place(root.event))
    return result


def _nested(events: list[Event]) -> list[Place]:
    roots: list[Place] = []
    stack: list[Place] = []
    for event in sorted(events, key=lambda e: (e.begin_ns, -e.end_ns)):
        while stack and stack[-1].event.end_ns <= event.begin_ns:
            stack.pop()
        place = Place(event)
        (stack[-1].children if stack else roots).append(place)
        stack.append(place)
    return roots


def _placed(root: Place, around: Place) -> Iterator[Place]:
    """Give an event and those within it what they inherit. Not recursive: traces can be deep."""
    todo = [(root, around)]
    while todo:
        place, around = todo.pop()
        place.op, place.phase, place.path, place.node = around.op, around.phase, around.path, around.node
        _own(place)
        yield place
        todo += [(child, place) for child in reversed(place.children)]


def _own(place: Place) -> None:
    event, name = place.event, place.event.name
    if event.kind == "python_function":
        place.path = (*place.path, name.removeprefix(_MODULE))
    elif event.kind == "user_annotation" and name.startswith(_OPTIMIZER):
        place.phase = "update"
    elif event.kind == "user_annotation" and not name.startswith(STEP):
        place.path = (*place.path, name)
    elif event.kind == "cpu_op":
        if name.startswith(_NODE):
            number = event.args.get("Sequence number")
            place.phase, place.node = "backward", number if isinstance(number, int) else None
        if place.op is None and not place.wraps:
            place.op = place


def forward_paths(every: Iterable[Place]) -> dict[int, tuple[str, ...]]:
    """The path of the forward op behind each node of autograd."""
    found: dict[int, tuple[str, ...]] = {}
    for place in every:
        number = place.event.args.get("Sequence number")
        if place.phase == "forward" and place.path and isinstance(number, int):
            found.setdefault(number, place.path)
    return found
