"""What a transfer tool can't do is told by the plan, before anything is started, and for every lab and tool alike."""

from __future__ import annotations

import pytest

from labctl.model.campaign import Campaign, Cell
from labctl.model.lab import GuestSystem, Lab
from labctl.model.scenario import Scenario
from labctl.model.settings import Level
from labctl.plan.applicability import reason
from labctl.plan.resolve import resolve
from labctl.spec.campaign import parse_campaign
from labctl.spec.lab import parse_lab
from workers.transfers.registry import TOOLS

TWO = parse_lab("lab: two\nembedded: {hosts: [a, b]}\n")
SIMULATED = parse_lab("lab: sim\nsimulated: {hosts: 2}\n")
WINDOWS = parse_lab(
    """
lab: windows
hosts: {h: {hypervisor: hyperv, storage: 'D:\\labctl', winrm: {url: "https://h:5986/wsman", user: u, password: "env:P"}}}
networks: {data: {bridge: Data, guest_range: [192.0.2.100, 192.0.2.199]}}
images: {server: {kind: disk, disk: 'D:\\i.vhdx', system: windows, login: {user: u, password: "env:P"}}}
"""
)


def campaign(*, factors: dict[str, tuple[Level, ...]] | None = None, **settings: Level) -> Campaign:
    return Campaign(name="x", scenarios=tuple(Scenario), factors=factors or {}, settings=settings)


def why(lab: Lab, scenario: str = "same-host", **levels: Level) -> str:
    settings = {"image": "server", "nic_model": "synthetic", "seconds": 10.0} if lab is WINDOWS else {}
    return reason(campaign(**settings), Cell(levels={"scenario": scenario, **levels}), lab)


@pytest.mark.parametrize(
    ("lab", "levels", "words"),
    [
        (TWO, {"tool": "iperf", "omit": 2.0}, "ramp-up"),
        (TWO, {"tool": "iperf3", "omit": 2.5}, "whole seconds of omit"),
        (TWO, {"tool": "iperf", "zerocopy": True}, "without copying"),
        (TWO, {"tool": "ntttcp", "direction": "reverse"}, "no direction reverse"),
        (TWO, {"tool": "ntttcp", "reverse": True}, "no direction reverse"),
        (TWO, {"direction": "forward", "reverse": True}, "one of both must go"),
        (TWO, {"tool": "ntttcp", "mss": 1000}, "largest segment"),
        (TWO, {"tool": "filecopy", "direction": "both"}, "no direction both"),
        (TWO, {"tool": "filecopy", "protocol": "udp", "rate": 10**6}, "TCP only"),
        (TWO, {"tool": "filecopy", "streams": 2}, "one connection"),
        (TWO, {"tool": "filecopy", "copy": "robocopy"}, "needs Windows"),
        (TWO, {"tool": "filecopy", "cache": "cold"}, "its own page cache"),
        (TWO, {"tool": "filecopy", "size": 2**30}, "more than half of the VM's memory"),
        (TWO, {"protocol": "udp", "rate": 10**6, "congestion": "bbr"}, "UDP has no congestion control"),
        (TWO, {"dscp": 64}, "0 to 63"),
        (TWO, {"latency": 101}, "at most 100 requests"),
        (SIMULATED, {"tool": "ntttcp"}, "no ntttcp"),
        (SIMULATED, {"direction": "both"}, "one way at a time"),
        (WINDOWS, {"tool": "filecopy", "copy": "rsync"}, "needs Linux"),
        (TWO, {"tool": "ntttcp", "window": 65536}, "socket buffers"),
        (TWO, {"tool": "ntttcp", "protocol": "udp", "rate": 10**6}, "TCP only"),
        (TWO, {"tool": "ntttcp", "seconds": 2.5}, "whole seconds"),
        (WINDOWS, {"tool": "filecopy", "copy": "robocopy"}, "medium must be disk"),
        (WINDOWS, {"latency": 10}, "latency needs Linux"),
    ],
)
def test_reasons(lab: Lab, levels: dict[str, Level], words: str) -> None:
    assert words in why(lab, **levels)


