"""Handing results in to a store that can't be written."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from labctl.campaign import housekeeping, unstored
from labctl.errors import LabError
from labctl.model.outcome import Outcome
from labctl.store import AttemptHandle, AttemptStart, Store, open_store
from tests.campaign.outbox import submitted
from tests.values import a_result, an_order
from workers import tasks


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB, to be filled by `fill`."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "labctl-test", str(path)], check=True)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"\1" * 4096)
    return ballast


def claimed(store: Store) -> AttemptHandle:
    run = store.pending_runs(submitted(store).id, limit=1)[0]
    (handle,) = store.start_attempts("lab", [AttemptStart(run_id=run.id, order=an_order(), resources=frozenset({"x"}))])
    assert handle is not None
    assert store.claim(handle, worker="w:1") is not None
    return handle


@pytest.mark.services
def test_s3_a_result_that_a_full_disk_does_not_take_is_kept_and_taken_up(
    full_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(full_disk)
    housekeeping.keep_room(store)
    handle = claimed(store)
    ballast = fill(full_disk)
    monkeypatch.setattr(tasks, "PATIENCE_SECONDS", 0.0)
    assert tasks._accepted(store, handle, a_result(raw=b"figures" * 1000))
    directory = unstored.directory_of(store)
    assert directory is not None
    assert (directory / f"attempt-{handle.id}.json").exists()
    ballast.unlink()
    assert housekeeping.take_up(store) == 1
    assert store.run_counts(1)[Outcome.OK] == 1
    assert store.raw(handle.id)[0].content == b"figures" * 1000
    store.close()


@pytest.mark.services
def test_a_result_for_which_there_is_no_room_at_all_is_an_error_of_the_store(
    full_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(full_disk)
    handle = claimed(store)
    fill(full_disk)
    monkeypatch.setattr(tasks, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(LabError) as caught:
        tasks._accepted(store, handle, a_result())
    assert caught.value.kind == "store"
    assert list((full_disk / "unstored").glob("*")) == []
    store.close()
