"""Where the store is: the file in a state directory, or a database named by URL."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from sqlalchemy import URL
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from labctl.errors import LabError, SpecError

NETWORK_FILE_SYSTEMS: Mapping[int, str] = {
    0x6969: "NFS",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB2",
    0x517B: "SMB",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x00C36400: "Ceph",
    0x5346414F: "AFS",
    0x19830326: "BeeGFS",
}
"""Magic numbers of statfs(2) of file systems whose files several machines write."""

_ALIASES = {"postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg"}


def sqlite_url(state: Path) -> str:
    """The URL of the SQLite store in a state directory, good in whatever directory it is opened."""
    return URL.create("sqlite", database=str(state.absolute() / "labctl.sqlite")).render_as_string()


def parse_url(url: str) -> URL:
    """The parts of a URL. Raises `SpecError` for one that is none, or of a database that labctl doesn't know."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise SpecError(
            "The URL of the store is none.",
            why=f"{url.partition('://')[0]}: it must begin with the kind of database and `://`.",
            todo="Write sqlite:////DIRECTORY/FILE or postgresql://USER@HOST/DATABASE.",
        ) from error
    parsed = parsed.set(drivername=_ALIASES.get(parsed.drivername, parsed.drivername))
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise SpecError(
            f"The store can't be a database of the kind {parsed.drivername}.", todo="Use SQLite or PostgreSQL."
        )
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise SpecError(
            "The store can't be in memory.",
            why="Several processes share it.",
            todo="Name a file: sqlite:////DIRECTORY/FILE.",
        )
    return parsed


def prepare_directory(database: Path) -> None:
    """Make the directory of an SQLite database. Raises `LabError` (`store`) when it lies on a network, and `OSError` when
    it can't be made."""
    database.parent.mkdir(parents=True, exist_ok=True)
    network = network_file_system(database.parent)
    if network:
        raise LabError(
            f"The state directory {database.parent} lies on {network}.",
            kind="store",
            why="SQLite in WAL mode needs memory shared between its processes, which network file systems lack.",
            todo="Name a directory on a local disk with --state, or use PostgreSQL with --store.",
        )


def network_file_system(path: Path, *, known: Mapping[int, str] = NETWORK_FILE_SYSTEMS) -> str:
    """The name of the network file system that a path lies on; empty for a local one, or where it can't be told."""
    if platform.system() != "Linux":
        return ""
    buffer = ctypes.create_string_buffer(256)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(path), buffer) != 0:
        return ""
    magic = int.from_bytes(buffer.raw[: ctypes.sizeof(ctypes.c_long)], "little") & 0xFFFFFFFF
    return known.get(magic, "")
