"""Engines: SQLite by default, PostgreSQL by URL; opened in the process that uses them, migrated when opened."""

from __future__ import annotations

import ctypes
import os
import platform
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from labctl.errors import LabError

BUSY_SECONDS = 30.0
_NETWORK_FILE_SYSTEMS = {
    0x6969: "NFS",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB2",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
}


def sqlite_url(state: Path) -> str:
    """The URL of the SQLite store in a state directory, good in whatever directory it is opened."""
    return f"sqlite:///{state.absolute() / 'labctl.sqlite'}"


def open_engine(url: str) -> Engine:
    """An engine with the newest tables. Raises `LabError` (`store`) when the database can't be opened or migrated."""
    parsed = make_url(url)
    try:
        if parsed.get_backend_name() == "sqlite":
            _prepare_directory(Path(str(parsed.database)))
            engine = create_engine(parsed, connect_args={"timeout": BUSY_SECONDS})
            event.listen(engine, "connect", _configure_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
        else:
            engine = create_engine(parsed, pool_pre_ping=True)
        _migrate(engine)
    except (OSError, SQLAlchemyError, sqlite3.Error) as error:
        raise LabError(
            f"The store {parsed.render_as_string(hide_password=True)} can't be opened.",
            kind="store",
            why=str(getattr(error, "orig", None) or error),
            todo="Check that the directory is there, writeable and not full, or name another one with --state.",
        ) from error
    return engine


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that only reads: a consistent snapshot, never blocked by writers."""
    try:
        with engine.connect() as connection, connection.begin():
            yield connection
    except DBAPIError as error:
        raise LabError(
            "The store could not be read.", kind="store", why=str(error.orig), todo="See whether its database is there."
        ) from error


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that writes.

    On SQLite it begins with BEGIN IMMEDIATE: a transaction that reads first and writes then fails at once when another
    process wrote in between, whatever the busy timeout is (https://www.sqlite.org/lang_transaction.html).
    """
    try:
        with engine.connect() as connection:
            connection = connection.execution_options(labctl_write=True)
            with connection.begin():
                yield connection
    except DBAPIError as error:
        if isinstance(error, IntegrityError):
            raise
        raise LabError(
            "The store could not be written.",
            kind="store",
            why=str(error.orig),
            todo="Free space in the state directory, then `labctl run --resume`; nothing that was stored is lost.",
        ) from error


def _prepare_directory(database: Path) -> None:
    database.parent.mkdir(parents=True, exist_ok=True)
    network = _network_file_system(database.parent)
    if network:
        raise LabError(
            f"The state directory {database.parent} lies on {network}.",
            kind="store",
            why="SQLite in WAL mode needs memory shared between its processes, which network file systems lack.",
            todo="Name a directory on a local disk with --state, or use PostgreSQL.",
        )


def _network_file_system(path: Path) -> str:
    """The name of the network file system that a path lies on; empty for a local one."""
    if platform.system() != "Linux":
        return ""
    buffer = ctypes.create_string_buffer(256)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(path), buffer) != 0:
        return ""
    magic = int.from_bytes(buffer.raw[:8], "little") & 0xFFFFFFFF
    return _NETWORK_FILE_SYSTEMS.get(magic, "")


def _configure_sqlite(connection: Any, _record: Any) -> None:  # noqa: ANN401 - DBAPI types
    connection.isolation_level = None
    for pragma in (
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
        f"busy_timeout={int(BUSY_SECONDS * 1000)}",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("labctl_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _migrate(engine: Engine) -> None:
    config = Config()
    config.set_main_option("script_location", str(resources.files("labctl.store") / "migrations"))
    with engine.connect() as connection:
        connection = connection.execution_options(labctl_write=True)
        with connection.begin():
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
