"""The real procedure of attempts on a simulated lab, from placing to release, under a virtual clock."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.campaign import commands
from labctl.conductor import Conductor
from labctl.model.campaign import Campaign, Timeouts
from labctl.model.outcome import Outcome
from labctl.model.result import AttemptResult
from labctl.model.scenario import Scenario
from labctl.store import Store, open_store
from tests.desk import until
from tests.simulated import a_simulated_lab, attempt, conducted, next_attempt, virtual_time, vms_left
from tests.values import a_campaign
from workers.guard import Guard
from workers.hypervisors.simulated.faults import Fault, FaultKind, hits
from workers.hypervisors.simulated.figures import Figures


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path / "state")
    yield opened
    opened.close()


@pytest.fixture
def conductor(tmp_path: Path) -> Iterator[Conductor]:
    with virtual_time(tmp_path / "clock") as made:
        yield made


def one_cell(scenario: Scenario = Scenario.SAME_HOST, **changes: object) -> Campaign:
    """One cell, one transfer of 10 s after a warm-up of 2 s."""
    values: dict[str, object] = {"scenarios": (scenario,), "factors": {"nic_model": ("virtio",)}, "repeats": 1}
    return a_campaign(**(values | changes))


def rate(result: AttemptResult) -> float:
    """The figure of its last transfer."""
    figure = result.transfers[-1].reading.bits_per_second
    assert figure is not None
    return figure


@pytest.mark.parametrize("scenario", Scenario)
def test_every_scenario_leaves_a_whole_figure_and_no_vm(
    store: Store, conductor: Conductor, tmp_path: Path, scenario: Scenario
) -> None:
    lab = a_simulated_lab(tmp_path / "world")
    campaign = one_cell(scenario, factors={} if not scenario.vms else {"nic_model": ("virtio",)})
    result = conducted(conductor, lambda: attempt(store, lab, campaign))
    assert result.detail.outcome is Outcome.OK, result.detail
    assert [transfer.counted for transfer in result.transfers] == [False, True]
    for transfer, seconds in zip(result.transfers, (2.0, 10.0), strict=True):
        assert transfer.reading.ok
        assert not transfer.reading.warnings
        assert transfer.reading.seconds == pytest.approx(seconds)
        assert transfer.elapsed == pytest.approx(seconds, abs=1.0)
    assert len(result.transfers[1].reading.intervals or ()) == 10
    assert [item.completed for item in result.migrations] == ([True] if scenario.migrates else [])
    assert vms_left(lab) == []
    assert (15 if scenario.vms else 12) < conductor.moment < 25, "12 s of transfers, and booting"


@pytest.mark.parametrize(
    "settings",
    [
        {"tool": "iperf", "seconds": 0.5, "interval": 0.1},
        {"tool": "iperf", "streams": 3, "reverse": True},
        {"tool": "iperf3", "streams": 4, "reverse": True},
        {"tool": "iperf3", "protocol": "udp", "rate": 10_000_000},
        {"tool": "iperf", "protocol": "udp", "rate": 10_000_000, "streams": 2},
    ],
)
def test_every_tool_is_read_by_its_real_parser(
    store: Store, conductor: Conductor, tmp_path: Path, settings: dict[str, object]
) -> None:
    lab = a_simulated_lab(tmp_path / "world")
    result = conducted(conductor, lambda: attempt(store, lab, one_cell(settings=settings)))
    assert result.detail.outcome is Outcome.OK, result.detail
    reading = result.transfers[-1].reading
    assert reading.streams == settings.get("streams", 1)
    assert not reading.warnings
    if settings.get("protocol") == "udp":
        assert reading.bits_per_second == pytest.approx(10e6 * int(str(settings.get("streams", 1))), rel=0.01)
        assert reading.udp is not None


def test_offloads_mtu_and_queues_are_verified_as_on_real_guests(
    store: Store, conductor: Conductor, tmp_path: Path
) -> None:
    lab = a_simulated_lab(tmp_path / "world")
    settings = {"offload.tso": False, "mtu": 1400, "queues": 2, "vcpus": 2, "vhost": False}
    result = conducted(conductor, lambda: attempt(store, lab, one_cell(settings=settings)))
    assert result.detail.outcome is Outcome.OK, result.detail
    facts = {name: fact for item in result.facts if item.subject == "vm:sender" for name, fact in item.facts.items()}
    assert facts["feature.tcp-segmentation-offload"] == "off"
    assert facts["mtu"] == 1400
    assert facts["nic.backend"] == "qemu"


def test_a_migration_shows_as_a_dip_and_a_stall(store: Store, conductor: Conductor, tmp_path: Path) -> None:
    lab = a_simulated_lab(tmp_path / "world", figures=Figures(between_transfers=0.0, migration=1e9, dirty=3e8))
    settings = {"seconds": 20.0, "interval": 0.1}
    campaign = one_cell(Scenario.DURING_MIGRATION, settings=settings, warmups=0)
    result = conducted(conductor, lambda: attempt(store, lab, campaign))
    (moved,) = result.migrations
    (transfer,) = result.transfers
    assert moved.downtime_ms is not None
    assert transfer.zero is not None
    intervals = transfer.reading.intervals
    assert intervals is not None
    begun, ended = moved.started - transfer.zero, moved.ended - transfer.zero
    before = statistics.mean(one.bits_per_second for one in intervals if one.end < begun)
    during = [one.bits_per_second for one in intervals if begun < one.start and one.end < ended]
    assert max(during) < 0.8 * before
    assert intervals[int((ended - 0.15) * 10)].bits_per_second < 0.1 * before, (
        "it stands still before it is handed over"
    )
    after = statistics.mean(one.bits_per_second for one in intervals if one.start > ended + 2)
    assert after < 0.6 * before, "the VMs are on two hosts now, with a wire between them"


def test_a_migration_that_never_converges_is_a_result(store: Store, conductor: Conductor, tmp_path: Path) -> None:
    """L6: not the lab's fault."""
    lab = a_simulated_lab(tmp_path / "world", faults=[Fault(kind=FaultKind.NEVER_CONVERGES)])
    campaign = one_cell(Scenario.DURING_MIGRATION, timeouts=Timeouts(migration=5.0))
    result = conducted(conductor, lambda: attempt(store, lab, campaign))
    assert (result.detail.outcome, result.detail.kind) == (Outcome.FAILED, "migration-timeout")
    assert result.transfers[-1].reading.ok, "the transfer around it is kept"
    assert vms_left(lab) == []


