"""One campaign with every scenario and kind of setting, on real guests, checked from the exit code to the last output."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Interface
from typing import Any

import pytest

from labctl.model.lab import Lab
from labctl.model.nic import NIC_MODELS
from labctl.model.reading import Capture
from labctl.model.result import AttemptResult, CampaignRecord, CellRecord, Fact
from labctl.report.data import report_of
from tests.desk import Desk, Ended, a_desk, outcomes
from workers.transfers.registry import tool

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1200), pytest.mark.xdist_group("scenarios")]

VERSIONS = {"iperf3": "iperf 3.", "iperf": "iperf version 2."}

CELLS: tuple[dict[str, object], ...] = (
    {"scenario": "same-host", "nic_model": "virtio"},
    {"scenario": "same-host", "nic_model": "e1000"},
    {"scenario": "cross-host", "nic_model": "virtio"},
    {"scenario": "during-migration", "nic_model": "virtio"},
    {"scenario": "during-migration", "nic_model": "e1000", "migrate_back": True, "mover": "sender"},
    {"scenario": "vm-to-host", "nic_model": "virtio", "peer": "own-host"},
    {"scenario": "vm-to-host", "nic_model": "virtio", "peer": "box"},
    {"scenario": "host-to-vm", "nic_model": "virtio", "peer": "other-host"},
    {"scenario": "host-to-host", "peer": "own-host"},
    {"scenario": "host-to-host", "peer": "other-host"},
    {"scenario": "same-host", "nic_model": "virtio", "tool": "iperf", "streams": 4, "window": "64k"},
    {"scenario": "same-host", "nic_model": "virtio", "offload.tso": True},
    {"scenario": "same-host", "nic_model": "virtio", "offload.tso": False},
    {"scenario": "same-host", "nic_model": "virtio", "mtu": 1400},
)
NOT_APPLICABLE = ({"scenario": "same-host", "nic_model": "vt-d"}, {"scenario": "during-migration", "nic_model": "vt-d"})


@dataclass(frozen=True, kw_only=True)
class Journey:
    """The campaign, how the command ended, and the record of it."""

    desk: Desk
    ended: Ended
    record: CampaignRecord

    def cell(self, **levels: object) -> CellRecord:
        """The cell of exactly these levels."""
        return next(cell for cell in self.record.cells if cell.levels == levels)

    def result(self, **levels: object) -> AttemptResult:
        """The result of the only run of the cell with exactly these levels."""
        runs = [run for run in self.record.runs if run.cell == self.cell(**levels).id]
        assert len(runs) == 1
        assert runs[0].result is not None
        return runs[0].result


@pytest.fixture(scope="module")
def journey(embedded_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journey]:
    with a_desk(embedded_lab, tmp_path_factory.mktemp("scenarios")) as desk:
        campaign = desk.campaign(
            include=[*CELLS, *NOT_APPLICABLE],
            warmups=1,
            settings={"seconds": 1, "warmup_seconds": 1, "interval": 0.5},
            overrides=[{"when": {"scenario": "during-migration"}, "set": {"seconds": 9, "interval": 0.1}}],
        )
        ended = desk.run(campaign).wait(seconds=1000)
        yield Journey(desk=desk, ended=ended, record=desk.record())


def facts(result: AttemptResult, subject: str, when: str) -> dict[str, Fact]:
    """All facts of a subject at a moment."""
    found: dict[str, Fact] = {}
    for item in result.facts:
        if item.subject == subject and item.when == when:
            found |= item.facts
    return found


def cells() -> list[Any]:
    return [pytest.param(cell, id=" ".join(str(level) for level in cell.values())) for cell in CELLS]


def levels_of(cell: Mapping[str, object]) -> dict[str, object]:
    return {name: 65536 if level == "64k" else level for name, level in cell.items()}


def test_it_ends_well_and_leaves_nothing(journey: Journey) -> None:
    assert journey.ended.code == 0, journey.ended.said
    assert outcomes(journey.record) == {"ok": len(CELLS)}
    assert journey.record.state == "done"
    journey.desk.assert_nothing_left()


@pytest.mark.parametrize("levels", cells())
def test_every_run_has_a_figure_from_whole_transfers(journey: Journey, levels: Mapping[str, object]) -> None:
    result = journey.result(**levels_of(levels))
    assert [transfer.counted for transfer in result.transfers] == [False, True]
    for transfer in result.transfers:
        assert transfer.reading.ok
        assert not transfer.reading.partial
        assert (transfer.reading.bits_per_second or 0) > 1e6
    assert result.warnings == ()
    assert [name for name, _ in result.phases] == [
        "place",
        "verify",
        "warm-up",
        "verify",
        "transfer",
        "collect",
        "release",
    ]


@pytest.mark.parametrize("levels", cells())
def test_raw_outputs_are_kept_and_read_the_same_again(journey: Journey, levels: Mapping[str, object]) -> None:
    run = next(run for run in journey.record.runs if run.cell == journey.cell(**levels_of(levels)).id)
    (attempt,) = journey.desk.store.attempts_of_run(run.id)
    raw = {output.name: output.content for output in journey.desk.store.raw(attempt)}
    assert run.result is not None
    for transfer in run.result.transfers:
        seconds = float(transfer.client_command[transfer.client_command.index("-t") + 1])
        again = tool(transfer.tool).parse(
            Capture(
                stdout=raw[f"transfer-{transfer.index}/client.stdout"],
                stderr=raw[f"transfer-{transfer.index}/client.stderr"],
                server=raw[f"transfer-{transfer.index}/server.stdout"],
                exit_code=0,
                requested_seconds=seconds,
                role="client",
                command=" ".join(transfer.client_command),
                elapsed=transfer.elapsed,
            )
        )
        assert again == transfer.reading
    for side in set(_sides(levels)) if str(levels["scenario"]) != "host-to-host" else set():
        assert b"<domain" in raw[f"vm-{side}/domain_xml"]
        assert b"-netdev" in raw[f"vm-{side}/qemu_arguments"]


def test_labctl_parse_reads_a_kept_output_as_the_campaign_did(journey: Journey) -> None:
    run = next(run for run in journey.record.runs if run.cell == journey.cell(**CELLS[0]).id)
    (attempt,) = journey.desk.store.attempts_of_run(run.id)
    kept = {output.name: output.content for output in journey.desk.store.raw(attempt)}
    paths = {}
    for side in ("client", "server"):
        paths[side] = journey.desk.directory / f"{side}.json"
        paths[side].write_bytes(kept[f"transfer-2/{side}.stdout"])
    ended = journey.desk.labctl("parse", "--tool", "iperf3", paths["client"], "--server", paths["server"], "--json")
    assert run.result is not None
    assert json.loads(ended.out)["bits_per_second"] == run.result.transfers[1].reading.bits_per_second


def _sides(levels: Mapping[str, object]) -> list[str]:
    """Which sides are VMs."""
    return {
        "vm-to-host": ["sender"],
        "host-to-vm": ["receiver"],
        "host-to-host": [],
    }.get(str(levels["scenario"]), ["sender", "receiver"])


@pytest.mark.parametrize("levels", cells())
def test_what_was_asked_for_was_found_in_guests_and_hypervisors(journey: Journey, levels: Mapping[str, object]) -> None:
    result = journey.result(**levels_of(levels))
    model = NIC_MODELS[str(levels.get("nic_model", "virtio"))]
    addresses = {}
    for side in _sides(levels):
        made, inside = facts(result, f"vm:{side}", "created"), facts(result, f"vm:{side}", "before")
        assert made["nic.model"] == model.name
        assert inside["ethtool.driver"] in model.linux_drivers
        assert inside["pci"] in model.pci_ids
        assert inside["link"] == 1
        assert inside["mtu"] == levels.get("mtu", 1500)
        assert VERSIONS[str(levels.get("tool", "iperf3"))] in str(inside["tool"])
        addresses[side] = IPv4Interface(str(inside["address"]))
        assert addresses[side].network == journey.desk.lab.hosts["a"].address.network  # type: ignore[union-attr]
    assert len(set(addresses.values())) == len(addresses)
    placed = {side: facts(result, f"vm:{side}", "before")["placement.host"] for side in _sides(levels)}
    if levels["scenario"] == "cross-host":
        assert placed["sender"] != placed["receiver"]
    elif len(placed) == 2:
        assert placed["sender"] == placed["receiver"]
    if not _sides(levels):
        used = [item for item in result.facts if item.subject in ("host:a", "host:b")]
        assert used
        told = {item.subject for item in used if item.facts.get("kernel")}
        assert told == {item.subject for item in used}, "libvirt doesn't tell the kernel, the endpoint does"


@pytest.mark.parametrize("levels", cells())
def test_vms_stayed_where_they_were_unless_they_were_migrated(journey: Journey, levels: Mapping[str, object]) -> None:
    result = journey.result(**levels_of(levels))
    mover = str(levels.get("mover", "receiver")) if levels["scenario"] == "during-migration" else ""
    for side in _sides(levels):
        before = facts(result, f"vm:{side}", "before")["placement.host"]
        after = facts(result, f"vm:{side}", "after")["placement.host"]
        assert (before != after) == (side == mover and not levels.get("migrate_back"))


@pytest.mark.parametrize("back", [False, True])
def test_migrations_really_happened_in_mid_transfer(journey: Journey, back: bool) -> None:
    levels = levels_of(CELLS[4] if back else CELLS[3])
    result = journey.result(**levels)
    transfer = result.transfers[1]
    assert len(result.migrations) == (2 if back else 1)
    for ordinal, migration in enumerate(result.migrations, start=1):
        assert migration.completed
        assert migration.ordinal == ordinal
        assert migration.transfer_index == transfer.index
        assert migration.source != migration.destination
        assert transfer.started < migration.started < migration.ended < transfer.started + transfer.elapsed
        assert migration.downtime_ms is not None
        assert (migration.total_ms or 0) > 0
        assert (migration.bytes_moved or 0) > 2**20
    if back:
        there, home = result.migrations
        assert (there.source, there.destination) == (home.destination, home.source)
        assert there.ended <= home.started
    assert transfer.measured_on == ("receiver" if back else "sender"), "the client runs on the endpoint that stays"
    assert transfer.clock_offset is not None
    assert transfer.zero is not None
    assert len(transfer.reading.intervals or ()) > 50


def test_iperf_2_was_given_its_streams_and_window(journey: Journey) -> None:
    transfer = journey.result(**levels_of(CELLS[10])).transfers[1]
    command = transfer.client_command
    assert command[0] == "iperf"
    assert command[command.index("-P") + 1] == "4"
    assert "65536" in command[command.index("-w") + 1]
    assert transfer.reading.streams == 4
    assert transfer.reading.tool == "iperf2"


@pytest.mark.parametrize("on", [True, False])
def test_an_offload_is_really_set(journey: Journey, on: bool) -> None:
    result = journey.result(scenario="same-host", nic_model="virtio", **{"offload.tso": on})
    for side in ("sender", "receiver"):
        found = facts(result, f"vm:{side}", "before")["feature.tcp-segmentation-offload"]
        assert str(found).split()[0] == ("on" if on else "off")


def test_the_report_says_the_figures_of_the_record(journey: Journey) -> None:
    page = journey.desk.state / "reports" / "campaign-1.html"
    assert str(page) in journey.ended.out
    assert "<svg" in page.read_text()
    said = json.loads(journey.desk.labctl("report", "1", "--format", "json").out)
    rows = {row["cell"]: row for row in said["rows"]}
    for run in journey.record.runs:
        assert run.result is not None
        assert rows[run.cell]["summary"]["n"] == 1
        assert rows[run.cell]["summary"]["mean"] == run.result.transfers[1].reading.bits_per_second
    assert len(said["migrations"]) == 3
    assert said["completeness"]["figures"] == len(CELLS)
    shown = journey.desk.labctl("report", "1")
    assert shown.code == 0
    for row in report_of(journey.record).rows:
        assert row.title.split(" · ")[0] in shown.out


def test_status_counts_the_runs(journey: Journey) -> None:
    (line,) = json.loads(journey.desk.labctl("status", "--json").out)
    assert line["state"] == "done"
    assert line["runs"] == {"ok": len(CELLS)}
    assert "done" in journey.desk.labctl("status").out


def test_what_is_not_applicable_is_told_before_and_after_and_costs_nothing(journey: Journey) -> None:
    planned = json.loads(journey.desk.labctl(
        "plan", journey.desk.directory / "campaign.yaml", "--lab", journey.desk.lab_file, "--json"
    ).out)  # fmt: skip
    said = json.loads(journey.desk.labctl("report", "1", "--json").out)
    assert sum(len(group["cells"]) for group in said["not_applicable"]) == len(NOT_APPLICABLE)
    for levels in NOT_APPLICABLE:
        cell = journey.cell(**levels)
        assert not cell.applicable
        assert "vt-d" in cell.reason
        assert cell.reason in json.dumps(planned, ensure_ascii=False)
        assert not [run for run in journey.record.runs if run.cell == cell.id]
