"""New SQLite stores for tests, whose tables are made by the statements that all migrations come to, not by the migrations one
after the other: that takes a tenth of the time, and most tests want a store of their own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache

import pytest
from sqlalchemy import Connection, create_engine, inspect

from labctl.store import schema

migrate = schema._upgrade
"""The migrations, as labctl carries them out."""


@contextmanager
def quick_stores() -> Iterator[None]:
    """New stores are made so in this process. Old ones, and those of servers, are migrated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "_upgrade", _upgrade)
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
