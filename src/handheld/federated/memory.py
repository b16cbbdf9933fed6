"""What a strategy of Flower remembers between rounds, for the checkpoint: the moments of FedAdam, for example.

Strategies keep it in attributes: dictionaries of arrays by the names of parameters, or lists. A strategy inside another
one (that of differential privacy) has its own. Of numbers, only the clipping norm changes between rounds.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from handheld.federated.flower import Strategy
from handheld.federated.model import State

#: What the names of such arrays begin with in a checkpoint. No parameter of PyTorch contains it.
PREFIX = "strategy|"
CLIPPING = "clipping_norm"


def remembered(strategy: Strategy, path: str = "") -> State:
    """The arrays that a strategy keeps, under names for a checkpoint."""
    found: State = {}
    for name, value in vars(strategy).items():
        if isinstance(value, Strategy):
            found |= remembered(value, f"{path}{name}.")
        if name == CLIPPING and isinstance(value, float):
            found[f"{PREFIX}{path}{name}|"] = np.array(value)
        named = dict(enumerate(value)) if isinstance(value, list) else value
        if isinstance(named, Mapping) and named and all(isinstance(one, np.ndarray) for one in named.values()):
            found |= {f"{PREFIX}{path}{name}|{key}": np.asarray(one) for key, one in named.items()}
    return found


def remind(strategy: Strategy, arrays: Mapping[str, np.ndarray]) -> None:
    """Give a strategy what it kept before."""
    kept: dict[str, State] = {}
    for name, array in arrays.items():
        if name.startswith(PREFIX):
            place, _, key = name.removeprefix(PREFIX).partition("|")
            kept.setdefault(place, {})[key] = np.array(array)
    for place, values in kept.items():
        *inside, name = place.split(".")
        owner = strategy
        for part in inside:
            owner = getattr(owner, part)
        if name == CLIPPING:
            setattr(owner, name, float(values[""]))
            continue
        in_order = all(key.isdigit() for key in values)
        setattr(owner, name, [values[key] for key in sorted(values, key=int)] if in_order else values)
