"""A writer of cpio archives in the `newc` format, which the kernel unpacks as its first file system.

The format is described in the kernel's Documentation/driver-api/early-userspace/buffer-format.rst. Archives of the same
entries are equal byte for byte: entries are sorted, inode numbers count from 1, owner and time are 0.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

_MAGIC = b"070701"
_TRAILER = "TRAILER!!!"
_FIELD_MAX = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file, directory, symbolic link or device node."""

    mode: int
    """File type and permission bits, as in `st_mode`."""
    content: bytes = b""
    """What a file holds, or the target of a symbolic link."""
    device: tuple[int, int] = (0, 0)
    """Major and minor number of a device node."""


def file(content: bytes, *, mode: int = 0o644) -> Entry:
    """A regular file."""
    return Entry(mode=stat.S_IFREG | mode, content=content)


def program(content: bytes) -> Entry:
    """A regular file that everybody may execute."""
    return file(content, mode=0o755)


def directory(*, mode: int = 0o755) -> Entry:
    """A directory."""
    return Entry(mode=stat.S_IFDIR | mode)


def link(target: str) -> Entry:
    """A symbolic link."""
    return Entry(mode=stat.S_IFLNK | 0o777, content=target.encode())


def character_device(major: int, minor: int, *, mode: int = 0o600) -> Entry:
    """A character device node."""
    return Entry(mode=stat.S_IFCHR | mode, device=(major, minor))


def archive(entries: Mapping[str, Entry]) -> bytes:
    """The archive of these entries by relative path; directories that they need but don't name are added."""
    complete = {**{parent: directory() for path in entries for parent in _parents(path)}, **entries}
    return b"".join(_records(complete))


def _parents(path: str) -> Iterator[str]:
    for parent in PurePosixPath(path).parents:
        if str(parent) != ".":
            yield str(parent)


def _records(entries: Mapping[str, Entry]) -> Iterator[bytes]:
    # Sorted by path components, so that a directory precedes what it holds.
    for inode, path in enumerate(sorted(entries, key=lambda path: path.split("/")), start=1):
        yield _record(path, inode, entries[path])
    yield _record(_TRAILER, 0, Entry(mode=0))


def _record(path: str, inode: int, entry: Entry) -> bytes:
    name = path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    major, minor = entry.device
    fields = (inode, entry.mode, 0, 0, links, 0, len(entry.content), 0, 0, major, minor, len(name), 0)
    if max(fields) > _FIELD_MAX:
        raise ValueError(f"{path} does not fit into a newc archive: {len(entry.content)} bytes")
    header = _MAGIC + b"".join(b"%08X" % field for field in fields) + name
    return _padded(header) + _padded(entry.content)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
