"""Writes the page of a benchmark's --plot, with the charts of handheld.report."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

from handheld.report.document import write_document
from handheld.report.page import Block, page


def html_path(text: str) -> Path:
    """The argument of --plot; it must end in .html."""
    path = Path(text)
    if path.suffix != ".html":
        raise argparse.ArgumentTypeError(f"a chart is written as a page. Try: --plot {path.with_suffix('.html')}")
    return path


def write(path: Path, title: str, device: str, *charts: Block) -> None:
    write_document(page(title, charts, device=device, date=datetime.date.today().isoformat()), path)
    print(f"plot: {path}")
