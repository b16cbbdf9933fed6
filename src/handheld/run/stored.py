"""Reads and writes the state of a session in float32, also where the plan stores it in fewer bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from handheld.backends.base import Session
from handheld.passes.state_bits import Unit


def read_state(session: Session, names: Iterable[str]) -> dict[str, np.ndarray]:
    """The values of slots of the step."""
    wanted, slots = list(names), session.plan.step.slots
    stored = {slot: unit for unit in session.plan.units for slot in unit.slots}
    values = {name: session.read_slot(name) for name in wanted if name not in stored}
    for unit in dict.fromkeys(stored[name] for name in wanted if name in stored):
        found = _decoded(session, unit)
        values |= {name: found[name].reshape(slots[name].shape) for name in wanted if name in found}
    return {name: values[name] for name in wanted}


def write_state(session: Session, values: Mapping[str, np.ndarray]) -> None:
    """Sets the values of slots of the step."""
    stored = {slot: unit for unit in session.plan.units for slot in unit.slots}
    for name, value in values.items():
        if name not in stored:
            session.write_slot(name, value)
    for unit in dict.fromkeys(stored[name] for name in values if name in stored):
        given = {name: values[name] for name in unit.slots if name in values}
        for name, value in unit.encode({**_decoded(session, unit), **given}).items():
            session.write_slot(name, value)


def _decoded(session: Session, unit: Unit) -> dict[str, np.ndarray]:
    return unit.decode({name: session.read_slot(name) for name in (unit.codes, unit.scales)})
