"""The machine on which a store is worked on. An SQLite database has one: it must not be shared between machines."""

from __future__ import annotations

import time

from sqlalchemy import Connection, insert, select, update

from labctl.errors import LabError
from labctl.store.machine import Machine, this_machine
from labctl.store.room import Room
from labctl.store.tables import store_info, workers

_MACHINE = "machine"
"""Key in `store_info`: the machine that the store is worked on from."""
WATCH_SECONDS = 10.0
"""How long beats of workers are watched before a store is taken over: longer than a few of their intervals."""
_LOOK_SECONDS = 0.2


class Home(Room):
    """The part of the store that is about the machine that it is worked on from."""

    def home(self) -> str:
        """The name of the machine that an SQLite store is worked on from; empty for a server's, and before any was."""
        with self._db.reading() as db:
            there = _machine(db)
        return there.name if there is not None else ""

    def work_here(self) -> None:
        """Say that this machine works on the store. Whoever starts runs or carries them out says so first; reading is free.

        Raises `LabError` (`store-elsewhere`) when an SQLite store is worked on from another machine.
        """
        if not self._db.is_sqlite:
            return
        here = this_machine()
        with self._db.writing() as db:
            there = _machine(db)
            if there is not None and not here.is_also(there):
                raise _elsewhere(here, there)
            _keep(db, here)

    def adopt_machine(self, *, watch: float = WATCH_SECONDS) -> None:
        """Make this machine the one that works on the store, because a person says that no other does any more.

        Raises `LabError` (`store-elsewhere`) when a worker of another machine gives signs of life within `watch` seconds.
        """
        if not self._db.is_sqlite:
            return
        here = this_machine()
        with self._db.reading() as db:
            there, before = _machine(db), _beats(db)
        if there is not None and not here.is_also(there):
            deadline = time.monotonic() + (watch if before else 0.0)
            while time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
                with self._db.reading() as db:
                    beating = sorted(name for name, beats in _beats(db).items() if beats != before.get(name))
                if beating:
                    raise _elsewhere(here, there, beating[0])
        with self._db.writing() as db:
            _keep(db, here)


def _machine(db: Connection) -> Machine | None:
    text = db.execute(select(store_info.c.value).where(store_info.c.key == _MACHINE)).scalar()
    return Machine.from_text(text) if text is not None else None


def _keep(db: Connection, here: Machine) -> None:
    there = _machine(db)
    if there is None:
        db.execute(insert(store_info).values(key=_MACHINE, value=here.to_text()))
    elif there != here:
        db.execute(update(store_info).where(store_info.c.key == _MACHINE).values(value=here.to_text()))


def _beats(db: Connection) -> dict[str, int]:
    return {row.name: row.beats for row in db.execute(select(workers.c.name, workers.c.beats))}


def _elsewhere(here: Machine, there: Machine, beating: str = "") -> LabError:
    lives = f" Its worker {beating} is at work now." if beating else ""
    return LabError(
        f"This store is worked on from the machine {there.name}, and this is {here.name}.",
        kind="store-elsewhere",
        why=f"An SQLite database that two machines write is damaged sooner or later: their locks don't see each other.{lives}",
        todo="Use PostgreSQL for several machines (--store postgresql://USER@HOST/DATABASE). If the store was moved here "
        f"and nothing on {there.name} works on it any more: labctl db adopt",
    )
