"""The report as JSON: the same facts as every rendering, in base units (bit/s, bytes, seconds)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from labctl.analysis.comparison import Ratio
from labctl.report.pair import Pair
from labctl.report.values import Report

SCHEMA = "labctl.report/1"
PAIR_SCHEMA = "labctl.pair/1"
"""Form and version. The number changes when a field is removed or changes its meaning; new fields may come."""


def render_json(report: Report) -> str:
    """The JSON text. Unknown values are null; numbers that JSON has no words for don't occur."""
    return render(SCHEMA, report)


def render_pair(pair: Pair) -> str:
    """The JSON text of two campaigns beside each other."""
    return render(PAIR_SCHEMA, pair)


def render(schema: str, value: Any) -> str:  # noqa: ANN401 - any value of a report
    """The JSON text of a value whose form and version has this name."""
    return json.dumps({"schema": schema, **_plain(value)}, ensure_ascii=False, indent=1, allow_nan=False)


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value of a report
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Ratio):
        interval = value.percent_interval or (None, None)
        return _fields(value) | {
            "percent": _plain(value.percent),
            "percent_low": interval[0],
            "percent_high": interval[1],
            "difference": value.difference.value,
        }
    if is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _fields(value: Any) -> dict[str, Any]:  # noqa: ANN401
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
