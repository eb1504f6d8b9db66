from __future__ import annotations

from dataclasses import replace

import pytest

from labctl.model.campaign import Campaign, Cell
from labctl.model.lab import Lab, Limits
from labctl.model.scenario import Scenario
from labctl.model.settings import Level
from labctl.plan.applicability import placements, reason
from labctl.spec.lab import parse_lab

TWO = parse_lab(
    "lab: two\nembedded: {hosts: [a, b], machines: [box], host_facts: {a: {rack: left, bios: '1'}, b: {rack: right}}}\n"
)
ONE = parse_lab("lab: one\nembedded: {hosts: [a]}\n")
TCG = parse_lab("lab: two\nembedded: {hosts: [a, b], accelerator: tcg}\n")
RACK = parse_lab(
    """
lab: rack
hosts:
  a: {hypervisor: kvm, uri: "qemu+ssh://a/system", devices: ["0000:3b:00.0"], migration_address: 198.51.100.1}
  b:
    hypervisor: kvm
    uri: qemu+ssh://b/system
    devices: ["0000:3b:00.0", "0000:3b:00.1"]
    virtual_functions: ["0000:3b:10.0"]
    migration_address: 198.51.100.2
  c: {hypervisor: kvm, uri: "qemu+ssh://c/system"}
  v: {hypervisor: vsphere, vcenter: vc}
vcenters: {vc: {address: vc, user: u, password: "env:P"}}
networks: {data: {bridge: br0, guest_range: [192.0.2.100, 192.0.2.199]}}
images:
  probe: {kind: kernel, kernel: /k, initrd: /i, drivers: [virtio, e1000]}
  template: {kind: template, template: t, login: {user: u, password: "env:P"}}
migration: {pairs: [[a, b]], one_way: yes}
"""
)


def why(lab: Lab, scenario: str, **levels: Level) -> str:
    return reason(campaign(), cell(scenario, **levels), lab)


def campaign(**settings: Level) -> Campaign:
    return Campaign(name="x", scenarios=tuple(Scenario), factors={}, settings=settings)


def cell(scenario: str, **levels: Level) -> Cell:
    named = {name.replace("__", "."): level for name, level in levels.items()}
    return Cell(levels={"scenario": scenario} | named)


def where(lab: Lab, scenario: str, **levels: Level) -> list[tuple[str, ...]]:
    found = placements(campaign(), cell(scenario, **levels), lab)
    return [(each.sender.host, each.receiver.host, each.destination) for each in found]


@pytest.mark.parametrize("scenario", [each.value for each in Scenario])
def test_the_embedded_lab_can_do_every_scenario(scenario: str) -> None:
    assert why(TWO, scenario, seconds=12.0, interval=0.1) == ""


@pytest.mark.parametrize(
    ("lab", "scenario", "levels", "words"),
    [
        (RACK, "during-migration", {"nic_model": "vt-d"}, "vt-d gives the VM a physical adapter"),
        (RACK, "during-migration", {"nic_model": "sr-iov"}, "can't be migrated"),
        (TWO, "same-host", {"nic_model": "vt-d"}, "needs 2 PCI devices on one host"),
        (TWO, "vm-to-host", {"nic_model": "vt-d"}, "one under `devices`"),
        (RACK, "same-host", {"nic_model": "sr-iov"}, "`virtual_functions`"),
        (TWO, "same-host", {"nic_model": "synthetic"}, "synthetic is no adapter of kvm"),
        (RACK, "same-host", {"nic_model": "synthetic"}, "no adapter of kvm or vsphere"),
        (RACK, "same-host", {"nic_model": "rtl8139"}, "the image probe has no driver for rtl8139"),
        (TWO, "same-host", {"image": "debian"}, "no image named debian"),
        (ONE, "cross-host", {}, "needs two hosts"),
        (ONE, "during-migration", {}, "migration path"),
        (ONE, "vm-to-host", {"peer": "other-host"}, "second host"),
        (TWO, "vm-to-host", {"peer": "bxo"}, "no machine named bxo"),
        (RACK, "vm-to-host", {}, "`address` and `ssh`"),
        (RACK, "host-to-host", {}, "`address` and `ssh`"),
        (TWO, "same-host", {"host__rack": "cellar"}, "declares the fact rack = cellar"),
        (TWO, "same-host", {"host__rack": "right", "host__bios": "1"}, "all the facts"),
        (TWO, "cross-host", {"host__rack": "left"}, "needs two hosts"),
        (TWO, "during-migration", {"host__rack": "left"}, "migration path"),
        (TWO, "same-host", {"nic_model": "rtl8139", "offload__tso": True}, "rtl8139 has no offload tso"),
        (TWO, "same-host", {"nic_model": "rtl8139", "offload__tso": False}, "rtl8139 has no offload tso"),
        (TWO, "same-host", {"nic_model": "e1000", "queues": 2, "vcpus": 2}, "one queue pair"),
        (TWO, "same-host", {"queues": 4, "vcpus": 2}, "as many virtual CPUs"),
        (TWO, "same-host", {"nic_model": "e1000", "vhost": True}, "vhost"),
        (TCG, "same-host", {"vhost": True}, "the same run"),
        (TWO, "same-host", {"mtu": 9000}, "more than the 1500"),
        (TWO, "same-host", {"seconds": 2.5}, "whole seconds"),
        (TWO, "same-host", {"warmup_seconds": 0.5}, "whole seconds"),
        (TWO, "same-host", {"interval": 0.05}, "intervals of 0.1 to 60 s"),
        (TWO, "same-host", {"interval": 20.0}, "longer than the transfer"),
        (TWO, "same-host", {"streams": 129}, "at most 128 streams"),
        (TWO, "same-host", {"protocol": "udp"}, "name a rate"),
        (TWO, "same-host", {"protocol": "udp", "rate": 10**6, "buffer": 65536}, "65507"),
        (TWO, "during-migration", {"seconds": 4.0}, "too short to show a migration"),
        (TWO, "during-migration", {"seconds": 12.0, "migrate_at": 0.9}, "too short"),
        (TWO, "during-migration", {"seconds": 2.0, "interval": 0.1, "migrate_back": True}, "two migrations"),
        (TWO, "during-migration", {"seconds": 12.0, "auto_converge": True, "post_copy": True}, "two ways"),
    ],
)
def test_reasons_are_plain_sentences(lab: Lab, scenario: str, levels: dict[str, Level], words: str) -> None:
    """L9, M16: among them vhost under software emulation, refused when planning."""
    found = why(lab, scenario, **levels)
    assert words in found


