"""What a lab file may say, part by part: keys, types and defaults. `labctl.spec.lab` makes a lab of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from labctl.model.lab import (
    Accelerator,
    ChannelKind,
    Cloning,
    Customisation,
    GuestSystem,
    ImageKind,
    Limits,
    MigrationAuth,
    VCenter,
    WinrmTransport,
)
from labctl.model.nic import Hypervisor
from labctl.spec.fields import Address, Interface, Name, Rate, Share, Strict, Subnet, Switch, Text, complaint
from labctl.spec.lab_values import (
    Facts,
    Folder,
    Mtu,
    Pci,
    Port,
    Thumbprint,
    Uri,
    VCenterAddress,
    WsmanUrl,
)
from labctl.spec.references import Secret
from labctl.spec.simulated import MOST_MEMBERS


class SshField(Strict):
    """How to reach a machine by SSH."""

    address: Text
    user: Text
    key: Secret
    known_hosts: Text
    port: Port = 22


class LoginField(Strict):
    """A user and where the password is."""

    user: Text
    password: Secret


class WinrmField(LoginField):
    """How to reach a Windows machine by WinRM."""

    url: WsmanUrl
    transport: Annotated[WinrmTransport, Field(strict=False)] = WinrmTransport.NTLM
    ca_file: Text | None = Field(default=None, description="authorities for HTTPS; default: those of the system")


class VCenterField(LoginField):
    """A vCenter Server, or one ESXi host that stands alone, and where labctl may work in it."""

    address: VCenterAddress
    ca_file: Text | None = Field(default=None, description="authorities for its certificate; default: the system's")
    thumbprint: Thumbprint | None = Field(default=None, description="SHA-256 of its certificate, instead of `ca_file`")
    datacenter: Text | None = Field(default=None, description="name or inventory path; default: the only one")
    folder: Text | None = Field(default=None, description="folder of the VMs; default: that of the datacenter")
    clones_at_once: int = Field(default=VCenter.clones_at_once, ge=1)
    relocations_at_once: int = Field(default=VCenter.relocations_at_once, ge=1)
    pin: Switch = Field(default=VCenter.pin, description="tell DRS to leave labctl's VMs where they are")


class HostField(Strict):
    """One hypervisor machine."""

    hypervisor: Annotated[Hypervisor, Field(strict=False)]
    uri: Uri | None = Field(default=None, description="KVM: the libvirt of the host")
    vcenter: Text | None = Field(default=None, description="vSphere: its vCenter, one of `vcenters`")
    inventory: Text | None = Field(default=None, description="vSphere: name or inventory path; default: its name here")
    resource_pool: Text | None = Field(default=None, description="vSphere: default: that of its cluster or its own")
    datastore: Text | None = Field(default=None, description="vSphere: default: the only one it shares with the others")
    winrm: WinrmField | None = Field(default=None, description="Hyper-V: how the host is reached")
    storage: Folder | None = Field(default=None, description="Hyper-V: folder for the files of VMs")
    migration_auth: Annotated[MigrationAuth, Field(strict=False)] | None = Field(
        default=None, description="Hyper-V: how hosts trust each other for live migration; default: kerberos"
    )
    machine: Name | None = Field(default=None, description="the physical machine; default: the host's own name")
    address: Interface | None = None
    migration_address: Address | None = None
    ssh: SshField | None = None
    accelerator: Annotated[Accelerator, Field(strict=False)] | None = None
    devices: list[Pci] = Field(default=[])
    virtual_functions: list[Pci] = Field(default=[])
    facts: Facts = Field(default={})


class MachineField(Strict):
    """A plain machine that is no hypervisor."""

    address: Interface
    ssh: SshField
    machine: Name | None = None


class NetworkField(Strict):
    """A network that VMs are attached to."""

    bridge: Text = Field(description="Linux bridge (KVM), port group (vSphere) or virtual switch (Hyper-V)")
    mtu: Mtu = 1500
    addressing: Literal["static", "dhcp"] = "static"
    guest_range: Annotated[list[Address], Field(min_length=2, max_length=2)] | None = None
    prefix_length: int = Field(default=24, ge=8, le=30)
    vlan: int | None = Field(default=None, ge=1, le=4094, description="Hyper-V: VLAN of the VMs' adapters")
    speed: Rate | None = Field(default=None, description="what the path between two hosts carries, such as 10G")


class GuestWinrmField(Strict):
    """How WinRM reaches the guests of an image, at the addresses that they get."""

    transport: Annotated[WinrmTransport, Field(strict=False)] = WinrmTransport.NTLM
    https: Switch = True
    ca_file: Text | None = None


class ImageField(Strict):
    """What a VM boots."""

    kind: Annotated[ImageKind, Field(strict=False)]
    system: Annotated[GuestSystem, Field(strict=False)] = GuestSystem.LINUX
    channel: Annotated[ChannelKind, Field(strict=False)] | None = Field(
        default=None, description="default: that of the hypervisor which boots the image"
    )
    kernel: Text | None = None
    initrd: Text | None = None
    command_line: str = ""
    disk: Text | None = None
    template: Text | None = Field(default=None, description="vSphere: name or inventory path of a template or VM")
    iso: Text | None = Field(default=None, description="vSphere: [datastore] path; Hyper-V: a path on the host")
    guest_id: Text | None = Field(default=None, description="vSphere, kind iso: such as debian12_64Guest")
    clone: Annotated[Cloning, Field(strict=False)] | None = Field(default=None, description="default: linked")
    customisation: Annotated[Customisation, Field(strict=False)] | None = Field(
        default=None, description="how guests learn their static address; default: guest-os, with DHCP none"
    )
    generation: Literal[1, 2] | None = Field(default=None, description="Hyper-V: default 2; legacy adapters need 1")
    login: LoginField | None = Field(default=None, description="for the channels vmtools, powershell-direct and winrm")
    winrm: GuestWinrmField | None = None
    ssh_user: Text = "root"
    ssh_key: Secret | None = None
    known_hosts: Text | None = Field(default=None, description="host keys of the guests; KVM: default that of the host")
    drivers: list[Text] = Field(default=[])


class MigrationField(Strict):
    """Which hosts can migrate to which."""

    pairs: list[Annotated[list[Text], Field(min_length=2, max_length=2)]]
    one_way: Switch = False


class AllPairs(MigrationField):
    """Every host to every other host of the same hypervisor, and of the same vCenter."""


def _migration(value: object) -> object:
    if value == "all":
        return AllPairs(pairs=[])
    if not isinstance(value, dict):
        raise complaint("must be `all` or a mapping with `pairs`", allowed="all, or pairs: [[HOST, HOST], ...]")
    return value


Migration = Annotated[
    MigrationField | None,
    BeforeValidator(_migration),
    WithJsonSchema({"anyOf": [{"const": "all"}, MigrationField.model_json_schema()]}),
]


class LimitsField(Strict):
    """What the lab allows at once."""

    vms_per_host: int = Field(default=Limits.vms_per_host, ge=1)
    migrations_at_once: int = Field(default=Limits.migrations_at_once, ge=1)


class EmbeddedField(Strict):
    """The embedded lab: hosts in network namespaces of one Linux machine."""

    hosts: Annotated[list[Text], Field(min_length=1)]
    machines: list[Text] = Field(default=[])
    limits: LimitsField = LimitsField()
    directory: Text | None = None
    accelerator: Annotated[Accelerator, Field(strict=False)] = Accelerator.AUTO
    host_facts: dict[str, Facts] = Field(default={})
    subnet: Subnet | None = None
    mtu: Mtu = 1500


def _counted(word: str) -> Callable[[object], object]:
    """A number of members as their names: `8` hosts are `host-1` to `host-8`."""

    def validate(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, (int, list)):
            raise complaint("must be a number or a list of names", allowed="such as 8, or [a, b]")
        if isinstance(value, int):
            if not 0 <= value <= MOST_MEMBERS:
                raise complaint("is no such number", allowed=f"0 to {MOST_MEMBERS}")
            return [f"{word}-{number}" for number in range(1, value + 1)]
        return value

    return validate


_MEMBERS_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            {"type": "integer", "minimum": 0, "maximum": MOST_MEMBERS},
            {"type": "array", "items": {"type": ["string", "number"]}},
        ]
    }
)
Hosts = Annotated[list[Name], BeforeValidator(_counted("host")), Field(min_length=1), _MEMBERS_SCHEMA]
Machines = Annotated[list[Name], BeforeValidator(_counted("box")), _MEMBERS_SCHEMA]


class SimulatedField(Strict):
    """A lab that only pretends, for rehearsals: its figures are no measurements."""

    hosts: Hosts = Field(description="how many hosts, or their names")
    machines: Machines = Field(default=[], description="how many plain machines, or their names")
    seed: int = Field(default=1, ge=0, lt=2**63, description="seed of all that differs and scatters")
    directory: Text | None = Field(default=None, description="where the pretended machines are kept as files")
    hypervisor: Annotated[Hypervisor, Field(strict=False)] = Hypervisor.KVM
    host_facts: dict[str, Facts] = Field(default={})
    limits: LimitsField = LimitsField()


class QuietField(Strict):
    """What a host may be doing beside a measurement. What isn't named is not looked at."""

    cpu: Share | None = Field(default=None, description="share of all cores that is busy, such as 20%")
    load: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="load average per core")
    network: Rate | None = Field(default=None, description="bit/s over all physical interfaces, such as 50M")
    other_vms: int | None = Field(default=None, ge=0, description="running VMs that are not of the run")


