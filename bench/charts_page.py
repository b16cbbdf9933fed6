"""Writes the page of a benchmark's --plot, with the charts of handheld.report."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

from handheld.report.markup import Markup
from handheld.report.page import page


def html_path(text: str) -> Path:
    """The argument of --plot; it must end in .html."""
    path = Path(text)
    if path.suffix != ".html":
        raise argparse.ArgumentTypeError(f"a chart is written as a page. Try: --plot {path.with_suffix('.html')}")
    return path


def write(path: Path, title: str, device: str, *charts: Markup) -> None:
    html = page(title, charts, device=device, date=datetime.date.today().isoformat())
    path.write_text(html, encoding="utf-8")
    print(f"plot: {path}")
