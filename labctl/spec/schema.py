"""JSON Schema (2020-12) of both files, for editors that complete and check YAML while one types."""

from __future__ import annotations

from typing import Any

from labctl.spec.campaign_file import CampaignFile
from labctl.spec.fields import Strict
from labctl.spec.lab_file import LabFile

FILES: dict[str, type[Strict]] = {"campaign": CampaignFile, "lab": LabFile}
"""The models by the kind of file."""


def schema(kind: str) -> dict[str, Any]:
    """The schema of a `campaign` or a `lab` file. Raises `KeyError` for another word."""
    document = FILES[kind].model_json_schema(by_alias=True, mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | document | {"title": f"labctl {kind} file"}
