"""The settings of a training that Flower's run config may change, checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from handheld.errors import HandheldError
from handheld.federated.compress import Form
from handheld.federated.model import is_number


def checked(
    config: Mapping[str, Any], *, rounds: int = 3, epochs: int = 1, rate: Any = None, compress: str = ""
) -> dict[str, Any]:
    """Rounds, passes per round, learning rate and form of updates: those of the run config, else these."""
    return {
        "rounds": _whole("rounds", config.get("rounds", rounds)),
        "local_epochs": _whole("local-epochs", config.get("local-epochs", epochs)),
        "rate": _rate(config.get("rate", rate)),
        "compress": str(Form.parse(str(config.get("compress", compress)))),
    }


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise HandheldError(f"{name} is {value!r} in the settings of the app. Try: {name} = 10")
    return value


def _rate(value: Any) -> float | None:
    if value in (None, ""):
        return None
    if not is_number(value) or value <= 0:
        raise HandheldError(f"rate is {value!r} in the settings of the app. Try: rate = 0.05")
    return float(value)
