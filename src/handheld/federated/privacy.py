"""Differential privacy with Flower's wrappers of strategies: what they need of the updates and leave unchecked.

Clipping on the device is a promise of the device. The server sees whether an update is longer than agreed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from handheld.federated.flower import (
    KEY_NORM_BIT,
    DifferentialPrivacyAdaptiveBase,
    DifferentialPrivacyClientSideAdaptiveClipping,
    Strategy,
)
from handheld.federated.model import State

#: A device adds its clipped update to the state. Rounding changes its norm by less than this part of the state's.
ROUNDING = 1e-6


def correct(strategy: Strategy) -> None:
    """Mend adaptive clipping of Flower 1.41: it lowers the norm if more updates are clipped than asked, so that ever
    more are. The paper raises it (Andrew et al., arXiv:1905.03871: the bit of an update is 1 if it was not clipped)."""
    if isinstance(strategy, DifferentialPrivacyAdaptiveBase):
        lower = type(strategy)._geometric_update

        def update(clipped: float) -> None:
            lower(strategy, 2 * strategy.target_clipped_quantile - clipped)

        vars(strategy)["_geometric_update"] = update


def unclipped(strategy: Strategy, most: float | None, update: State, before: State, metrics: Mapping[str, Any]) -> str:
    """Why an update breaks the promise of clipping on the device, or "". `most`: the largest norm; None: not asked."""
    if most is None:
        return ""
    adaptive = isinstance(strategy, DifferentialPrivacyClientSideAdaptiveClipping)
    mod = f"Try: federated.client(..., mods=[{'adaptive' if adaptive else 'fixed'}clipping_mod])"
    if adaptive and metrics.get(KEY_NORM_BIT) not in (0, 1):
        return f"it does not tell whether it was clipped. {mod}"
    norm = _norm({name: update[name].astype(np.float64) - array for name, array in before.items()})
    if norm > most * 1.001 + ROUNDING * _norm(before):
        return f"it is not clipped: its norm is {norm:.3g}, more than {most:.3g}. {mod}"
    return ""


def _norm(arrays: State) -> float:
    return float(np.linalg.norm([np.linalg.norm(array) for array in arrays.values()]))
