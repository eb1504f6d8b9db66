"""The database of a store: opened in the process that uses it, migrated when opened, used in short transactions.

SQLite by default, PostgreSQL by URL. On both, whoever writes on the strength of what he has read is alone in it:

- SQLite: transactions that write begin with BEGIN IMMEDIATE. One that reads first and writes then fails at once when
  another process wrote in between, whatever the busy timeout is (https://www.sqlite.org/lang_transaction.html).
- PostgreSQL: they take one advisory lock of the database, at READ COMMITTED, so that each statement sees all that was
  written before (https://www.postgresql.org/docs/current/explicit-locking.html). So nothing can deadlock, and no
  transaction has to be made again. One whose only writing statement holds its own condition does without.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, PoolProxiedConnection
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnectionError

from labctl.errors import LabError
from labctl.store.engines import DURABLE, USUAL, begin_writing, make_engine
from labctl.store.place import parse_url, prepare_directory
from labctl.store.place import sqlite_url as sqlite_url
from labctl.store.schema import NEWEST, Stand, bring_up, refuse_newer, stand

_BE_ALONE = f"SELECT pg_advisory_xact_lock({0x6C616263746C})"
"""Takes the lock of those who write, until the end of the transaction. The number is `labctl` in ASCII."""


class Database:
    """An open database with the newest tables, for the process that has opened it."""

    def __init__(self, engine: Engine) -> None:
        self.identity = ""
        """What tells its store from all others, once it is open."""
        self.is_sqlite = engine.dialect.name == "sqlite"
        self._engine = engine
        self._reader = engine
        if not self.is_sqlite:
            self._reader = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._process = os.getpid()
        self._watch: PoolProxiedConnection | None = None
        self._seen: tuple[object, int] = None, 0

    @property
    def file(self) -> Path | None:
        """The file of an SQLite database; None for a server's."""
        name = self._engine.url.database
        return Path(name) if self.is_sqlite and name else None

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that only reads: a consistent snapshot, never blocked by writers. Raises `LabError` (`store`)."""
        self._require_own_process()
        try:
            with self._reader.connect() as db, db.begin():
                if self.is_sqlite:
                    _driver(db).execute("BEGIN")
                yield db
        except (DBAPIError, NoConnectionError, sqlite3.Error) as error:
            raise _failed("read", error) from error

    @contextmanager
    def writing(self, *, alone: bool = True, durable: bool = False) -> Iterator[Connection]:
        """A transaction that writes. Raises `LabError` (`store`), and nothing of it is stored then.

        `alone` false is for those whose only writing statement holds its own condition. One that is `durable`, and all
        before it, outlive a loss of power; of others SQLite may lose the last ones then, never a part of one
        (https://www.sqlite.org/pragma.html#pragma_synchronous). A server's always do.
        """
        self._require_own_process()
        try:
            with self._engine.connect() as db, self._synced(db, durable=durable), db.begin():
                if self.is_sqlite:
                    begin_writing(_driver(db))
                elif alone:
                    db.exec_driver_sql(_BE_ALONE)
                yield db
        except IntegrityError:
            raise
        except (DBAPIError, NoConnectionError, sqlite3.Error) as error:
            raise _failed("written", error) from error

    def open(self, name: str) -> None:
        """Bring it to the newest tables, where it isn't there yet. `name` is for people. Raises `LabError`."""
        with self._reader.connect() as db:
            found = stand(db)
            if found is not None:
                refuse_newer(db, found, name)
        if found is None or found.revision != NEWEST:
            found = self._bring_up(name)
        self.identity = found.identity

    def version(self) -> int:
        """A number that is another one when anything may have been written since the last call. Costs next to nothing.
        Raises `LabError` (`store`)."""
        self._require_own_process()
        try:
            said = self._look()
        except (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error) as error:
            self._stop_looking()
            raise _failed("read", error) from error
        if said != self._seen[0]:
            self._seen = said, self._seen[1] + 1
        return self._seen[1]

    def vacuum(self) -> None:
        """Give the unused space of an SQLite file back. Servers see to it by themselves. Raises `LabError` (`store`)."""
        self._require_own_process()
        if not self.is_sqlite:
            return
        # A connection past SQLAlchemy, because SQLite vacuums in no transaction.
        connection = self._engine.raw_connection()
        try:
            cursor = connection.cursor()
            cursor.execute("VACUUM")
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            cursor.close()
        except sqlite3.Error as error:
            raise _failed("vacuumed", error) from error
        finally:
            connection.close()

    def close(self) -> None:
        """Let go of all connections."""
        self._stop_looking()
        self._engine.dispose()

    @contextmanager
    def _synced(self, db: Connection, *, durable: bool) -> Iterator[None]:
        """SQLite takes another level only outside of transactions."""
        if not (durable and self.is_sqlite):
            yield
            return
        _driver(db).execute(f"PRAGMA synchronous={DURABLE}")
        try:
            yield
        finally:
            if not db.invalidated:
                _driver(db).execute(f"PRAGMA synchronous={USUAL}")

    def _bring_up(self, name: str) -> Stand:
        """Migrate. SQLite must not check references meanwhile: tables are copied and replaced."""
        with self._engine.connect() as db, db.begin():
            if self.is_sqlite:
                _driver(db).execute("PRAGMA foreign_keys=OFF")
                begin_writing(_driver(db))
            else:
                db.exec_driver_sql(_BE_ALONE)
            found = bring_up(db, name)
            db.commit()
            db.invalidate()
        return found

    def _look(self) -> object:
        if self._watch is None:
            self._watch = self._engine.raw_connection()
            if not self.is_sqlite:
                self._watch.driver_connection.autocommit = True  # type: ignore[union-attr]
        cursor = self._watch.cursor()
        cursor.execute("PRAGMA data_version" if self.is_sqlite else "SELECT pg_current_snapshot()::text")
        (said,) = cursor.fetchone() or (None,)
        cursor.close()
        return said

    def _stop_looking(self) -> None:
        if self._watch is not None:
            self._watch.invalidate()
        self._watch, self._seen = None, (None, self._seen[1])

    def _require_own_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"The store was opened by process {self._process} and is used by process {os.getpid()}: no connection may "
                "cross a fork. Open it in the process that uses it."
            )


