"""A report as plain tables: one row a run, one row a cell. CSV and Parquet files hold these and nothing else.

Throughput is in bit/s, durations in seconds, moments in seconds since the Unix epoch, changes in percent. An unknown value
is empty (null), never zero. Flags stand in every row that they concern, by their words.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from labctl.model.scenario import Side
from labctl.model.settings import Level
from labctl.report.values import Report, Row, RowFlag

Value = str | int | float | bool | None

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula
(https://owasp.org/www-community/attacks/CSV_Injection)."""
_GUARD = "'"


class Rows(StrEnum):
    """What a row is about."""

    RUNS = "runs"
    CELLS = "cells"


@dataclass(frozen=True, kw_only=True)
class TableData:
    """A table: its columns in order, and rows that have a value for each of them."""

    columns: tuple[str, ...]
    rows: tuple[Mapping[str, Value], ...]


def table_of(report: Report, rows: Rows) -> TableData:
    """The runs of a report in the order in which they were worked off, or its cells in that of the matrix."""
    found = _runs(report) if rows is Rows.RUNS else _cells(report)
    columns = tuple(dict.fromkeys(name for row in found for name in row))
    return TableData(columns=columns, rows=tuple({name: row.get(name) for name in columns} for row in found))


def render_csv(table: TableData) -> str:
    """The table as CSV (RFC 4180), in UTF-8 with a line of names. A text that a spreadsheet would take for a formula has an
    apostrophe before it; `unguarded` takes it away again."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([_guarded(name) for name in table.columns])
    for row in table.rows:
        writer.writerow([_written(row[name]) for name in table.columns])
    return out.getvalue()


def unguarded(text: str) -> str:
    """The text of a CSV field as it was before it was guarded against being taken for a formula."""
    return text[1:] if text.startswith(_GUARD) and text[1:].startswith((*_FORMULA, _GUARD)) else text


def _guarded(text: str) -> str:
    return _GUARD + text if text.startswith((*_FORMULA, _GUARD)) else text


def _written(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return _guarded(value) if isinstance(value, str) else repr(value)


def _runs(report: Report) -> list[Mapping[str, Value]]:
    found = sorted(((run.sequence, row, run) for row in report.rows for run in row.runs), key=lambda item: item[0])
    return [
        _campaign(report)
        | {"run": run.run, "cell": row.cell}
        | _levels(report, row.levels)
        | {
            "replicate": run.replicate,
            "sequence": run.sequence,
            "hosts": " ".join(run.hosts),
            "began": run.began,
            "outcome": run.outcome.value if run.outcome is not None else None,
            "bits_per_second": run.bits_per_second,
            "transfers": len(run.transfers),
            "warmup_bits_per_second": run.warmups[0] if run.warmups else None,
            "why_none": run.why_none or None,
            "flags": _flags(flag for flag in row.flags if not flag.runs or run.run in flag.runs),
            "pretence": report.pretence or None,
        }
        for _, row, run in found
    ]


def _cells(report: Report) -> list[Mapping[str, Value]]:
    comparing = [name for name in report.factors if any(row.comparison(name) for row in report.rows)]
    return [
        _campaign(report)
        | {"cell": row.cell}
        | _levels(report, row.levels)
        | _summary(row)
        | {name: value for factor in comparing for name, value in _comparison(row, factor).items()}
        | _verdict(row)
        | _cost(row)
        | {"flags": _flags(row.flags), "pretence": report.pretence or None}
        for row in report.rows
    ]


def _campaign(report: Report) -> dict[str, Value]:
    return {"campaign": report.id, "campaign_name": report.name, "lab": report.lab}


def _levels(report: Report, levels: Mapping[str, Level]) -> dict[str, Value]:
    """The levels of a cell, as texts: a factor may have numbers in one cell and words in another."""
    return {f"level.{name}": _level(levels.get(name)) for name in report.factors}


def _level(value: Level | None) -> Value:
    if isinstance(value, bool):
        return "on" if value else "off"
    return None if value is None else str(value)


def _summary(row: Row) -> dict[str, Value]:
    one = row.summary
    return {
        "n": one.n,
        "planned": row.planned,
        "mean_bits_per_second": one.mean,
        "low_bits_per_second": one.low,
        "high_bits_per_second": one.high,
        "median_bits_per_second": one.median,
        "median_low_bits_per_second": one.median_low,
        "median_high_bits_per_second": one.median_high,
        "sd_bits_per_second": one.sd,
        "cv": one.cv,
        "minimum_bits_per_second": one.minimum,
        "maximum_bits_per_second": one.maximum,
    }


def _verdict(row: Row) -> dict[str, Value]:
    found = row.verdict
    return {"verdict": found.grade.value if found else None, "share_of_expected": found.share if found else None}


def _cost(row: Row) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for side in Side:
        one = row.cost.sides.get(side) if row.cost is not None else None
        values[f"{side.value}_busy_cores"] = one.busy_cores.mean if one else None
        values[f"{side.value}_bits_per_cpu_second"] = one.per_core.mean if one else None
    waits = row.cost.waits if row.cost is not None else None
    values["round_trip_median_ms"] = waits.median.mean if waits else None
    values["round_trip_p99_ms"] = waits.p99.mean if waits else None
    values["probes_lost"] = waits.lost if waits else None
    return values


def _comparison(row: Row, factor: str) -> dict[str, Value]:
    found = row.comparison(factor)
    ratio = found.ratio if found is not None else None
    low, high = (ratio.percent_interval if ratio is not None else None) or (None, None)
    values: dict[str, Value] = {
        "against": _level(found.baseline) if found is not None else None,
        "change_percent": ratio.percent if ratio is not None else None,
        "change_low_percent": low,
        "change_high_percent": high,
        "difference": ratio.difference.value if ratio is not None else None,
        "effect_size": ratio.effect if ratio is not None else None,
        "runs_needed": ratio.needed if ratio is not None else None,
        "also_differs": " ".join(found.also_differs) if found is not None and found.also_differs else None,
    }
    return {f"by.{factor}.{name}": value for name, value in values.items()}


def _flags(flags: Iterable[RowFlag]) -> Value:
    return " ".join(dict.fromkeys(flag.kind for flag in flags)) or None


def rows_as_columns(table: TableData) -> dict[str, Sequence[Value]]:
    """The table by columns."""
    return {name: [row[name] for row in table.rows] for name in table.columns}