@pytest.mark.parametrize(
    ("lab", "levels"),
    [
        (TWO, {"direction": "both", "mss": 1000, "congestion": "bbr", "dscp": 46, "omit": 2.0, "zerocopy": True}),
        (TWO, {"tool": "iperf", "direction": "reverse", "mss": 1000, "family": "ipv6", "latency": 10}),
        (TWO, {"tool": "ntttcp", "omit": 2.0, "streams": 8}),
        (TWO, {"tool": "ntttcp", "protocol": "udp"}),
        (TWO, {"tool": "filecopy", "copy": "sftp", "reverse": True}),
        (TWO, {"tool": "filecopy", "copy": "rsync", "medium": "disk", "cache": "cold", "size": 2**30}),
        (WINDOWS, {"tool": "filecopy", "copy": "robocopy", "medium": "disk"}),
        (WINDOWS, {"tool": "ntttcp", "window": 65536}),
    ],
)
def test_what_can_be_done_has_no_reason_and_the_tool_agrees(lab: Lab, levels: dict[str, Level]) -> None:
    assert why(lab, **levels) == ""
    settings = {"image": "server", "nic_model": "synthetic"} if lab is WINDOWS else {}
    order = resolve(campaign(**settings), Cell(levels={"scenario": "same-host", **levels}), lab)
    assert TOOLS[order.transfer.tool].unsupported(order.transfer) == ""


def test_a_migration_can_be_seen_with_tools_that_report_intervals_only() -> None:
    assert "could not be seen" in why(TWO, "during-migration", tool="ntttcp", seconds=20.0)
    assert why(TWO, "during-migration", tool="iperf", seconds=20.0, direction="both") == ""


def test_settings_of_file_copies_are_none_of_other_tools() -> None:
    both = campaign(factors={"tool": ("iperf3", "filecopy"), "copy": ("scp", "stream")}, size=2**20)
    copying = Cell(levels={"scenario": "same-host", "tool": "filecopy", "copy": "scp"})
    other = Cell(levels={"scenario": "same-host", "tool": "iperf3", "copy": "scp"})
    assert reason(both, copying, TWO) == ""
    assert reason(both, other, TWO) == "copy acts on filecopy only, and the tool is iperf3"
    shared = campaign(factors={"tool": ("iperf3", "filecopy")}, copy="scp", size=2**20)
    orders = {
        tool: resolve(shared, Cell(levels={"scenario": "same-host", "tool": tool}), TWO)
        for tool in ("iperf3", "filecopy")
    }
    assert orders["filecopy"].transfer.copy == "scp"
    assert orders["filecopy"].transfer.size == 2**20
    assert "size" not in orders["iperf3"].settings


@pytest.mark.parametrize(
    ("direction", "reverse", "both"),
    [("forward", False, False), ("reverse", True, False), ("both", False, True)],
)
def test_directions_of_an_order(direction: str, reverse: bool, both: bool) -> None:
    order = resolve(campaign(direction=direction), Cell(levels={"scenario": "same-host"}), TWO)
    assert (order.transfer.reverse, order.transfer.both, order.transfer.direction) == (reverse, both, direction)


def test_the_system_of_each_end() -> None:
    guests = resolve(campaign(image="server", nic_model="synthetic"), Cell(levels={"scenario": "same-host"}), WINDOWS)
    assert {guests.transfer.sender_system, guests.transfer.receiver_system} == {GuestSystem.WINDOWS}
    linux = resolve(campaign(), Cell(levels={"scenario": "vm-to-host"}), TWO)
    assert {linux.transfer.sender_system, linux.transfer.receiver_system} == {GuestSystem.LINUX}


def test_all_of_it_can_be_written_in_a_campaign_file() -> None:
    text = (
        "campaign: x\nscenarios: same-host\nfactors: {direction: [forward, reverse, both], dscp: [0, 46]}\n"
        "settings: {mss: 1000, congestion: cubic, family: ipv6, omit: 2 s, zerocopy: on, latency: 10, size: 1 GiB,\n"
        "  copy: smb-mount, medium: disk, cache: cold}\n"
    )
    parsed = parse_campaign(text)
    assert parsed.factors["direction"] == ("forward", "reverse", "both")
    assert parsed.settings["omit"] == 2.0
    assert parsed.settings["size"] == 2**30
