"""The pictures of README.md and of docs/federated.md show the figures of results/."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]


def script_of(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    sys.modules[name] = script  # where dataclasses look
    spec.loader.exec_module(script)
    return script


def words_of(drawn: str) -> list[str]:
    return [element.text for element in ElementTree.fromstring(drawn).iter() if element.tag.endswith("text")]


def test_the_picture_is_fresh_and_shows_nine_workloads_and_their_mean() -> None:
    script = script_of("draw_peers")
    drawn = script.draw()
    assert drawn == script.IMAGE.read_text(encoding="utf-8"), "Run: python scripts/draw_peers.py"
    words = words_of(drawn)
    assert len(script.ratios()) == 10
    for found in script.ratios().values():
        assert all(f"{ratio:.2f}" in words for ratio in found.values())


def test_the_picture_of_fleets_is_fresh_and_shows_every_size() -> None:
    script = script_of("draw_fleets")
    drawn = script.draw()
    assert drawn == script.IMAGE.read_text(encoding="utf-8"), "Run: python scripts/draw_fleets.py"
    words = words_of(drawn)
    for quantity in script.QUANTITIES:
        for pairs in script.points(quantity).values():
            assert all(script.number(value) in words and f"{devices:,}" in words for devices, value in pairs)
