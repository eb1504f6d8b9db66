"""The store: every change of state is one short transaction here.

Rules that hold in the database itself: a run has at most one accepted attempt, and a result is accepted only with the
token of an attempt that is still claimed; a resource of a lab has at most one lease; all leases of an attempt are taken
in the transaction that creates it; of an event there is only one.
"""

from __future__ import annotations

from pathlib import Path

from labctl.store.adjustments import Adjustments
from labctl.store.attempts import Attempts
from labctl.store.campaigns import Campaigns
from labctl.store.database import open_database
from labctl.store.endings import Endings
from labctl.store.home import Home
from labctl.store.hosts import Events, Hosts, Workers
from labctl.store.imports import Imports
from labctl.store.insight import Insight
from labctl.store.place import sqlite_url
from labctl.store.records import Records
from labctl.store.runs import Runs
from labctl.store.submission import Submission
from labctl.store.vms import Vms


class Store(
    Submission, Campaigns, Runs, Attempts, Endings, Insight, Vms, Adjustments, Hosts, Workers, Events, Records, Home, Imports
):  # fmt: skip
    """The store of one state directory or database. Open it in the process that uses it (`open_store`)."""

    @property
    def identity(self) -> str:
        """What tells this store from all others."""
        return self._db.identity

    def close(self) -> None:
        """Let go of all connections."""
        self._db.close()

    @property
    def database(self) -> Path | None:
        """The file of an SQLite store; None for a database server."""
        return self._db.file

    def version(self) -> int:
        """A number that is another one when anything may have been written since the last call. Costs next to nothing."""
        return self._db.version()


def open_store(state: Path, *, url: str | None = None) -> Store:
    """The store of a state directory, or of a database URL, made and migrated when needed.

    Raises `LabError`: `store-newer` when a newer labctl has migrated it; `store` when it can't be opened or migrated, or
    is not labctl's. Raises `SpecError` for a URL that is none.
    """
    return Store(open_database(url or sqlite_url(state)))
