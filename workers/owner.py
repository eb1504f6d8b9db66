"""The owner of a worker: the `labctl run` that started it for itself, if one did."""

from __future__ import annotations

import os
from pathlib import Path


def owner_lives() -> bool:
    """Whether the process that started this worker for itself still runs; true for workers that nobody owns."""
    owner = os.environ.get("LABCTL_OWNER")
    return not owner or Path(f"/proc/{owner}").exists()