@pytest.mark.parametrize(
    ("fault", "outcome", "kind"),
    [
        (Fault(kind=FaultKind.FAIL, operation="create"), Outcome.LAB_ERROR, "create-failed"),
        (Fault(kind=FaultKind.NEVER_BOOTS, nth=2), Outcome.LAB_ERROR, "boot-timeout"),
        (Fault(kind=FaultKind.CONNECTION_LOST, nth=2), Outcome.FAILED, "connection-lost"),
        (Fault(kind=FaultKind.HANG, operation="create", nth=1), Outcome.LAB_ERROR, "host-unreachable"),
        (Fault(kind=FaultKind.HANG, operation="run", nth=2), Outcome.LAB_ERROR, "channel-timeout"),
        (Fault(kind=FaultKind.VANISH, operation="finished"), Outcome.OK, ""),
        (Fault(kind=FaultKind.VANISH, operation="run", nth=1), Outcome.LAB_ERROR, "channel-unreachable"),
        (Fault(kind=FaultKind.VANISH, operation="answer", nth=1), Outcome.LAB_ERROR, "endpoint-silent"),
        (Fault(kind=FaultKind.HOST_LOST, start=8.0, end=100.0), Outcome.LAB_ERROR, "channel-unreachable"),
    ],
)
def test_faults_become_the_outcomes_that_they_are_on_real_hosts(
    store: Store, conductor: Conductor, tmp_path: Path, fault: Fault, outcome: Outcome, kind: str
) -> None:
    lab = a_simulated_lab(tmp_path / "world", faults=[fault])
    result = conducted(conductor, lambda: attempt(store, lab, one_cell()))
    assert (result.detail.outcome, result.detail.kind) == (outcome, kind), result.detail
    struck = {hit.kind for hit in hits(tmp_path / "world")}
    assert struck == (set() if outcome is Outcome.OK else {fault.kind})
    lost = fault.kind is FaultKind.HOST_LOST
    assert len(vms_left(lab)) == (2 if lost else 0), "what can't be destroyed stays, all else is gone"


def test_l4_hosts_are_compared_before_anything_is_made(store: Store, conductor: Conductor, tmp_path: Path) -> None:
    lab = a_simulated_lab(tmp_path / "world", faults=[Fault(kind=FaultKind.FAIL, operation="check_migration")])
    result = conducted(conductor, lambda: attempt(store, lab, one_cell(Scenario.DURING_MIGRATION)))
    assert (result.detail.outcome, result.detail.phase) == (Outcome.LAB_ERROR, "place"), result.detail
    assert conductor.moment < 1, "no VM was booted"


def test_a_cancelled_attempt_ends_in_mid_transfer_and_leaves_nothing(
    store: Store, conductor: Conductor, tmp_path: Path
) -> None:
    lab, guard = a_simulated_lab(tmp_path / "world"), Guard()

    def cancel(_moment: float) -> None:
        if (conductor.earliest or 0.0) > 3600 and not guard.stopped:
            guard.stop("somebody cancelled it")
            until(
                "the attempt hears of it",
                lambda: conductor.hear(0.05) and (conductor.earliest or 0.0) < 100,
                seconds=30,
            )

    campaign = one_cell(settings={"seconds": 3600.0})
    result = conducted(conductor, lambda: attempt(store, lab, campaign, guard=guard), meanwhile=cancel)
    assert result.detail.outcome is Outcome.CANCELLED
    assert conductor.moment < 100
    assert vms_left(lab) == []


def test_the_same_rehearsal_gives_the_same_figures(conductor: Conductor, tmp_path: Path) -> None:
    def figures(word: str, seed: int) -> list[float]:
        lab = a_simulated_lab(tmp_path / word / "world", seed=seed)
        store = open_store(tmp_path / word / "state")
        try:
            campaign_id = commands.submit(store, one_cell(repeats=4), lab, campaign_text="", lab_text="")
            return [rate(conducted(conductor, lambda: next_attempt(store, campaign_id))) for _ in range(4)]
        finally:
            store.close()

    first = figures("first", 1)
    assert figures("again", 1) == first
    assert figures("another", 2) != first
    assert len(set(first)) == 4, "runs scatter"
    assert statistics.stdev(first) < 0.2 * statistics.mean(first)


def test_a_parked_vm_is_taken_up_again(store: Store, conductor: Conductor, tmp_path: Path) -> None:
    lab = a_simulated_lab(tmp_path / "world")
    campaign = replace(one_cell(repeats=2), reuse=True)
    campaign_id = commands.submit(store, campaign, lab, campaign_text="", lab_text="")
    conducted(conductor, lambda: next_attempt(store, campaign_id))
    parked = vms_left(lab)
    assert len(parked) == 2
    before = conductor.moment
    result = conducted(conductor, lambda: next_attempt(store, campaign_id))
    assert result.detail.outcome is Outcome.OK, result.detail
    assert conductor.moment - before < 14.5, "nothing boots a second time"
    assert vms_left(lab) == parked
