"""A lab of simulated Hyper-V hosts, as its lab file would say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path, PureWindowsPath

from labctl.model.lab import (
    ChannelKind,
    Customisation,
    Host,
    Image,
    ImageKind,
    Lab,
    Network,
    SecretRef,
    WinrmAccess,
)
from labctl.model.nic import Hypervisor
from tests.simulators.hyperv.state import Datacentre, SimulatedHost

DISK = r"D:\images\probe.vhdx"
DISK_1 = r"D:\images\probe-gen1.vhdx"
ISO = r"D:\images\probe.iso"
NO_SYSTEM = r"D:\images\never-boots.vhdx"
STORAGE = r"D:\labctl"


def a_host(name: str, **state: object) -> SimulatedHost:
    """A simulated host that has what the images of `a_lab` need."""
    files = {PureWindowsPath(path) for path in (DISK, DISK_1, ISO, NO_SYSTEM)}
    host = SimulatedHost(name=name, files=files)
    for key, value in state.items():
        setattr(host, key, value)
    return host


def a_lab(
    *names: str,
    key: Path | None = None,
    known_hosts: Path | None = None,
    winrm: Mapping[str, WinrmAccess] | None = None,
    storage: str = STORAGE,
    guest_range: tuple[str, str] = ("192.0.2.10", "192.0.2.250"),
    addressing: str = "static",
) -> Lab:
    """The lab of these hosts: images `probe` (generation 2), `gen1`, `iso`; every host can migrate to every other one."""
    hosts = {
        name: Host(
            name=name,
            hypervisor=Hypervisor.HYPERV,
            uri="",
            machine=name,
            storage=storage,
            winrm=(winrm or {}).get(name),
        )
        for name in names or ("a", "b")
    }
    probe = Image(
        name="probe",
        kind=ImageKind.DISK,
        disk=DISK,
        channel=ChannelKind.SSH,
        ssh_key=SecretRef(scheme="file", locator=str(key)) if key is not None else None,
        known_hosts=str(known_hosts or ""),
        customisation=Customisation.GUEST_OS if addressing == "static" else Customisation.NONE,
    )
    images = {
        "probe": probe,
        "gen1": replace(probe, name="gen1", disk=DISK_1, generation=1, customisation=Customisation.NONE),
        "iso": replace(probe, name="iso", kind=ImageKind.ISO, disk="", iso=ISO, customisation=Customisation.NONE),
    }
    first, last = guest_range
    network = Network(
        name="data",
        bridge="data",
        addressing=addressing,
        guest_range=(IPv4Address(first), IPv4Address(last)),
        prefix_length=24,
    )
    return Lab(
        name="hyperv-tests",
        site="tests",
        hosts=hosts,
        machines={},
        networks={"data": network},
        images=images,
        migration_pairs=frozenset((one, other) for one in hosts for other in hosts if one != other),
        test_network="data",
    )


def a_datacentre(*names: str, **state: object) -> Datacentre:
    """Simulated hosts of these names, without guests; moves take a tenth of a second."""
    centre = Datacentre(*(a_host(name) for name in names or ("a", "b")), move_seconds=0.1)
    for key, value in state.items():
        setattr(centre, key, value)
    return centre