def open_database(url: str) -> Database:
    """The database of a store, with the newest tables.

    Raises `LabError`: `store-newer` when a newer labctl has migrated it; `store` when it can't be opened or migrated, or
    is not labctl's. Raises `SpecError` for a URL that is none.
    """
    parsed = parse_url(url)
    name = _shown(parsed)
    try:
        if parsed.get_backend_name() == "sqlite":
            prepare_directory(Path(str(parsed.database)))
        database = Database(make_engine(parsed))
        database.open(name)
    except (OSError, SQLAlchemyError, sqlite3.Error) as error:
        todo = "Check that the server runs, that the database is there, and that its user may make tables in it."
        if parsed.get_backend_name() == "sqlite":
            todo = "Check that its directory is there, writeable and not full, or name another one with --state."
        raise LabError(f"The store {name} can't be opened.", kind="store", why=_said(error), todo=todo) from error
    return database


def _driver(db: Connection) -> sqlite3.Connection:
    """SQLite's own connection, which takes a word to begin a transaction without any ado."""
    connection = db.connection.driver_connection
    assert isinstance(connection, sqlite3.Connection)
    return connection


def _shown(url: URL) -> str:
    """A URL for people: the path of a file, or the URL without its password."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    return url.difference_update_query(["password", "options"]).render_as_string(hide_password=True)


def _failed(done: str, error: Exception) -> LabError:
    why, todo = _said(error), "Nothing that was stored is lost: try again once its database answers."
    if "locked" in why or "lock timeout" in why:
        todo = "See which other process of labctl keeps it for so long, and end it if it hangs; then try again."
    elif "full" in why or "No space" in why:
        todo = "Free space in the state directory, then `labctl run --resume`; nothing that was stored is lost."
    return LabError(f"The store could not be {done}.", kind="store", why=why, todo=todo)


def _said(error: Exception) -> str:
    """What the database itself said, in one line."""
    return " ".join(str(getattr(error, "orig", None) or error).split())
