"""One HTML file from a payload: the page's script and style (assets/, built from web/), and the payload as JSON.

    document({"kind": "run", "title": "lenet5", ...})

The script draws the page of the payload's `kind`; web/src/pages/index.js lists the kinds. To add one, write a function
that makes its payload here (run_payload.py is an example), a component in web/src/pages/, and build web/.

Nothing in a payload becomes markup: the JSON has no character that could end its element, and the script treats all
texts as text. A Content-Security-Policy forbids other scripts and all requests.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import BinaryIO

from handheld.files import replace_file

Payload = Mapping[str, object]

#: Characters that HTML does not allow.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MARK = '<meta name="generator" content="Handheld">'
_ESCAPED = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}


def document(payload: Payload, *, connect: bool = False) -> str:
    """The text of the file. The payload has `kind` and `title`, and what its kind needs. With `connect`, the page may
    make requests to the server that it came from."""
    script, style = asset("page.js"), asset("page.css")
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data: blob:; "
        f"connect-src '{'self' if connect else 'none'}'; base-uri 'none'; form-action 'none'"
    )
    title = html.escape(_FORBIDDEN.sub("\ufffd", str(payload["title"])))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'{_MARK}\n<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<div id="page"><noscript>This page needs JavaScript to draw its figures.</noscript></div>\n'
        f'<script type="application/json" id="data">{embedded(payload)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def write_document(payload: Payload, path: Path, *, connect: bool = False) -> None:
    """Write the file; a path holds the old file or the new one at all times."""
    text = document(payload, connect=connect).encode()

    def fill(file: BinaryIO) -> None:
        file.write(text)

    replace_file(path, fill)


def is_document(path: Path) -> bool:
    """Whether the file is a page of Handheld, which may be replaced."""
    with path.open("rb") as file:
        return _MARK.encode() in file.read(4096)


def embedded(data: object) -> str:
    """JSON that is safe inside a script element: ASCII without `<`, `>` and `&`. What is not finite becomes null."""
    text = json.dumps(_finite(data), separators=(",", ":"), allow_nan=False)
    return text.translate(_ESCAPED)


def _finite(data: object) -> object:
    if isinstance(data, Mapping):
        return {str(key): _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


@cache
def asset(name: str) -> str:
    """A file of assets/."""
    return (resources.files("handheld.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
