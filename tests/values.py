"""Small model values that tests of several rooms share."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface

from labctl.model.campaign import Campaign, Cell, Timeouts
from labctl.model.lab import ChannelKind, Host, Image, ImageKind, Lab, Network
from labctl.model.nic import Hypervisor
from labctl.model.order import EndpointOrder, Placement, RunOrder, TransferOrder, VmShape
from labctl.model.outcome import Outcome, OutcomeDetail
from labctl.model.result import AttemptResult, RawOutput
from labctl.model.scenario import Scenario, Side


def a_lab(*, machines: tuple[str, str] = ("one", "one")) -> Lab:
    """Two KVM hosts, by default on one physical machine."""
    hosts = {
        name: Host(
            name=name,
            hypervisor=Hypervisor.KVM,
            uri=f"qemu+unix:///system?socket=/nowhere/{name}",
            machine=machine,
            address=IPv4Interface(f"198.18.0.{number}/24"),
            migration_address=IPv4Address(f"198.19.0.{number}"),
        )
        for number, (name, machine) in enumerate(zip("ab", machines, strict=True), start=1)
    }
    network = Network(
        name="data",
        bridge="br0",
        guest_range=(IPv4Address("198.18.0.16"), IPv4Address("198.18.0.31")),
        prefix_length=24,
    )
    return Lab(
        name="lab",
        site="here",
        hosts=hosts,
        machines={},
        networks={"data": network},
        images={
            "probe": Image(
                name="probe", kind=ImageKind.KERNEL, channel=ChannelKind.QEMU_AGENT, kernel="/k", initrd="/i"
            )
        },
        migration_pairs=frozenset({("a", "b"), ("b", "a")}),
        test_network="data",
    )


def a_campaign(**changes: object) -> Campaign:
    """Two NIC models on one host, two replicates."""
    values: dict[str, object] = {
        "name": "small",
        "scenarios": (Scenario.SAME_HOST,),
        "factors": {"nic_model": ("virtio", "e1000")},
        "settings": {},
        "repeats": 2,
    }
    return Campaign(**(values | changes))  # type: ignore[arg-type]


def a_cell(**levels: str | int | float | bool) -> Cell:
    """A cell, same-host unless said otherwise."""
    return Cell(levels={"scenario": "same-host"} | levels)


def an_order(host: str = "a") -> RunOrder:
    """A run with both VMs on one host."""
    transfer = TransferOrder(tool="iperf3", seconds=1.0, interval=1.0)
    return RunOrder(
        scenario=Scenario.SAME_HOST,
        placement=Placement(
            sender=EndpointOrder(side=Side.SENDER, host=host, vm=True),
            receiver=EndpointOrder(side=Side.RECEIVER, host=host, vm=True),
        ),
        vm=VmShape(image="probe", nic_model="virtio", vcpus=1, memory=2**27, queues=1, machine_type="q35"),
        transfer=transfer,
        warmup=transfer,
        warmups=0,
        transfers=1,
        migration=None,
        prepare=(),
        timeouts=Timeouts(),
        reuse=False,
        settings={},
    )


def a_result(outcome: Outcome = Outcome.OK, *, kind: str = "", raw: bytes = b"raw") -> AttemptResult:
    """What an attempt brought back."""
    return AttemptResult(
        detail=OutcomeDetail(outcome=outcome, kind=kind), raw=(RawOutput(name="transfer-1/client.stdout", content=raw),)
    )
