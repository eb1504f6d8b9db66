"""The store: every change of state is one short transaction here.

Rules that hold in the database itself: a run has at most one accepted attempt, and a result is accepted only with the
token of an attempt that is still claimed; a resource of a lab has at most one lease; all leases of an attempt are taken
in the transaction that creates it; of an event there is only one.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path

from sqlalchemy import Engine, PoolProxiedConnection, insert, select

from labctl.store.attempts import Attempts
from labctl.store.campaigns import Campaigns
from labctl.store.database import open_engine, sqlite_url, writing
from labctl.store.hosts import Events, Hosts, Workers
from labctl.store.records import Records
from labctl.store.tables import store_info
from labctl.store.vms import Vms


class Store(Campaigns, Attempts, Vms, Hosts, Workers, Events, Records):
    """The store of one state directory or database. Open it in the process that uses it (`open_store`)."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._watch: PoolProxiedConnection | None = None
        self.identity = self._identity()

    def close(self) -> None:
        """Let go of all connections."""
        if self._watch is not None:
            self._watch.close()
        self._engine.dispose()

    @property
    def database(self) -> Path | None:
        """The file of an SQLite store; None for a database server."""
        file = self._engine.url.database
        return Path(file) if self._engine.dialect.name == "sqlite" and file else None

    def version(self) -> int:
        """A number that is another one when anything may have been written since the last call. Cheap on SQLite."""
        if self._engine.dialect.name != "sqlite":
            return time.monotonic_ns()
        if self._watch is None:
            self._watch = self._engine.raw_connection()
        cursor = self._watch.cursor()
        cursor.execute("PRAGMA data_version")
        row = cursor.fetchone()
        cursor.close()
        return int(row[0]) if row else 0

    def _identity(self) -> str:
        with writing(self._engine) as db:
            found = db.execute(select(store_info.c.value).where(store_info.c.key == "identity")).scalar()
            if found is None:
                found = uuid.uuid4().hex
                db.execute(insert(store_info).values(key="identity", value=found))
        return found


def open_store(state: Path, *, url: str | None = None) -> Store:
    """The store of a state directory, or of a database URL, created and migrated when needed."""
    return Store(open_engine(url or sqlite_url(state)))
