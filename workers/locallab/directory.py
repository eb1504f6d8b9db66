"""The directory of an embedded lab: who may work on it now, whose it is, and how it goes away without a trace."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labctl.errors import LabError
from workers.guard import Deadline
from workers.locallab import namespaces
from workers.locallab.system import attempt

REGISTRY = Path("/run/labctl")
"""All embedded labs of this machine register here; labs whose file names no directory also live here."""

MARKER = "embedded-lab.json"
"""The first file in a lab's directory: it says that the directory is ours. Its content is the lab that came up."""

_NETNS_IS_OURS = REGISTRY / ".netns-folder-is-ours"
"""Says that there was no /run/netns before the first lab came up, so that it goes with the last one."""


@contextmanager
def locked(directory: Path, *, timeout: float = 120.0) -> Iterator[None]:
    """The directory, made if need be, and the exclusive right to work on this lab.

    The lock is on the directory itself, so it leaves no file and is released when its holder dies. Raises `LabError`:
    `lab-busy` when somebody else still works on the lab after `timeout` seconds, `not-ours` when the directory holds
    something that is no lab of ours.
    """
    with _hold(directory, timeout=timeout):
        if not (directory / MARKER).exists():
            if any(directory.iterdir()):
                raise LabError(
                    f"{directory} is not empty and is no directory of an embedded lab.",
                    kind="not-ours",
                    why=f"It lacks {MARKER}. What labctl did not make it does not touch.",
                    todo="Name another directory in the lab file, or empty this one.",
                )
            (directory / MARKER).touch(mode=0o600)
        yield


@contextmanager
def _hold(directory: Path, *, timeout: float) -> Iterator[None]:
    deadline = Deadline.after(timeout)
    while True:
        _make(directory)
        try:
            handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            if _try_lock(handle) and _is_still(directory, handle):
                yield
                return
        finally:
            os.close(handle)
        if deadline.passed:
            raise LabError(
                f"Another `labctl lab up` or `down` works on {directory}.",
                kind="lab-busy",
                why=f"It has not ended after {timeout:g} s.",
                todo="Wait for it, or end it, and try again.",
            )
        time.sleep(0.05)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(directory: Path, handle: int) -> bool:
    """Whether the locked directory is still the one of that name: it may have been removed and made anew."""
    try:
        return os.path.samestat(directory.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _make(directory: Path) -> None:
    with _registry():
        if not namespaces.FOLDER.exists():
            _NETNS_IS_OURS.touch(mode=0o600)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)


@contextmanager
def _registry() -> Iterator[None]:
    """The exclusive right to add or remove a lab. Held for moments only."""
    while True:
        REGISTRY.mkdir(mode=0o700, exist_ok=True)
        try:
            handle = os.open(REGISTRY, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_still(REGISTRY, handle):
                yield
                return
        finally:
            os.close(handle)


def remove(directory: Path) -> None:
    """Remove a lab's directory while its lock is held; with the last lab, all that the labs share."""
    for entry in directory.iterdir():
        if entry.name == MARKER:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    with _registry():
        (directory / MARKER).unlink(missing_ok=True)
        directory.rmdir()
        _remove_registry()


def tidy() -> None:
    """Remove what all labs share if there is no lab any more: a `down` may have been killed just before that."""
    if REGISTRY.exists():
        with _registry():
            _remove_registry()


def _remove_registry() -> None:
    """Without any lab left, remove the folder of named namespaces if it came with ours and nobody else uses it."""
    if namespaces.names("labctl-") or any(entry != _NETNS_IS_OURS for entry in REGISTRY.iterdir()):
        return
    if _NETNS_IS_OURS.exists():
        if namespaces.FOLDER.exists() and not any(namespaces.FOLDER.iterdir()):
            attempt(["umount", "--no-mtab", str(namespaces.FOLDER)])
            with suppress(OSError):
                namespaces.FOLDER.rmdir()
        _NETNS_IS_OURS.unlink()
    REGISTRY.rmdir()


def write(path: Path, content: str, *, mode: int = 0o600) -> bool:
    """Write a file in one step, unless it says so already; whether it was written. Being killed never halves it."""
    with suppress(FileNotFoundError):
        if path.read_text() == content:
            return False
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(content)
    fresh.chmod(mode)
    fresh.rename(path)
    return True
