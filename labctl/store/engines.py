"""Engines of the two databases: how their connections are set up, and how a transaction of SQLite begins.

SQLAlchemy begins no transaction of SQLite by itself: each is begun in so many words (`labctl.store.database`), which is
also much cheaper than to have it done by a listener.
"""

from __future__ import annotations

import random
import sqlite3
import time
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event

from labctl.errors import LabError

PATIENCE_SECONDS = 30.0
"""How long a transaction waits for those of others before it fails."""
USUAL, DURABLE = "NORMAL", "FULL"
"""Levels of SQLite's `synchronous`: the disk is waited for now and then, or at the end of every transaction."""
_STATEMENT_SECONDS = 300
_IDLE_SECONDS = 60
"""A transaction (PostgreSQL) whose process was stopped in the middle of it is ended after so long."""
_CONNECT_SECONDS = 10
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.02
"""Seconds between two tries to begin a transaction."""
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL)


def make_engine(url: URL) -> Engine:
    """An engine for this URL; it connects when it is used. Raises `LabError` (`store`) when its driver is not installed."""
    try:
        return _sqlite(url) if url.get_backend_name() == "sqlite" else _postgresql(url)
    except ModuleNotFoundError as error:
        raise LabError(
            f"labctl can't speak with a {url.get_backend_name()} database.",
            kind="store",
            why=f"The Python package {error.name} is not installed.",
            todo="Install labctl with its extra: pip install 'labctl[postgres]'.",
        ) from error


def _sqlite(url: URL) -> Engine:
    engine = create_engine(url, connect_args={"timeout": PATIENCE_SECONDS})
    event.listen(engine, "connect", _configure_sqlite)
    return engine


def _configure_sqlite(connection: sqlite3.Connection, _record: Any) -> None:  # noqa: ANN401 - SQLAlchemy's own
    connection.isolation_level = None
    _use_wal(connection)
    for pragma in (f"synchronous={USUAL}", "foreign_keys=ON", "temp_store=MEMORY"):
        connection.execute(f"PRAGMA {pragma}")


def _use_wal(connection: sqlite3.Connection) -> None:
    """Make a new database one with a write-ahead log, which it then stays. The busy timeout doesn't hold for that
    (https://www.sqlite.org/wal.html), and several processes may be the first at once."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            for pragma in ("journal_mode", "journal_mode=WAL"):
                (mode,) = connection.execute(f"PRAGMA {pragma}").fetchone()
                if mode == "wal":
                    return
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.001, 0.02))  # noqa: S311 - no secret
        else:
            raise sqlite3.OperationalError(f"it can't be given a write-ahead log: its journal mode stays {mode}")


def begin_writing(connection: sqlite3.Connection) -> None:
    """Begin a transaction that writes, with SQLite. Nothing has been done yet, so that to begin again is safe as long as
    patience lasts.

    It waits in steps of its own. SQLite's busy handler sleeps for 1 ms at least and soon for 25 ms, and most transactions
    take a third of a millisecond: two writers slept most of the time while the third had ended.
    """
    connection.execute("PRAGMA busy_timeout=0")
    try:
        _begin_soon(connection)
    finally:
        connection.execute(f"PRAGMA busy_timeout={PATIENCE_SECONDS * 1000:.0f}")


def _begin_soon(connection: sqlite3.Connection) -> None:
    deadline, pause = time.monotonic() + PATIENCE_SECONDS, _SHORTEST_PAUSE
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            pause = min(pause * 1.3, _LONGEST_PAUSE)
        else:
            return


def _is_busy(error: sqlite3.Error) -> bool:
    """Whether an error only says that another process was in the way (https://www.sqlite.org/rescode.html)."""
    return error.sqlite_errorcode & 0xFF in _BUSY


def _postgresql(url: URL) -> Engine:
    limits = {
        "lock_timeout": PATIENCE_SECONDS,
        "statement_timeout": _STATEMENT_SECONDS,
        "idle_in_transaction_session_timeout": _IDLE_SECONDS,
    }
    options = [f"-c {name}={seconds * 1000:.0f}" for name, seconds in limits.items()]
    asked = url.query.get("options", ())
    options += [asked] if isinstance(asked, str) else asked
    arguments = {
        "application_name": "labctl",
        "client_encoding": "utf8",
        "connect_timeout": _CONNECT_SECONDS,
        "keepalives_idle": 30,
        "tcp_user_timeout": int(PATIENCE_SECONDS * 1000),
    }
    arguments = {name: value for name, value in arguments.items() if name not in url.query}
    return create_engine(url, pool_pre_ping=True, connect_args=arguments | {"options": " ".join(options)})
