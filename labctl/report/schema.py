"""JSON Schema (2020-12) of the report's JSON, for programs that read it."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from labctl.analysis.comparison import Difference
from labctl.report.json import SCHEMA
from labctl.report.values import Report

_NUMBER = {"anyOf": [{"type": "number"}, {"type": "null"}]}
_OF_RATIO = {
    "percent": _NUMBER,
    "percent_low": _NUMBER,
    "percent_high": _NUMBER,
    "difference": {"enum": [one.value for one in Difference]},
}
"""What the JSON says of a ratio beside its fields."""


def report_schema() -> dict[str, Any]:
    """The schema. Every field is always there; unknown values are null; later versions may add fields."""
    document = TypeAdapter(Report).json_schema(mode="serialization")
    kinds = document["$defs"]
    kinds["Ratio"]["properties"] |= _OF_RATIO
    for kind in (document, *kinds.values()):
        if "properties" in kind:
            kind["required"] = list(kind["properties"])
    document["properties"] = {"schema": {"const": SCHEMA}} | document["properties"]
    document["required"] = ["schema", *document["required"]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | document | {"title": "labctl report"}
