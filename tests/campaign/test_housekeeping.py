"""The disk guard on a small real file system, retention on a real store, and results that the store would not take."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl import clock
from labctl.campaign import housekeeping, judgement, unstored
from labctl.campaign.housekeeping import Housekeeping, Reserve, disk_hold, reserve_of
from labctl.errors import LabError, SpecError
from labctl.model.outcome import CampaignState, Outcome
from labctl.model.result import AttemptResult, FactSet, RawOutput
from labctl.store import WORKER_LOST, AttemptHandle, AttemptStart, Store, open_store
from tests.campaign.outbox import carry_out, submitted
from tests.values import a_result, an_order

NONE = Reserve(bytes=0.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "labctl-test", str(path)], check=True)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def fill(disk: Path, *, leave: int = 0) -> Path:
    """Take all the room that is left but so many bytes."""
    ballast = disk / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"\1" * 4096)
    os.truncate(ballast, max(0, ballast.stat().st_size - leave))
    return ballast


def started(store: Store) -> AttemptHandle:
    run = store.pending_runs(submitted(store).id, limit=1)[0]
    start = AttemptStart(run_id=run.id, order=an_order(), resources=frozenset({f"run:{run.id}"}))
    (handle,) = store.start_attempts("lab", [start])
    assert handle is not None
    return handle


def claimed(store: Store) -> AttemptHandle:
    handle = started(store)
    assert store.claim(handle, worker="w:1") is not None
    return handle


def kinds(store: Store, campaign_id: int) -> list[str]:
    return [event.kind for event in store.events(campaign_id)]


class Looking:
    """Housekeeping that looks at the disk whenever it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Store, state: Path, **more: object) -> None:
        monkeypatch.setattr(housekeeping, "LOOK_SECONDS", 0.0)
        self.look = Housekeeping(store, state, **more).look  # type: ignore[arg-type]


# The reserve


@pytest.mark.parametrize(
    ("text", "total", "kept"),
    [
        ("", 1e12, 500e6),
        ("", 1e9, 50e6),
        ("2 GB", 1e12, 2e9),
        ("512MiB", 1e12, 512 * 2**20),
        ("10%", 1e9, 1e8),
        ("12.5 %", 1e9, 1.25e8),
        ("0", 1e9, 0),
    ],
)
def test_a_reserve_is_a_size_or_a_share(text: str, total: float, kept: float) -> None:
    assert reserve_of(text).of(total) == pytest.approx(kept)


@pytest.mark.parametrize("text", ["lots", "10 Gb", "-5", "100 %", "x %", "nan %", "5 GB 3"])
def test_what_is_no_reserve_is_refused_and_said(text: str) -> None:
    with pytest.raises(SpecError, match="LABCTL_RESERVE") as caught:
        reserve_of(text)
    assert "2 GB" in caught.value.todo


@given(st.floats(0, 1e15), st.floats(0, 1e15), st.floats(0, 1))
def test_no_more_than_either_limit_is_kept_back(total: float, size: float, share: float) -> None:
    kept = Reserve(bytes=size, share=share).of(total)
    assert kept <= size
    assert kept <= share * total


