"""A table as a Parquet file (https://parquet.apache.org), for those who go on with pandas, DuckDB, R or Polars."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from labctl.errors import SpecError
from labctl.report.tables import TableData, Value, rows_as_columns


def write_parquet(table: TableData, path: Path) -> None:
    """Write the table. A column without any value is one of texts. Raises `SpecError` when pyarrow isn't installed, and
    `OSError` when the path can't be written."""
    arrow, parquet = _library()
    columns = rows_as_columns(table)
    schema = arrow.schema([(name, _kind(arrow, values)) for name, values in columns.items()])
    parquet.write_table(arrow.table(columns, schema=schema), path)


def _kind(arrow: Any, values: Sequence[Value]) -> Any:  # noqa: ANN401 - of a library without types
    some = [value for value in values if value is not None]
    if some and all(isinstance(value, bool) for value in some):
        return arrow.bool_()
    if some and all(isinstance(value, int) and not isinstance(value, bool) for value in some):
        return arrow.int64()
    if some and all(isinstance(value, int | float) and not isinstance(value, bool) for value in some):
        return arrow.float64()
    return arrow.string()


def _library() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise SpecError(
            "Parquet files can't be written.",
            why="The Python package pyarrow is not installed.",
            todo="Install labctl with its extra: pip install 'labctl[parquet]'; or take --format csv.",
        ) from error
