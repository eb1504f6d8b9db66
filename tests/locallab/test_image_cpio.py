"""The archive writer, read back by the kernel's format as busybox's cpio understands it."""

import stat
import subprocess
from pathlib import Path

import pytest

from workers.locallab.image import cpio

ENTRIES = {
    "bin/tool": cpio.program(b"#!/bin/sh\n"),
    "bin/alias": cpio.link("tool"),
    "etc/odd": cpio.file(b"12345"),
    "etc/empty": cpio.file(b""),
    "root": cpio.directory(mode=0o700),
    "a.b/c": cpio.file(b"dot sorts before slash"),
    "a/c": cpio.file(b"slash"),
}


def test_an_archive_unpacks_to_what_was_put_in(tmp_path: Path) -> None:
    subprocess.run(["busybox", "cpio", "-idm"], cwd=tmp_path, input=cpio.archive(ENTRIES), check=True)
    assert (tmp_path / "bin/tool").read_bytes() == b"#!/bin/sh\n"
    assert stat.S_IMODE((tmp_path / "bin/tool").stat().st_mode) == 0o755
    assert (tmp_path / "bin/alias").readlink().name == "tool"
    assert (tmp_path / "etc/odd").read_bytes() == b"12345"
    assert stat.S_IMODE((tmp_path / "etc/odd").stat().st_mode) == 0o644
    assert (tmp_path / "etc/empty").read_bytes() == b""
    assert stat.S_IMODE((tmp_path / "root").stat().st_mode) == 0o700
    assert (tmp_path / "a/c").read_bytes() == b"slash"
    assert (tmp_path / "a.b/c").read_bytes() == b"dot sorts before slash"
    assert (tmp_path / "bin/tool").stat().st_mtime == 0


def test_a_device_node_keeps_its_type_and_numbers() -> None:
    record = cpio.archive({"console": cpio.character_device(5, 1)})
    fields = [int(record[6 + 8 * index : 14 + 8 * index], 16) for index in range(13)]
    assert stat.S_ISCHR(fields[1])
    assert fields[9:11] == [5, 1]


def test_the_order_of_entries_makes_no_difference() -> None:
    backwards = dict(reversed(list(ENTRIES.items())))
    assert cpio.archive(backwards) == cpio.archive(ENTRIES)


def test_every_directory_comes_before_what_it_holds() -> None:
    listed = subprocess.run(
        ["busybox", "cpio", "-t"], input=cpio.archive(ENTRIES), capture_output=True, check=True
    ).stdout.decode()
    paths = listed.split()
    assert sorted(paths) == sorted(
        ["a", "a.b", "a.b/c", "a/c", "bin", "bin/alias", "bin/tool", "etc", "etc/empty", "etc/odd", "root"]
    )
    for path in paths:
        if "/" in path:
            assert paths.index(path.rsplit("/", 1)[0]) < paths.index(path)


def test_content_that_the_format_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpio, "_FIELD_MAX", 40000)
    with pytest.raises(ValueError, match="big does not fit"):
        cpio.archive({"big": cpio.file(bytes(50000))})