def test_a_run_that_puts_more_vms_on_a_host_than_the_lab_allows_can_never_start() -> None:
    narrow = replace(TWO, limits=Limits(vms_per_host=1))
    for scenario in ("same-host", "during-migration"):
        assert "puts 2 VMs on one host, and the lab allows 1" in why(narrow, scenario, seconds=12.0)
    for scenario in ("cross-host", "vm-to-host", "host-to-host"):
        assert why(narrow, scenario) == ""


@pytest.mark.parametrize(
    ("lab", "scenario", "levels"),
    [
        (TWO, "same-host", {"vhost": True}),
        (TCG, "same-host", {"vhost": False}),
        (TWO, "same-host", {"nic_model": "e1000", "vhost": False}),
        (TWO, "same-host", {"nic_model": "rtl8139", "offload__tso": "default"}),
        (TWO, "same-host", {"nic_model": "e1000", "offload__tx-udp-segmentation": True}),
        (TWO, "same-host", {"tool": "iperf", "seconds": 2.5, "warmup_seconds": 0.5, "streams": 200}),
        (TWO, "same-host", {"queues": 2, "vcpus": 2}),
        (TWO, "during-migration", {"seconds": 12.0, "migrate_at": 0.8, "interval": 0.1}),
        (RACK, "same-host", {"nic_model": "vt-d"}),
        (TWO, "host-to-host", {"nic_model": "vt-d", "mtu": 9000, "image": "none"}),
    ],
)
def test_what_can_be_run_has_no_reason(lab: Lab, scenario: str, levels: dict[str, Level]) -> None:
    assert why(lab, scenario, **levels) == ""


def test_placements_are_all_that_the_lab_offers_in_the_order_of_its_hosts() -> None:
    assert where(TWO, "same-host") == [("a", "a", ""), ("b", "b", "")]
    assert where(TWO, "cross-host") == [("a", "b", ""), ("b", "a", "")]
    assert where(TWO, "during-migration") == [("a", "a", "b"), ("b", "b", "a")]
    assert where(TWO, "vm-to-host") == [("a", "a", ""), ("b", "b", "")]
    assert where(TWO, "vm-to-host", peer="other-host") == [("a", "b", ""), ("b", "a", "")]
    assert where(TWO, "vm-to-host", peer="box") == [("a", "box", ""), ("b", "box", "")]
    assert where(TWO, "host-to-vm", peer="box") == [("box", "a", ""), ("box", "b", "")]
    assert where(TWO, "host-to-host") == [("a", "a", ""), ("b", "b", "")]
    assert where(TWO, "host-to-host", peer="other-host") == [("a", "b", ""), ("b", "a", "")]
    assert where(RACK, "during-migration") == [("a", "a", "b")]


def test_facts_restrict_the_hosts() -> None:
    assert where(TWO, "same-host", host__rack="right") == [("b", "b", "")]
    assert where(TWO, "vm-to-host", host__rack="right", peer="box") == [("b", "box", "")]


def test_passthrough_takes_only_hosts_with_enough_devices() -> None:
    assert where(RACK, "same-host", nic_model="vt-d") == [("b", "b", "")]
    assert where(RACK, "cross-host", nic_model="vt-d") == [("a", "b", ""), ("b", "a", "")]


def test_a_nic_model_of_one_hypervisor_takes_only_its_hosts() -> None:
    assert where(RACK, "same-host", nic_model="vmxnet2", image="template") == [("v", "v", "")]


def test_an_image_takes_only_hosts_that_boot_it() -> None:
    assert where(RACK, "same-host", nic_model="e1000") == [("a", "a", ""), ("b", "b", ""), ("c", "c", "")]
    assert where(RACK, "same-host", nic_model="e1000", image="template") == [("v", "v", "")]


def test_who_is_a_vm_a_host_and_a_machine() -> None:
    (first, *_) = placements(campaign(), cell("host-to-vm", peer="box"), TWO)
    assert (first.sender.vm, first.sender.machine, first.receiver.vm) == (False, True, True)
    (first, *_) = placements(campaign(), cell("vm-to-host"), TWO)
    assert (first.sender.vm, first.receiver.vm, first.receiver.machine) == (True, False, False)
