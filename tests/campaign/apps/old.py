"""labctl's worker of another version."""

from __future__ import annotations

from workers import versioning
from workers.app import app as app

versioning.code_version = lambda: "0.0.1/0001"
