"""Flower, or an error that says how to install it. Everything of Flower that Handheld uses is named here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from handheld.errors import HandheldError

try:
    from flwr.app import (
        Array,
        ArrayRecord,
        ConfigRecord,
        Context,
        Error,
        Message,
        MessageType,
        MetricRecord,
        RecordDict,
    )
    from flwr.clientapp import ClientApp
    from flwr.common.constant import ErrorCode
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import DifferentialPrivacyClientSideAdaptiveClipping, FedAvg, Strategy
    from flwr.serverapp.strategy.dp_adaptive_clipping import DifferentialPrivacyAdaptiveBase
    from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM, KEY_NORM_BIT
except ImportError as error:
    raise HandheldError(
        f"federated training needs Flower, which cannot be imported ({error}). Try: pip install 'flwr==1.41.*'"
    ) from error


def arrays_in(content: RecordDict, name: str) -> dict[str, np.ndarray]:
    """The arrays of a record; empty if there is no such record."""
    record = content.array_records.get(name)
    return {} if record is None else {key: array.numpy() for key, array in record.items()}


def array_record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({key: Array(np.ascontiguousarray(array)) for key, array in arrays.items()})


def config_in(content: RecordDict, name: str) -> dict[str, Any]:
    """The facts of a record; empty if there is no such record."""
    return dict(content.config_records.get(name) or {})


def metrics_in(content: RecordDict, name: str) -> dict[str, Any]:
    return dict(content.metric_records.get(name) or {})


__all__ = [
    "KEY_CLIPPING_NORM",
    "KEY_NORM_BIT",
    "ArrayRecord",
    "ClientApp",
    "ConfigRecord",
    "Context",
    "DifferentialPrivacyAdaptiveBase",
    "DifferentialPrivacyClientSideAdaptiveClipping",
    "Error",
    "ErrorCode",
    "FedAvg",
    "Grid",
    "Message",
    "MessageType",
    "MetricRecord",
    "RecordDict",
    "ServerApp",
    "Strategy",
    "array_record",
    "arrays_in",
    "config_in",
    "metrics_in",
]