def test_the_environment_sets_the_reserve(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABCTL_RESERVE", "1000000 TB")
    assert Housekeeping(store, tmp_path).look().startswith("disk: ")
    monkeypatch.setenv("LABCTL_RESERVE", "1 MB")
    assert Housekeeping(store, tmp_path).look() == ""
    monkeypatch.setenv("LABCTL_RESERVE", "enough")
    with pytest.raises(SpecError):
        Housekeeping(store, tmp_path)


# The guard


@pytest.mark.services
def test_s3_nothing_new_on_a_disk_that_is_nearly_full_and_it_goes_on_by_itself(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(small_disk)
    campaign = submitted(store)
    other = submitted(store, name="another")
    house = Looking(monkeypatch, store, small_disk, reserve=Reserve(bytes=4e6, share=1.0))
    assert house.look() == ""
    assert kinds(store, campaign.id) == []

    ballast = fill(small_disk, leave=3_000_000)
    hold = house.look()
    assert hold.startswith("disk: ")
    assert str(small_disk) in hold
    assert "4 MB are kept back" in hold
    assert house.look() == hold
    assert kinds(store, campaign.id) == kinds(store, other.id) == ["disk"], "once, however often it is looked at"

    os.truncate(ballast, ballast.stat().st_size - 1_200_000)
    assert house.look(), "a little more than the reserve is not enough: it would stop again at once"

    ballast.unlink()
    assert house.look() == ""
    assert kinds(store, campaign.id) == ["disk", "disk-back"]

    fill(small_disk, leave=3_000_000)
    assert house.look()
    assert kinds(store, campaign.id) == ["disk", "disk-back", "disk"], "another time is told again"
    store.close()


@pytest.mark.services
def test_two_engines_and_one_that_is_restarted_tell_of_a_full_disk_once(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, second = open_store(small_disk), open_store(small_disk)
    campaign = submitted(store)
    reserve = Reserve(bytes=4e6, share=1.0)
    fill(small_disk, leave=3_000_000)
    for one in (store, second, store):
        assert Looking(monkeypatch, one, small_disk, reserve=reserve).look()
    assert kinds(store, campaign.id) == ["disk"]
    (small_disk / "ballast").unlink()
    for one in (store, second):
        assert not Looking(monkeypatch, one, small_disk, reserve=reserve).look()
    assert kinds(store, campaign.id) == ["disk", "disk-back"]
    store.close()
    second.close()


@pytest.mark.services
def test_a_store_on_another_disk_than_the_state_is_looked_at_too(small_disk: Path, tmp_path: Path) -> None:
    store = open_store(small_disk)
    assert set(housekeeping.disks_of(store, tmp_path)) == {tmp_path, small_disk}
    assert housekeeping.disks_of(store, small_disk) == (small_disk,)
    store.close()


@pytest.mark.services
def test_a_disk_that_is_full_to_the_last_byte_is_a_hold_and_no_error(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(small_disk)
    campaign = submitted(store)
    house = Looking(monkeypatch, store, small_disk)
    ballast = fill(small_disk)
    assert house.look().startswith("disk: 0 MB")
    ballast.unlink()
    assert house.look() == ""
    assert kinds(store, campaign.id)[-1:] != ["disk"]
    store.close()


def test_the_disk_is_not_looked_at_all_the_time(store: Store, tmp_path: Path) -> None:
    house = Housekeeping(store, tmp_path, reserve=Reserve(bytes=1e30, share=1e20))
    before = house.look()
    assert before
    house._reserve = NONE
    assert house.look() == before


def test_paused_campaigns_wait_for_no_disk(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = submitted(store)
    store.set_state(campaign.id, CampaignState.PAUSED)
    assert Looking(monkeypatch, store, tmp_path, reserve=Reserve(bytes=1e30, share=1e20)).look()
    assert kinds(store, campaign.id) == []


def test_who_starts_nothing_does_not_say_that_nothing_is_started(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = submitted(store)
    assert Looking(monkeypatch, store, tmp_path, reserve=Reserve(bytes=1e30, share=1e20), tells=False).look()
    assert kinds(store, campaign.id) == []


def test_a_hold_ends_a_little_above_the_reserve(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    reserve = Reserve(bytes=free / 1.05, share=1.0)
    assert disk_hold([tmp_path], reserve) == ""
    assert disk_hold([tmp_path], reserve, held=True)


def test_a_state_directory_that_is_gone_is_a_hold(store: Store, tmp_path: Path) -> None:
    hold = Housekeeping(store, tmp_path / "gone").look()
    assert hold.startswith("disk: ")
    assert "gone" in hold


# Retention


def with_raw(store: Store, size: int = 2000) -> AttemptHandle:
    handle = started(store)
    assert carry_out(store, handle, a_result(raw=random.Random(handle.id).randbytes(size)))
    return handle


def test_raw_outputs_are_kept_as_long_as_was_asked(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = with_raw(store)
    limit = clock.now()
    new = with_raw(store)
    assert Looking(monkeypatch, store, tmp_path, reserve=NONE).look() == ""
    assert store.raw(old.id), "kept for ever when nobody asked otherwise"
    assert Looking(monkeypatch, store, tmp_path, reserve=NONE, keep_raw=3600.0).look() == ""
    assert store.raw(old.id)
    assert housekeeping.prune(store, clock.now() - limit) == 1
    assert store.raw(old.id) == ()
    assert store.raw(new.id)
    assert store.record(1).runs[0].result is not None, "figures stay"


def test_pruning_goes_on_with_every_look_until_all_is_done_and_then_rests(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "PRUNED_AT_ONCE", 2)
    handles = [with_raw(store) for _ in range(5)]
    house = Looking(monkeypatch, store, tmp_path, reserve=NONE, keep_raw=0.0)
    left = []
    for _ in range(4):
        house.look()
        left.append(sum(bool(store.raw(handle.id)) for handle in handles))
    assert left == [3, 1, 0, 0]
    late = with_raw(store)
    house.look()
    assert store.raw(late.id), "looked for once a day"


def test_the_store_is_made_smaller_only_while_nothing_is_measured(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "VACUUM_BYTES", 100_000)
    with_raw(store, size=1_000_000)
    busy = claimed(store)
    house = Looking(monkeypatch, store, tmp_path, reserve=NONE, keep_raw=0.0)
    for _ in range(3):
        house.look()
    free, size = store.reclaimable()
    assert free > 900_000
    assert judgement.accept(store, busy, a_result())
    house.look()
    assert store.reclaimable()[0] == 0
    assert store.reclaimable()[1] < size / 2


def test_no_vacuum_for_little(store: Store) -> None:
    with_raw(store, size=100_000)
    housekeeping.prune(store, 0.0)
    assert store.reclaimable()[0] > 0
    assert not housekeeping.vacuum(store)


# Results that the store would not take


def a_whole_result() -> AttemptResult:
    return AttemptResult(
        detail=a_result().detail,
        raw=(
            RawOutput(name="transfer-1/client.stdout", content=bytes(range(256))),
            RawOutput(name="transfer-1/client.stdout", content=b""),
        ),
        facts=(FactSet(subject="host:a", when="before", facts={"load": 0.5, "kernel": "6.1", "none": None}),),
        warnings=("a warning",),
    )


def test_a_result_that_was_kept_is_taken_up_whole(store: Store, tmp_path: Path) -> None:
    handle = claimed(store)
    directory = unstored.directory_of(store)
    assert directory == tmp_path / "unstored"
    path = unstored.keep(directory, store.identity, handle, a_whole_result())
    assert housekeeping.take_up(store) == 1
    assert not path.exists()
    assert store.raw(handle.id) == a_whole_result().raw
    (result,) = [run.result for run in store.record(1).runs if run.result is not None]
    assert result.facts == a_whole_result().facts
    assert housekeeping.take_up(store) == 0


def test_a_result_whose_token_is_void_is_dropped(store: Store, tmp_path: Path) -> None:
    handle = claimed(store)
    unstored.keep(tmp_path / "unstored", store.identity, handle, a_result())
    store.lose_attempts([handle.id], WORKER_LOST)
    assert housekeeping.take_up(store) == 0
    assert list((tmp_path / "unstored").glob("attempt-*")) == []
    assert store.record(1).runs[0].result is None


def test_results_of_another_store_and_of_nobody_are_left_alone(store: Store, tmp_path: Path) -> None:
    handle, directory = claimed(store), tmp_path / "unstored"
    others = unstored.keep(directory, "another", handle, a_result())
    (directory / "attempt-99.json").write_text("{")
    (directory / "attempt-98.json").write_text(json.dumps({"store": store.identity, "raw": 1}))
    assert housekeeping.take_up(store) == 0
    assert others.exists()
    assert sorted(path.name for path in directory.glob("*.unreadable")) == [
        "attempt-98.unreadable",
        "attempt-99.unreadable",
    ]
    assert store.run_counts(1)["active"] == 1


def test_no_stray_file_stops_a_service_or_keeps_a_result_from_being_taken_up(store: Store, tmp_path: Path) -> None:
    handle, directory = claimed(store), tmp_path / "unstored"
    stray = unstored.keep(directory, store.identity, AttemptHandle(id=77, token="0" * 32), a_result())
    whole = json.loads(stray.read_bytes())
    for number, content in enumerate(
        [b"", b"null", b"[]", b"\xff\xfe", b"[" * 100_000, stray.read_bytes()[:-9]]
        + [json.dumps(whole | change).encode() for change in (
            {"attempt": 10**30}, {"attempt": -1}, {"attempt": None}, {"raw": [["name"]]}, {"raw": [["name", "!"]]},
            {"raw": [[1, ""]]}, {"result": {}}, {"result": None},
        )]
    ):  # fmt: skip
        (directory / f"attempt-00{number}.json").write_bytes(content)
    (directory / "attempt-00.json").mkdir()
    unstored.keep(directory, store.identity, handle, a_result())
    for accepted in (1, 0):
        assert housekeeping.take_up(store) == accepted
    assert list(directory.glob("*.json")) == []
    assert len(list(directory.glob("*.unreadable"))) == 16
    assert store.run_counts(1)[Outcome.OK] == 1


def test_a_look_takes_up_what_is_there_at_once(store: Store, tmp_path: Path) -> None:
    house = Housekeeping(store, tmp_path, reserve=NONE)
    house.look()
    handle = claimed(store)
    unstored.keep(tmp_path / "unstored", store.identity, handle, a_result())
    house.look()
    assert store.run_counts(1)[Outcome.OK] == 1


@pytest.mark.services
def test_s3_a_result_outlives_a_full_disk(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(small_disk)
    house = Looking(monkeypatch, store, small_disk, reserve=NONE)
    house.look()
    handle = claimed(store)
    ballast = fill(small_disk)
    raw = random.Random(1).randbytes(60_000)
    with pytest.raises(LabError, match="could not be written"):
        judgement.accept(store, handle, a_result(raw=raw))
    directory = unstored.directory_of(store)
    assert directory is not None
    unstored.keep(directory, store.identity, handle, a_result(raw=raw))
    house.look()
    assert store.run_counts(1)["active"] == 1, "the store is still full"
    ballast.unlink()
    house.look()
    assert store.run_counts(1)[Outcome.OK] == 1
    assert store.raw(handle.id)[0].content == raw
    house.look()
    assert (directory / "room").exists(), "there is room for the next one again"
    store.close()
