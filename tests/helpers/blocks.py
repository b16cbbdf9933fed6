"""Looks into pages of blocks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def found(payload: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    """All blocks of a type, in the order of the page."""
    result = []
    for block in payload["blocks"]:
        if block["type"] == kind:
            result.append(block)
        if "blocks" in block:
            result += found(block, kind)
    return result


def words(payload: Mapping[str, Any]) -> str:
    """All that a page says, as one text."""
    return json.dumps(payload, ensure_ascii=False)
