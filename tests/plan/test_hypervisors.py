"""What vSphere and Hyper-V have not, or have of their own: told before anything is started."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labctl.errors import SpecError
from labctl.model.campaign import Campaign, Cell
from labctl.model.lab import Customisation, Lab
from labctl.model.nic import NIC_MODELS, Hypervisor
from labctl.model.scenario import Scenario
from labctl.model.settings import Level
from labctl.plan.applicability import placements, reason
from labctl.spec.campaign import parse_campaign
from labctl.spec.cross_check import cross_check
from labctl.spec.lab import parse_lab

VSPHERE = parse_lab(
    """
lab: v
vcenters: {vc: {address: vc, user: u, password: "env:P"}, other: {address: o, user: u, password: "env:P"}}
hosts:
  a: {hypervisor: vsphere, vcenter: vc, devices: ["0000:3b:00.0", "0000:3b:00.1"]}
  b: {hypervisor: vsphere, vcenter: vc}
  c: {hypervisor: vsphere, vcenter: other}
networks: {data: {bridge: VM Network, addressing: dhcp}}
images: {probe: {kind: template, template: t, login: {user: u, password: "env:P"}}}
migration: all
"""
)
HYPERV = parse_lab(
    """
lab: h
hosts:
  a: {hypervisor: hyperv, winrm: {url: "https://a", user: u, password: "env:P"}, storage: 'D:\\x', address: 192.0.2.1/24}
  b: {hypervisor: hyperv, winrm: {url: "https://b", user: u, password: "env:P"}, storage: 'D:\\x'}
networks: {data: {bridge: data, addressing: dhcp}}
images:
  probe: {kind: disk, disk: 'D:\\p.vhdx', ssh_key: "env:K", known_hosts: k}
  old: {kind: disk, disk: 'D:\\o.vhd', ssh_key: "env:K", known_hosts: k, generation: 1}
migration: all
"""
)
MIXED = parse_lab(
    """
lab: m
vcenters: {vc: {address: vc, user: u, password: "env:P"}}
hosts:
  k: {hypervisor: kvm, uri: "qemu:///system"}
  v: {hypervisor: vsphere, vcenter: vc}
networks: {data: {bridge: data, guest_range: [192.0.2.100, 192.0.2.199]}}
images:
  probe: {kind: kernel, kernel: /k, initrd: /i}
  template: {kind: template, template: t, login: {user: u, password: "env:P"}}
