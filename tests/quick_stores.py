"""SQLite stores for tests, most of which want a new one of their own. Its tables are made by the statements that all migrations
come to, not by the migrations one after the other, which takes ten times as long; and nobody waits until the disk has what
was written: no test takes the power away."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache

import pytest
from sqlalchemy import Connection, create_engine, inspect

from labctl.store import database, engines, schema

migrate = schema._upgrade
"""The migrations, as labctl carries them out."""
_LEVELS = tuple((where, name, getattr(where, name)) for where, name in (
    (engines, "USUAL"), (database, "USUAL"), (database, "DURABLE"),
))  # fmt: skip


@contextmanager
def quick_stores() -> Iterator[None]:
    """Stores are made and used so in this process. Old ones, and those of servers, are migrated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "_upgrade", _upgrade)
        for where, name, _ in _LEVELS:
            patch.setattr(where, name, "OFF")
        yield


@contextmanager
def real_stores() -> Iterator[None]:
    """Stores are made and used as users' are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "_upgrade", migrate)
        for where, name, level in _LEVELS:
            patch.setattr(where, name, level)
        yield


def _upgrade(db: Connection) -> None:
    if db.dialect.name != "sqlite" or inspect(db).get_table_names():
        migrate(db)
        return
    for statement in _statements():
        db.exec_driver_sql(statement)


@cache
def _statements() -> tuple[str, ...]:
    """What makes an empty database a store with the newest tables, in the transaction of whoever wants it."""
    engine = create_engine("sqlite://")
    with engine.begin() as db:
        migrate(db)
    with closing(engine.raw_connection()) as connection:
        made = connection.driver_connection
        assert isinstance(made, sqlite3.Connection)
        found = tuple(line for line in made.iterdump() if line not in ("BEGIN TRANSACTION;", "COMMIT;"))
    engine.dispose()
    return found