class LabFile(Strict):
    """A lab: hosts, plain machines, networks, images, and which hosts can migrate to which; or an embedded or simulated
    lab."""

    lab: Name = Field(description="name of the lab")
    site: Name = Field(default="local", description="workers of this site drive the lab")
    embedded: EmbeddedField | None = Field(default=None, description="an embedded lab; then nothing else is needed")
    simulated: SimulatedField | None = Field(default=None, description="a simulated lab; then nothing else is needed")
    vcenters: dict[Name, VCenterField] = Field(default={}, description="how hosts of vSphere are reached")
    hosts: dict[Name, HostField] = Field(default={})
    machines: dict[Name, MachineField] = Field(default={})
    networks: dict[Name, NetworkField] = Field(default={})
    images: dict[Name, ImageField] = Field(default={})
    migration: Migration = Field(default=None, description="which hosts can migrate to which")
    limits: LimitsField = LimitsField()
    test_network: Text | None = Field(default=None, description="network that is measured; default: the only one")
    quiet: QuietField | None = Field(default=None, description="what hosts may be doing beside a measurement")


def pairs_of(spec: LabFile) -> Iterator[tuple[str, str]]:
    """Every ordered pair of hosts (source, destination) that the file gives a migration path."""
    if spec.migration is None:
        return
    if isinstance(spec.migration, AllPairs):
        for source, destination in permutations(spec.hosts, 2):
            if not strangers(spec.hosts[source], spec.hosts[destination]):
                yield source, destination
        return
    for first, second in spec.migration.pairs:
        yield first, second
        if not spec.migration.one_way:
            yield second, first


def strangers(source: HostField, destination: HostField) -> str:
    """Why no VM can ever be migrated between the two, whatever is done about it; empty when nothing is in its way."""
    if source.hypervisor is not destination.hypervisor:
        return "VMs can't be migrated between two kinds of hypervisors"
    if source.vcenter != destination.vcenter:
        return f"VMs can't be migrated between two vCenters ({source.vcenter} and {destination.vcenter})"
    return ""
