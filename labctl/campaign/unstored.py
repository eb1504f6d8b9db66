"""Results that the store would not take: kept in files beside it, and taken up when it can be written again.

A result is handed in to the store, raw outputs and all, in one transaction. When the store can't be written for longer
than a worker is patient, or the worker is told to end meanwhile, hours of measuring would be lost. A file is the last
resort. A full disk is the likeliest reason, so some room for such files is kept beforehand, by a file of nothing.

| path in the state directory | what |
|---|---|
| `unstored/attempt-ID.json` | a result with its raw outputs, and the token that the store will ask for |
| `unstored/room` | takes the room that such files will need |
"""

from __future__ import annotations

import base64
import json
import logging
import os
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from labctl.campaign import judgement
from labctl.model.result import AttemptResult, RawOutput
from labctl.spec.documents import from_json, to_json
from labctl.store import AttemptHandle, Store

STATE = "LABCTL_STATE"
"""The environment variable that names the state directory to workers whose store is a database server."""
ROOM_BYTES = 8 * 2**20
ROOM_SHARE = 0.01
"""So much room is kept for results, but no more than this share of the file system."""
_LARGEST_ID = 2**31 - 1
"""The largest number that both kinds of database have room for in an id."""

log = logging.getLogger(__name__)


def directory_of(store: Store) -> Path | None:
    """Where results of this store are kept on this machine; None when it has no state directory here."""
    if store.database is not None:
        return store.database.parent / "unstored"
    state = os.environ.get(STATE)
    return Path(state) / "unstored" if state else None


def keep_room(directory: Path) -> None:
    """Take the room that results may need, if it is not taken yet. Raises `OSError` when there is none."""
    directory.mkdir(parents=True, exist_ok=True)
    room = directory / "room"
    found = os.statvfs(directory)
    wanted = min(ROOM_BYTES, int(ROOM_SHARE * found.f_blocks * found.f_frsize))
    if wanted <= 0 or (room.exists() and room.stat().st_size >= wanted):
        return
    with room.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, wanted)


def keep(directory: Path, store: str, handle: AttemptHandle, result: AttemptResult) -> Path:
    """Keep a result until the store can be written. `store` is its identity. Raises `OSError` when that can't be done
    either."""
    directory.mkdir(parents=True, exist_ok=True)
    content = _written(store, handle, result)
    path = directory / f"attempt-{handle.id}.json"
    try:
        _write(path, content)
    except OSError:
        (directory / "room").unlink(missing_ok=True)
        _write(path, content)
    return path


def take_up(store: Store, directory: Path) -> int:
    """Hand in the results that were kept, and return how many were accepted.

    One whose token is void is dropped: its run goes back, or has gone back already. A file that holds no result, or that
    of an attempt which the store has never had, is put aside under the suffix `.unreadable`. Raises `LabError` (`store`)
    when the store still can't be written; nothing is lost then. It is called before lost attempts are looked for, because
    the worker of such a result may be gone.
    """
    accepted = 0
    for path in sorted(directory.glob("attempt-*.json")):
        try:
            document = json.loads(path.read_bytes())
            if document["store"] != store.identity:
                continue
            handle, result = _read(document)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, zlib.error) as error:
            _put_aside(path, f"holds no result that can be read ({type(error).__name__})")
            continue
        if not store.has_attempt(handle.id):
            _put_aside(path, f"holds a result of attempt {handle.id}, which this store has never had")
            continue
        if judgement.accept(store, handle, result):
            accepted += 1
            log.info("attempt %s: its result was taken up from %s", handle.id, path)
        else:
            log.warning("attempt %s: its token became void; its result in %s was dropped", handle.id, path)
        path.unlink(missing_ok=True)
    return accepted


def _put_aside(path: Path, why: str) -> None:
    """Rename a file that can't be handed in, so that it holds nothing up; a person may look at it."""
    log.warning("%s %s; it is put aside", path, why)
    with suppress(OSError):
        path.rename(path.with_suffix(".unreadable"))


def _write(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all, whatever happens to the machine."""
    part = path.with_suffix(".part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _written(store: str, handle: AttemptHandle, result: AttemptResult) -> bytes:
    return json.dumps(
        {
            "store": store,
            "attempt": handle.id,
            "token": handle.token,
            "result": json.loads(to_json(replace(result, raw=()))),
            "raw": [[item.name, base64.b64encode(zlib.compress(item.content)).decode()] for item in result.raw],
        }
    ).encode()


def _read(document: Mapping[str, object]) -> tuple[AttemptHandle, AttemptResult]:
    """Raises `ValueError`, `KeyError`, `TypeError` or `zlib.error` for what `_written` did not write."""
    raw = document["raw"]
    if not isinstance(raw, list):
        raise TypeError("raw outputs are a list")
    outputs = tuple(RawOutput(name=name, content=zlib.decompress(base64.b64decode(content))) for name, content in raw)
    result = from_json(AttemptResult, json.dumps(document["result"]))
    attempt = int(str(document["attempt"]))
    if not 0 < attempt <= _LARGEST_ID:
        raise ValueError("no attempt has this id")
    return AttemptHandle(id=attempt, token=str(document["token"])), replace(result, raw=outputs)
