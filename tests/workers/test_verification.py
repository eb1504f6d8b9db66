"""Verification against a guest's words: a real shell runs the script where it can, the checks see tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from labctl.errors import LabError
from labctl.model.order import VmShape
from workers import verification
from workers.channels.base import Channel, CommandResult
from workers.guard import Guard
from workers.verification import Asked, differences, verify_vm

GOOD = {
    "nic": "eth0", "kernel": "6.1.0", "mtu": "1500", "link": "1", "speed": "-1", "ethtool.driver": "virtio_net",
    "ethtool.bus-info": "0000:01:00.0", "pci": "1af4:1041", "feature.tcp-segmentation-offload": "on",
    "feature.large-receive-offload": "off [fixed]", "address": "198.18.0.16/24", "tool": "iperf 3.12",
}  # fmt: skip


class Guest:
    """A channel whose guest says what it is told to; later answers replace earlier ones."""

    endpoint = "vm labctl-x"

    def __init__(self, *answers: dict[str, str]) -> None:
        self.answers = list(answers)
        self.asked: list[Sequence[str]] = []

    def run(self, argv: Sequence[str], *, timeout: float) -> CommandResult:
        self.asked.append(argv)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        printed = "".join(f"{key}={value}\n" for key, value in answer.items())
        return CommandResult(argv=tuple(argv), exit_code=0, stdout=printed.encode(), stderr=b"", seconds=0.0)


def verify(guest: Guest, **changes: object) -> dict[str, object]:
    values: dict[str, object] = {
        "image": "probe", "nic_model": "virtio", "vcpus": 1, "memory": 2**27, "queues": 1, "machine_type": "q35",
    }  # fmt: skip
    shape = VmShape(**(values | changes))  # type: ignore[arg-type]
    asked = Asked(mac="52:54:00:12:00:10", address="198.18.0.16/24", shape=shape, tool="iperf3")
    return dict(verify_vm(cast(Channel, guest), asked, timeout=5, guard=Guard()))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "LINK_SECONDS", 0.2)


def test_what_was_asked_for_passes_and_becomes_facts() -> None:
    facts = verify(Guest(GOOD), offloads={"tso": True, "lro": False})
    assert facts["mtu"] == 1500
    assert facts["speed"] == -1
    assert facts["ethtool.driver"] == "virtio_net"


@pytest.mark.parametrize(
    ("said", "asked", "kind"),
    [
        ({"nic": ""}, {}, "nic-missing"),
        ({"ethtool.driver": "e1000"}, {}, "nic-mismatch"),
        ({"pci": "8086:100e"}, {}, "nic-mismatch"),
        ({"ethtool.driver": ""}, {}, "nic-mismatch"),
        ({}, {"nic_model": "e1000"}, "nic-mismatch"),
        ({}, {"offloads": {"tso": False}}, "offload-mismatch"),
        ({}, {"offloads": {"lro": True}}, "offload-mismatch"),
        ({}, {"offloads": {"gro": True}}, "offload-mismatch"),
        ({}, {"mtu": 9000}, "mtu-mismatch"),
        ({"link": "0"}, {}, "link-down"),
        ({"address": "198.18.0.99/24"}, {}, "address-missing"),
        ({"tool": ""}, {}, "tool-missing"),
        ({"tool": "sh: iperf3: not found"}, {}, "tool-missing"),
    ],
)
def test_a_mismatch_is_the_labs_error(said: dict[str, str], asked: dict[str, object], kind: str) -> None:
    """L9, L14: the adapter is found by its MAC address, and has the address that it was given."""
    with pytest.raises(LabError) as raised:
        verify(Guest(GOOD | said), **asked)
    assert raised.value.kind == kind


def test_an_adapter_whose_driver_binds_a_moment_later_is_waited_for() -> None:
    guest = Guest({"nic": "", "kernel": "6.1.0"}, GOOD | {"link": "0"}, GOOD)
    verify(guest)
    assert len(guest.asked) == 3


def test_values_reach_the_script_as_arguments_only() -> None:
    guest = Guest(GOOD)
    verify(guest, offloads={"tso": True})
    script, *arguments = guest.asked[0][2:]
    assert script == verification.GUEST_SCRIPT
    assert arguments == ["labctl", "52:54:00:12:00:10", "", "iperf3", "tso", "on"]


@pytest.mark.parametrize(
    ("asked", "made", "said"),
    [
        ({"queues": 4}, {"nic.queues": 1}, "nic.queues is 1"),
        ({"vhost": True}, {"nic.backend": "qemu"}, "nic.backend is qemu"),
        ({"vcpus": 2}, {"vcpus": 1}, "vcpus is 1"),
        ({"nic_model": "e1000"}, {"nic.model": "virtio"}, "nic.model is virtio"),
        ({"memory": 2**28}, {"memory_bytes": 2**27}, "memory_bytes is"),
    ],
)
def test_what_the_hypervisor_made_otherwise_is_told(
    asked: dict[str, object], made: dict[str, str | int | float | bool | None], said: str
) -> None:
    """L9, M15, M16: options that libvirt has dropped."""
    values: dict[str, object] = {
        "image": "probe", "nic_model": "virtio", "vcpus": 1, "memory": 2**27, "queues": 1, "machine_type": "q35",
    }  # fmt: skip
    shape = VmShape(**(values | asked))  # type: ignore[arg-type]
    (found,) = differences(shape, made)
    assert found.startswith(said)
    assert differences(shape, dict.fromkeys(made)) == (), "what is unknown is no difference"


def test_a_reading_after_a_migration_sets_nothing() -> None:
    guest = Guest(GOOD)
    shape = VmShape(
        image="probe", nic_model="virtio", vcpus=1, memory=2**27, queues=1, machine_type="q35", mtu=1500,
        offloads={"tso": True},
    )  # fmt: skip
    asked = Asked(mac="52:54:00:12:00:10", address="198.18.0.16/24", shape=shape, tool="iperf3")
    verify_vm(cast(Channel, guest), asked, timeout=5, guard=Guard(), set_up=False)
    assert guest.asked[0][3:] == ["labctl", "52:54:00:12:00:10", "", "iperf3"]


def test_what_a_dhcp_server_gave_is_compared_without_the_length_of_its_prefix() -> None:
    shape = VmShape(image="probe", nic_model="virtio", vcpus=1, memory=2**27, queues=1, machine_type="q35")
    leased, given = (
        Asked(mac="52:54:00:12:00:10", address=address, shape=shape, tool="iperf3")
        for address in ("198.18.0.16", "198.18.0.16/24")
    )
    assert leased.has("198.18.0.16/23")
    assert not leased.has("198.18.0.17/23")
    assert not leased.has(None)
    assert given.has("198.18.0.16/24")
    assert not given.has("198.18.0.16/23")
