"""The picture of README.md shows the figures of results/peers.json."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]


def test_the_picture_is_fresh_and_shows_nine_workloads_and_their_mean() -> None:
    spec = importlib.util.spec_from_file_location("draw_peers", ROOT / "scripts" / "draw_peers.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    drawn = script.draw()
    assert drawn == script.IMAGE.read_text(encoding="utf-8"), "Run: python scripts/draw_peers.py"
    words = [element.text for element in ElementTree.fromstring(drawn).iter() if element.tag.endswith("text")]
    assert len(script.ratios()) == 10
    for found in script.ratios().values():
        assert all(f"{ratio:.2f}" in words for ratio in found.values())
