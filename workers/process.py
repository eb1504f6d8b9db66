"""What a worker process has once, made lazily in the process that uses it: never before a fork."""

from __future__ import annotations

import os

from labctl.errors import LabError
from labctl.store import Store
from labctl.store.database import open_engine

_stores: dict[int, Store] = {}


def process_store() -> Store:
    """The store that `LABCTL_STORE` names, opened in this very process."""
    pid = os.getpid()
    if pid not in _stores:
        url = os.environ.get("LABCTL_STORE")
        if not url:
            raise LabError(
                "The worker was not told where the store is.",
                kind="store",
                todo="Start it with `labctl worker`, or set LABCTL_STORE to the database URL.",
            )
        _stores.clear()
        _stores[pid] = Store(open_engine(url))
    return _stores[pid]
