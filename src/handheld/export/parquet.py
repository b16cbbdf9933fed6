"""Writes Parquet: a folder with one file per table of `tables.py`, for pandas, polars, DuckDB and Arrow.

Columns have types, also those of empty tables. What was not measured is null.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

from handheld.analyse.run import Run
from handheld.export.tables import Table, tables
from handheld.export.write import needed, write_file

_ROWS = 100_000  # rows per group: a long run is never in memory as a whole


def write(run: Run, out: Path) -> list[Path]:
    """Write every table of the run into the folder `out`."""
    arrow, parquet = needed("pyarrow", "pyarrow"), needed("pyarrow.parquet", "pyarrow")
    facts = {"handheld.run": run.path.name, "handheld.status": str(run.meta.get("status", "unknown"))}
    return [_table(out / f"{table.name}.parquet", table, facts, arrow, parquet) for table in tables(run)]


def _table(path: Path, table: Table, facts: dict[str, str], arrow: ModuleType, parquet: ModuleType) -> Path:
    kinds = {int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_(), str: arrow.string()}
    schema = arrow.schema([(name, kinds[kind]) for name, kind in table.columns.items()], metadata=facts)

    def fill(file: BinaryIO) -> None:
        rows = iter(table.rows)
        with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            while group := list(islice(rows, _ROWS)):
                columns = zip(*group, strict=True)
                arrays = [arrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
                writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))

    return write_file(path, fill)
