"""The function `handheld.watch`. It imports PyTorch only when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from handheld.errors import HandheldError
from handheld.profile.windows import IDLE_S, WARMUP, Windows

if TYPE_CHECKING:
    from torch import nn

    from handheld.profile.sampling import Sensors
    from handheld.profile.watch import Watch
    from handheld.sensors.base import Where


def watch(
    model: nn.Module,
    path: str | Path,
    *,
    wait: int = 0,
    warmup: int = WARMUP,
    active: int | None = None,
    sensors: Sensors = True,
    where: Where | None = None,
    idle_s: float = IDLE_S,
) -> Watch:
    """Profiles plain PyTorch, which Handheld does not run: the user's own model, loop and optimizer.

    Use the result in a `with` statement and call its `step()` after every step. The run file is written to `path`.

    The first `wait` steps are ignored and the next `warmup` steps are timed only as a whole. Of the `active` steps
    after them (None: all), some are recorded op by op. `sensors` is False for none, or a list of sensor classes.
    `where` is the system's root folder for sensors. Before the first step, the idle machine is measured for `idle_s`
    seconds.
    """
    try:
        from handheld.profile.watch import Watch
    except ImportError as error:
        raise HandheldError(f"watching a model needs PyTorch ({error}). Try: pip install torch") from None

    return Watch(model, path, Windows(wait, warmup, active), sensors, where, idle_s)
