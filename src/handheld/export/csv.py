"""Writes CSV: a folder with one file per table of `tables.py`, for spreadsheets, pandas and polars.

The first line names the columns; units are in the names. An empty field was not measured.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import BinaryIO

from handheld.analyse.run import Run
from handheld.export.tables import Table, tables
from handheld.export.write import write_file


def write(run: Run, out: Path) -> list[Path]:
    """Write every table of the run into the folder `out`."""
    return [_table(out / f"{table.name}.csv", table) for table in tables(run)]


def _table(path: Path, table: Table) -> Path:
    def fill(file: BinaryIO) -> None:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        rows = csv.writer(text)
        rows.writerow(table.columns)
        rows.writerows(table.rows)
        text.detach()  # The caller closes the file.

    return write_file(path, fill)
