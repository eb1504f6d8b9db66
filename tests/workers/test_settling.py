"""Waiting for quiet hosts, on a simulated lab under a virtual clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.analysis.plausibility import flags_of
from labctl.conductor import Conductor
from labctl.model.campaign import Campaign, NotQuiet, QuietWait
from labctl.model.lab import Lab, QuietLimits
from labctl.model.outcome import Outcome
from labctl.model.result import AttemptResult, Fact
from labctl.model.scenario import Scenario
from labctl.store import Store, open_store
from tests.hypervisors.guests import guests_of
from tests.simulated import a_simulated_lab, attempt, conducted, virtual_time, vms_left
from tests.values import a_campaign
from workers.guard import Guard
from workers.hypervisors.base import HostLoad
from workers.hypervisors.simulated.faults import Fault, FaultKind, hits
from workers.machines import Machines
from workers.settling import beyond, look

LIMITS = QuietLimits(cpu=0.2, load=0.5, network=50_000_000, other_vms=0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path / "state")
    yield opened
    opened.close()


@pytest.fixture
def conductor(tmp_path: Path) -> Iterator[Conductor]:
    with virtual_time(tmp_path / "clock") as made:
        yield made


def busy(host: str = "a", **when: float) -> Fault:
    return Fault(kind=FaultKind.BUSY, host=host, factor=0.9, **when)  # type: ignore[arg-type]


def a_lab(directory: Path, *faults: Fault, limits: QuietLimits | None = LIMITS) -> Lab:
    return replace(a_simulated_lab(directory, faults=faults), quiet=limits)


def campaign(wait: float = 60.0, then: NotQuiet = NotQuiet.RUN, **changes: object) -> Campaign:
    """One cell on one host, one transfer of 10 s after a warm-up of 2 s."""
    values: dict[str, object] = {"factors": {"nic_model": ("virtio",)}, "repeats": 1}
    return a_campaign(**(values | {"quiet": QuietWait(wait=wait, then=then)} | changes))


def seen(result: AttemptResult) -> dict[str, list[Fact]]:
    """The facts that looking left, in order."""
    found: dict[str, list[Fact]] = {}
    for facts in result.facts:
        for name, value in facts.facts.items():
            if name.startswith("quiet."):
                found.setdefault(f"{facts.subject} {name}", []).append(value)
    return found


def phases(result: AttemptResult) -> list[str]:
    return [name for name, _ in result.phases]


def test_without_limits_nobody_looks(store: Store, conductor: Conductor, tmp_path: Path) -> None:
    lab = a_lab(tmp_path / "world", busy(), limits=None)
    result = conducted(conductor, lambda: attempt(store, lab, campaign()))
    assert result.detail.outcome is Outcome.OK
    assert "settle" not in phases(result)
    assert seen(result) == {}
    assert [transfer.noisy for transfer in result.transfers] == ["", ""]


def test_quiet_hosts_are_looked_at_before_the_warm_up_and_before_every_counted_transfer(
    store: Store, conductor: Conductor, tmp_path: Path
) -> None:
    lab = a_lab(tmp_path / "world", busy("b"))
    result = conducted(conductor, lambda: attempt(store, lab, campaign(warmups=2, transfers=2)))
    assert result.detail.outcome is Outcome.OK
    work = [name for name in phases(result) if name in ("settle", "warm-up", "transfer")]
    assert work == ["settle", "warm-up", "warm-up", "settle", "transfer", "settle", "transfer"]
    found = seen(result)
    assert len(found["host:a quiet.cpu"]) == 3
    assert found["host:a quiet.other_vms"] == [0, 0, 0], "the VMs of the attempt are no others"
    assert all(isinstance(waited, float) and waited < 2 for waited in found["host:a quiet.waited"])
    assert "host:b quiet.cpu" not in found, "a host that the run doesn't use may do what it likes"
    assert flags_of(result, {}) == ()


def test_a_run_without_warm_up_is_looked_at_once(store: Store, conductor: Conductor, tmp_path: Path) -> None:
    lab = a_lab(tmp_path / "world")
    result = conducted(conductor, lambda: attempt(store, lab, campaign(warmups=0)))
    assert phases(result).count("settle") == 1


def test_busy_hosts_are_waited_for(store: Store, conductor: Conductor, tmp_path: Path) -> None:
    lab = a_lab(tmp_path / "world", busy(end=40.0))
    result = conducted(conductor, lambda: attempt(store, lab, campaign()))
    assert result.detail.outcome is Outcome.OK
    assert [transfer.noisy for transfer in result.transfers] == ["", ""]
    waits = seen(result)["host:a quiet.waited"]
    assert 20 < float(str(waits[0])) < 60
    assert float(str(waits[1])) < 2
    assert flags_of(result, {}) == ()


def test_after_the_wait_it_runs_and_its_figures_say_so(store: Store, conductor: Conductor, tmp_path: Path) -> None:
    lab = a_lab(tmp_path / "world", busy())
    result = conducted(conductor, lambda: attempt(store, lab, campaign(wait=30.0, transfers=2)))
    assert result.detail.outcome is Outcome.OK
    assert len(result.transfers) == 3
    for transfer in result.transfers:
        assert transfer.noisy.startswith("host a: 90% of its processors are busy (limit 0.2)")
        assert "load average 0.90 per core (limit 0.5)" in transfer.noisy
    assert seen(result)["host:a quiet.cpu"] == [0.9, 0.9, 0.9]
    assert 3 * 30 < conductor.moment < 3 * 30 + 60
    (flag,) = flags_of(result, {})
    assert flag.kind == "noisy"
    assert "host a" in flag.what


def test_or_it_is_skipped_and_says_which_host_and_what(store: Store, conductor: Conductor, tmp_path: Path) -> None:
    lab = a_lab(tmp_path / "world", busy("b"))
    asked = campaign(wait=30.0, then=NotQuiet.SKIP, scenarios=(Scenario.CROSS_HOST,))
    result = conducted(conductor, lambda: attempt(store, lab, asked))
    detail = result.detail
    assert (detail.outcome, detail.kind, detail.host, detail.phase) == (
        Outcome.LAB_ERROR, "not-quiet", "b", "settle",
    )  # fmt: skip
    assert "90% of its processors are busy" in detail.why
    assert result.transfers == ()
    assert seen(result)["host:b quiet.cpu"] == [0.9], "what was seen is kept"
    assert vms_left(lab) == []


def test_a_transfer_is_not_spoilt_by_noise_that_comes_later(store: Store, conductor: Conductor, tmp_path: Path) -> None:
    lab = a_lab(tmp_path / "world", busy(start=6.0))
    result = conducted(conductor, lambda: attempt(store, lab, campaign(wait=0.0)))
    assert [bool(transfer.noisy) for transfer in result.transfers] == [False, True]


def test_a_host_that_does_not_answer_is_no_quiet_host(store: Store, conductor: Conductor, tmp_path: Path) -> None:
    lab = a_lab(tmp_path / "world", Fault(kind=FaultKind.HANG, operation="load", host="a", nth=1))
    result = conducted(conductor, lambda: attempt(store, lab, campaign()))
    assert (result.detail.outcome, result.detail.kind) == (Outcome.LAB_ERROR, "host-unreachable")
    assert [strike.operation for strike in hits(tmp_path / "world")] == ["load"]


def test_an_attempt_that_must_end_waits_no_longer(store: Store, conductor: Conductor, tmp_path: Path) -> None:
    lab = a_lab(tmp_path / "world", busy())
    guard = Guard()
    guard.stop("somebody wants it")
    result = conducted(conductor, lambda: attempt(store, lab, campaign(wait=3600.0), guard=guard))
    assert result.detail.outcome is Outcome.CANCELLED
    assert conductor.moment < 60


def test_vms_of_others_count_and_paused_ones_do_not(tmp_path: Path) -> None:
    lab = a_lab(tmp_path / "world")
    with guests_of(lab) as guests:
        mine, other = guests.create(), guests.create()
        machines = Machines(lab, store="tests", guard=Guard())
        assert look("a", LIMITS, machines, {mine.uuid, other.uuid}).beyond == ""
        found = look("a", LIMITS, machines, {mine.uuid})
        assert (found.others, found.beyond) == (1, "1 other VMs run (limit 0)")
        assert look("b", LIMITS, machines, set()).others == 0
        guests.driver.pause(other)
        assert look("a", LIMITS, machines, {mine.uuid}).beyond == ""
        machines.close()


SHARES = st.floats(0, 1)
LOADS = st.builds(
    HostLoad,
    cpu=SHARES,
    running=st.frozensets(st.sampled_from("pqrs")),
    load=st.none() | st.floats(0, 100),
    network=st.none() | st.floats(0, 1e11),
)
ALL_LIMITS = st.builds(
    QuietLimits,
    cpu=st.none() | SHARES,
    load=st.none() | st.floats(0, 100),
    network=st.none() | st.integers(0, 10**11),
    other_vms=st.none() | st.integers(0, 4),
)


@given(LOADS, st.integers(0, 4), ALL_LIMITS)
def test_what_is_said_is_all_that_is_over_its_limit_and_nothing_else(
    load: HostLoad, others: int, limits: QuietLimits
) -> None:
    pairs = {
        "processors": (load.cpu, limits.cpu),
        "load average": (load.load, limits.load),
        "network": (load.network, limits.network),
        "other VMs": (others, limits.other_vms),
    }
    over = [word for word, (value, limit) in pairs.items() if limit is not None and value is not None and value > limit]
    said = beyond(load, others, limits)
    assert len(said) == len(over)
    assert all(word in sentence for word, sentence in zip(over, said, strict=True))
