"""The HTML file around a payload: whatever is in the payload stays data."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from handheld.report.document import document, embedded, write_document
from handheld.report.pack import columns, rounded, thinned

NASTY = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> \u2028\u2029 & ]]> \x00 \ud800"


class Tags(HTMLParser):
    """Collects tags, attributes and the texts of script elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.tags[-1:] == ["script"]:
            self.scripts[-1] += data


def test_a_payload_stays_data():
    text = document({"kind": "run", "title": NASTY, "nasty": NASTY})
    found = Tags(text)
    assert found.tags.count("script") == 2 and "img" not in found.tags
    assert not [name for name in found.attributes if name.startswith("on")], "no inline event handlers"
    assert json.loads(found.scripts[0])["nasty"] == NASTY
    assert found.scripts[0].isascii() and "\x00" not in text and text.encode()


def test_the_policy_forbids_other_scripts_and_requests():
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', document({"kind": "x", "title": ""}))
    assert policy is not None
    assert "default-src 'none'" in policy[1] and "unsafe" not in policy[1] and "connect-src 'none'" in policy[1]
    assert "connect-src 'self'" in document({"kind": "x", "title": ""}, connect=True)


def test_what_is_not_finite_is_null():
    assert embedded({"a": [math.nan, math.inf, 1.5], 3: "<&>"}) == '{"a":[null,null,1.5],"3":"\\u003c\\u0026\\u003e"}'


def test_the_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    write_document({"kind": "run", "title": "new"}, path)
    assert "<title>new</title>" in path.read_text() and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("value", "short"),
    [(None, None), (math.nan, None), (0, 0), (7, 7), (1.0, 1), (0.123456789, 0.12346), (123456789, 123460000)],
)
def test_numbers_are_short(value, short):
    assert rounded(value) == short


def test_columns_share_texts():
    packed = columns({"id": [1, 2, 3], "path": ["a", "b", "a"], "ms": [0.1, None, 1 / 3]}, ["path"])
    assert packed == {
        "columns": {"id": [1, 2, 3], "path": [0, 1, 0], "ms": [0.1, None, 0.33333]},
        "texts": {"path": ["a", "b"]},
    }


def test_a_thinned_trace_keeps_its_extremes():
    t = np.arange(10_000)
    values = np.sin(t / 500)
    values[4321] = 9.0
    kept_t, kept = thinned(t, values, 200)
    assert len(kept) <= 202 and kept.max() == 9.0 and kept.min() == values.min()
    assert (np.diff(kept_t) > 0).all() and 4321 in kept_t
    assert thinned(t[:100], values[:100], 200)[0] is not None and len(thinned(t[:100], values[:100], 200)[0]) == 100