"""
)
STATIC = replace(
    HYPERV,
    networks={"data": replace(HYPERV.network(), addressing="static")},
    images={name: replace(image, customisation=Customisation.GUEST_OS) for name, image in HYPERV.images.items()},
)
CAMPAIGN = Campaign(name="x", scenarios=tuple(Scenario), factors={}, settings={"seconds": 12.0})


def why(lab: Lab, scenario: str, *, campaign: Campaign = CAMPAIGN, **levels: Level) -> str:
    return reason(campaign, Cell(levels={"scenario": scenario} | levels), lab)


def where(lab: Lab, scenario: str, **levels: Level) -> list[str]:
    found = placements(CAMPAIGN, Cell(levels={"scenario": scenario} | levels), lab)
    return [" ".join(each.hosts) for each in found]


@pytest.mark.parametrize(
    ("lab", "scenario", "levels", "words"),
    [
        (HYPERV, "same-host", {"nic_model": "legacy"}, "VMs of generation 1, and the image probe is of generation 2"),
        (STATIC, "same-host", {"nic_model": "legacy", "image": "old"}, "legacy needs a network with DHCP"),
        (STATIC, "cross-host", {"nic_model": "vt-d", "image": "old"}, "PCI device"),
        (HYPERV, "same-host", {"nic_model": "e1000"}, "e1000 is no adapter of hyperv"),
        (MIXED, "same-host", {"nic_model": "virtio", "image": "template"}, "kvm can't boot the image template"),
        (MIXED, "same-host", {"nic_model": "pcnet32", "image": "probe"}, "vsphere can't boot the image probe"),
        (VSPHERE, "same-host", {"nic_model": "vmxnet3", "machine_type": "q35"}, "machine_type can be set on kvm only: vsphere"),
        (VSPHERE, "same-host", {"nic_model": "vmxnet3", "vhost": False}, "vhost can be set on kvm only"),
        (VSPHERE, "same-host", {"nic_model": "vmxnet3", "queues": 1}, "queues can be set on kvm only"),
        (HYPERV, "same-host", {"nic_model": "synthetic", "queues": 2, "vcpus": 2}, "queues can be set on kvm only: hyperv"),
        (VSPHERE, "during-migration", {"nic_model": "vmxnet3", "auto_converge": False}, "auto_converge can be set on kvm only"),
        (VSPHERE, "during-migration", {"nic_model": "vmxnet3", "post_copy": True}, "post_copy can be set on kvm only"),
        (HYPERV, "during-migration", {"nic_model": "synthetic", "migrate_bandwidth": 10**8}, "migrate_bandwidth can be set"),
        (VSPHERE, "during-migration", {"nic_model": "vt-d"}, "can't be migrated"),
        (VSPHERE, "during-migration", {"nic_model": "sr-iov"}, "can't be migrated"),
        (HYPERV, "during-migration", {"nic_model": "vt-d"}, "can't be migrated"),
        (VSPHERE, "cross-host", {"nic_model": "vt-d"}, "needs a PCI device on the VM's host"),
        (HYPERV, "same-host", {"nic_model": "vt-d"}, "needs 2 PCI devices"),
        (HYPERV, "host-to-host", {"peer": "other-host"}, "needs a second host with `address`"),
        (VSPHERE, "vm-to-host", {"nic_model": "vmxnet3"}, "needs a host with `address` and `ssh`"),
    ],
)  # fmt: skip
def test_a_level_that_can_not_act_is_refused_with_the_reason(
    lab: Lab, scenario: str, levels: dict[str, Level], words: str
) -> None:
    """H10, V9."""
    assert words in why(lab, scenario, **levels)


@pytest.mark.parametrize(
    ("lab", "scenario", "levels"),
    [
        (VSPHERE, "same-host", {"nic_model": "vmxnet3"}),
        (VSPHERE, "same-host", {"nic_model": "vmxnet3", "vhost": "default"}),
        (VSPHERE, "during-migration", {"nic_model": "e1000e"}),
        (VSPHERE, "same-host", {"nic_model": "vmxnet2"}),
        (VSPHERE, "same-host", {"nic_model": "vt-d"}),
        (HYPERV, "same-host", {"nic_model": "legacy", "image": "old"}),
        (HYPERV, "same-host", {"nic_model": "synthetic", "image": "old"}),
        (STATIC, "same-host", {"nic_model": "synthetic", "image": "old"}),
        (STATIC, "same-host", {"nic_model": "sr-iov"}),
        (HYPERV, "same-host", {"nic_model": "sr-iov"}),
        (HYPERV, "during-migration", {"nic_model": "sr-iov"}),
        (HYPERV, "vm-to-host", {"nic_model": "synthetic"}),
        (HYPERV, "host-to-host", {"machine_type": "q35"}),
        (MIXED, "same-host", {"nic_model": "e1000", "machine_type": "pc"}),
    ],
)
def test_what_can_be_run_has_no_reason(lab: Lab, scenario: str, levels: dict[str, Level]) -> None:
    """Among them sr-iov on Hyper-V, which takes virtual functions from its switch, without a list."""
    assert why(lab, scenario, **levels) == ""


def test_settings_of_migrations_speak_against_migrations_only() -> None:
    campaign = replace(CAMPAIGN, settings={"seconds": 12.0, "auto_converge": True, "nic_model": "vmxnet3"})
    assert why(VSPHERE, "same-host", campaign=campaign) == ""
    assert "auto_converge" in why(VSPHERE, "during-migration", campaign=campaign)


def test_a_default_that_nobody_chose_is_no_level() -> None:
    campaign = parse_campaign(
        "campaign: x\nscenarios: [same-host, cross-host]\nsettings: {nic_model: vmxnet3}\n"
        "overrides: [{when: {scenario: cross-host}, set: {machine_type: pc}}]\n"
    )
    assert why(VSPHERE, "same-host", campaign=campaign) == ""
    assert "machine_type" in why(VSPHERE, "cross-host", campaign=campaign)


def test_runs_stay_on_the_hosts_that_boot_the_image() -> None:
    assert where(MIXED, "same-host", nic_model="e1000", image="probe") == ["k"]
    assert where(MIXED, "same-host", nic_model="e1000", image="template") == ["v"]


def test_migrations_stay_within_one_vcenter() -> None:
    assert where(VSPHERE, "during-migration", nic_model="vmxnet3") == ["a b", "b a"]
    assert "c" in " ".join(where(VSPHERE, "cross-host", nic_model="vmxnet3")), "its VMs can be measured to all the same"


def test_the_deprecated_adapter_is_only_used_when_it_is_named() -> None:
    """V9."""
    with pytest.raises(SpecError) as caught:
        cross_check(parse_campaign("campaign: x\nscenarios: same-host\n"), VSPHERE)
    (problem,) = caught.value.problems
    assert "no `nic_model` is named, and virtio, which is the default, is no adapter of the lab v" in problem.message
    assert problem.allowed.split(", ") == [
        name for name, model in NIC_MODELS.items() if Hypervisor.VSPHERE in model.hypervisors
    ]
    cross_check(parse_campaign("campaign: x\nscenarios: same-host\nsettings: {nic_model: vmxnet2}\n"), VSPHERE)
