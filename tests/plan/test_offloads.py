"""Offloads that can't be switched where a cell asks for it: told before anything is started, in a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labctl.errors import SpecError
from labctl.model.campaign import Campaign, Cell
from labctl.model.lab import GuestSystem, Host, ImageKind, Lab, Login, SecretRef, SshAccess, WinrmAccess
from labctl.model.nic import Hypervisor
from labctl.model.scenario import Scenario
from labctl.model.settings import Level
from labctl.plan.applicability import placements, reason
from labctl.plan.resolve import resolve
from labctl.spec.campaign import parse_campaign
from tests.values import a_lab

SECRET = SecretRef(scheme="env", locator="X")
SSH = SshAccess(address="198.51.100.1", user="root", key=SECRET, known_hosts="/k")
WINRM = WinrmAccess(url="https://h:5986/wsman", login=Login(user="u", password=SECRET))


def lab(system: GuestSystem = GuestSystem.LINUX, **hosts: Host) -> Lab:
    """A lab of these hosts, with one image."""
    base = a_lab()
    image = replace(base.images["probe"], system=system)
    if any(host.hypervisor is Hypervisor.HYPERV for host in hosts.values()):
        image = replace(image, kind=ImageKind.DISK, disk="D:\\probe.vhdx", generation=1)
    return replace(base, hosts=hosts or base.hosts, images={"probe": image}, migration_pairs=frozenset())


def host(hypervisor: Hypervisor, name: str, *, ssh: bool = False, winrm: bool = False) -> Host:
    return replace(
        a_lab().hosts["a"],
        name=name, hypervisor=hypervisor, ssh=SSH if ssh else None, winrm=WINRM if winrm else None,
    )  # fmt: skip


def why(lab: Lab, scenario: str = "same-host", **levels: Level) -> str:
    return reason(CAMPAIGN, cell(scenario, **levels), lab)


def cell(scenario: str, **levels: Level) -> Cell:
    return Cell(levels={"scenario": scenario} | {name.replace("__", "."): level for name, level in levels.items()})


CAMPAIGN = Campaign(name="x", scenarios=tuple(Scenario), factors={}, settings={})
HYPERV = {"h": host(Hypervisor.HYPERV, "h", winrm=True)}
WINDOWS = lab(GuestSystem.WINDOWS, **HYPERV)
KVM = {"k": host(Hypervisor.KVM, "k", ssh=True)}


@pytest.mark.parametrize(
    ("where", "levels", "because"),
    [
        (lab(), {"offload__chimney": True}, "the image probe is a Linux one, and chimney (TCP chimney"),
        (lab(), {"offload__lso": True}, "what comes nearest on Linux is tso"),
        (lab(), {"offload__vmq": True}, "it is set on hosts, by host_offload.vmq"),
        (WINDOWS, {"nic_model": "synthetic", "offload__vmq": False}, "adapters of VMs have no vmq"),
        (WINDOWS, {"nic_model": "synthetic", "offload__tso": True}, "what comes nearest on Windows is lso"),
        (WINDOWS, {"nic_model": "synthetic", "offload__gro": True}, "gro is an offload of Linux"),
        (WINDOWS, {"nic_model": "synthetic", "offload__lsov1": True}, "synthetic has no offload lsov1"),
        (WINDOWS, {"nic_model": "legacy", "offload__lso": True}, "legacy has no offload lso that can be switched"),
    ],
)
def test_what_a_guest_has_not_is_told_before_it_is_made(where: Lab, levels: dict[str, Level], because: str) -> None:
    """L9, H10: a level that can't act would be the same run as its opposite."""
    assert because in why(where, **levels)


@pytest.mark.parametrize(
    ("where", "levels"),
    [
        (WINDOWS, {"nic_model": "synthetic", "offload__lso": False, "offload__checksum": True}),
        (WINDOWS, {"nic_model": "legacy", "offload__chimney": False}),
        (lab(GuestSystem.WINDOWS), {"nic_model": "e1000", "offload__lsov1": True}),
        (lab(), {"offload__lso": "default"}),
        (WINDOWS, {"nic_model": "synthetic", "host_offload__vmq": True, "host_offload__lso": False}),
        (lab(**KVM), {"host_offload__tso": True, "host_offload__tx-udp-segmentation": False}),
        (lab(), {"host_offload__tso": "default"}),
    ],
)
def test_nothing_speaks_against_what_may_be_there(where: Lab, levels: dict[str, Level]) -> None:
    assert why(where, **levels) == ""


@pytest.mark.parametrize(
    ("only", "levels", "because"),
    [
        (host(Hypervisor.KVM, "k"), {"host_offload__tso": False}, "the lab file gives no `ssh` for it"),
        (host(Hypervisor.HYPERV, "h"), {"host_offload__lso": False}, "the lab file gives no `winrm` for it"),
        (host(Hypervisor.VSPHERE, "v", ssh=True), {"host_offload__tso": False}, "settings of ESXi hosts, and v is one"),
        (
            KVM["k"],
            {"host_offload__vmq": True},
            "the host k runs Linux, and vmq (virtual machine queues) is an offload of",
        ),
        (HYPERV["h"], {"host_offload__gso": True}, "the host h runs Windows, and gso is an offload of Linux"),
    ],
)
def test_what_no_host_can_is_told(only: Host, levels: dict[str, Level], because: str) -> None:
    assert because in why(lab(**{only.name: only}), "host-to-host", **levels)


def test_runs_go_only_to_hosts_on_which_the_offload_can_be_set() -> None:
    mixed = lab(bare=host(Hypervisor.KVM, "bare"), **KVM)
    found = placements(CAMPAIGN, cell("same-host", host_offload__tso=False), mixed)
    assert [each.sender.host for each in found] == ["k"]
    assert why(mixed, "cross-host", host_offload__tso=False).startswith("cross-host needs two hosts")
    assert why(mixed, "cross-host") == ""


def test_the_work_order_says_what_hosts_and_guests_shall_have() -> None:
    order = resolve(
        CAMPAIGN, cell("same-host", host_offload__tso=False, host_offload__gro="default", offload__gso=True), lab(**KVM)
    )
    assert order.host_offloads == {"tso": False}
    assert order.vm is not None
    assert order.vm.offloads == {"gso": True}


def test_a_name_that_neither_system_knows_is_refused_with_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"host_offload\.chimny(.|\n)*host_offload\.chimney"):
        parse_campaign("campaign: x\nscenarios: [same-host]\nfactors: {host_offload.chimny: [on, off]}\n")
