"""Opens pages in the system's Chromium and watches what they do."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def path() -> str:
    """Where Chromium is; the test is skipped where it is not."""
    found = next((p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None)
    if found is None:
        pytest.skip("Chromium is not installed here. Try: apt-get install chromium")
    return found


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed here")
    where = path()
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=where, args=list(FLAGS))
        yield started
        started.close()


class Watched:
    """A page of the browser. `problems` has errors of the console and of scripts, and requests that left the page."""

    def __init__(self, page: Any) -> None:
        self.page, self.problems = page, []
        page.set_default_timeout(5_000)
        page.on("console", lambda said: said.type in ("error", "warning") and self.problems.append(said.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", self._asked)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.problems.append(f"request to {request.url}")

    def open(self, file: Path) -> Any:
        """Load the file and wait until it is drawn."""
        self.page.goto(file.absolute().as_uri())
        self.page.wait_for_selector("html[data-drawn]", timeout=20_000)
        return self.page


@contextlib.contextmanager
def watched(started: Any, width: int = 1400, theme: str = "light") -> Iterator[Watched]:
    context = started.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    try:
        yield Watched(context.new_page())
    finally:
        context.close()


def colours(page: Any) -> list[int]:
    """How many different colours each chart of a page has. A chart without any data has only those of its axes."""
    script = """[...document.querySelectorAll('.plot canvas')].map(canvas => {
      const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      return new Set(new Uint32Array(data.buffer)).size;
    })"""
    found: list[int] = page.evaluate(script)
    return found
