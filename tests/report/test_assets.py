"""The committed script and style are built from the committed sources, are small, and load nothing."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WEB, ASSETS = ROOT / "web", ROOT / "src" / "handheld" / "report" / "assets"


def sources_hash() -> str:
    """As web/build.mjs computes it."""
    paths = [p for p in (WEB / "src").rglob("*") if p.is_file()]
    paths += [WEB / name for name in ("build.mjs", "package.json", "package-lock.json")]
    digest = hashlib.sha256()
    for name, path in sorted((path.relative_to(WEB).as_posix(), path) for path in paths):
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def test_the_bundle_is_built_from_the_sources():
    for name in ("page.js", "page.css"):
        first = (ASSETS / name).read_text(encoding="utf-8").splitlines()[0]
        found = re.search(r"Sources: ([0-9a-f]{64})", first)
        assert found and found[1] == sources_hash(), f"{name} is stale. Run: cd web && npm ci && npm run build"


def test_the_bundle_is_small_and_loads_nothing():
    script, style = ((ASSETS / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    assert len(script.encode()) < 300_000
    # Pages of `handheld serve` ask their own server for newer data; no other page has an address to ask.
    assert re.findall(r"fetch\(\w+\.(\w+)", script) == ["poll"] and script.count("fetch(") == 1
    for word in ("XMLHttpRequest", "WebSocket", "sendBeacon", "importScripts"):
        assert word not in script, word
    assert "url(" not in style and "@import" not in style
    assert "</script" not in script.lower() and "</style" not in style.lower()


def test_licences_are_beside_it():
    text = (ASSETS / "LICENSES.txt").read_text(encoding="utf-8")
    lock = json.loads((WEB / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    for name in ("uplot", "preact", "htm"):
        assert f"{name} {lock[f'node_modules/{name}']['version']}\n" in text, name


def test_the_lock_file_has_no_download_addresses():
    lock = json.loads((WEB / "package-lock.json").read_text(encoding="utf-8"))
    assert not [name for name, entry in lock["packages"].items() if "resolved" in entry]
