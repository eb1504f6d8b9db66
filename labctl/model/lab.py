"""The lab: hosts, plain machines, networks, images, limits; which hosts can migrate to which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Interface
from pathlib import PurePosixPath

from labctl.model.nic import Hypervisor


class ChannelKind(StrEnum):
    """How commands reach the inside of an endpoint."""

    QEMU_AGENT = "qemu-agent"
    """The QEMU guest agent, through libvirt."""
    VMTOOLS = "vmtools"
    """Guest operations of VMware Tools, through vCenter."""
    POWERSHELL_DIRECT = "powershell-direct"
    """PowerShell Direct over VMBus, through the Hyper-V host."""
    WINRM = "winrm"
    """WinRM to the endpoint's address."""
    SSH = "ssh"
    """SSH to the endpoint's address."""


class GuestSystem(StrEnum):
    """What runs inside an endpoint, and so which language its commands are in."""

    LINUX = "linux"
    WINDOWS = "windows"


class ImageKind(StrEnum):
    """How a VM gets its operating system."""

    KERNEL = "kernel"
    """Kernel, initramfs and command line; all in RAM, no disk, so it migrates without shared storage."""
    DISK = "disk"
    """A disk image that is never written to: every VM gets an overlay (qcow2, differencing VHDX) or a copy of its own."""
    TEMPLATE = "template"
    """A template or a VM of vSphere, which every VM is cloned from."""
    ISO = "iso"
    """A live system on a CD image; the VM has no disk."""


def bootable_on(kind: ImageKind, *, disk: str = "", iso: str = "") -> frozenset[Hypervisor]:
    """The hypervisors that can boot an image, as far as its kind and the form of its path tell."""
    if kind is ImageKind.KERNEL:
        return frozenset({Hypervisor.KVM})
    if kind is ImageKind.TEMPLATE:
        return frozenset({Hypervisor.VSPHERE})
    if kind is ImageKind.ISO:
        return frozenset({Hypervisor.VSPHERE if iso.startswith("[") else Hypervisor.HYPERV})
    return frozenset({Hypervisor.HYPERV if disk.lower().endswith((".vhdx", ".vhd")) else Hypervisor.KVM})


class Cloning(StrEnum):
    """How the disk of a VM comes from that of its image."""

    LINKED = "linked"
    """What is written goes to a file of the VM's own, what is read may come from the image's (overlay, linked clone)."""
    FULL = "full"
    """A whole copy."""


class Customisation(StrEnum):
    """How a VM made from a template learns its name and its static address."""

    NONE = "none"
    """It doesn't: the network has DHCP."""
    GUESTINFO = "guestinfo"
    """It reads `guestinfo.labctl.*` by VMware Tools when it boots (the image's own doing)."""
    GUEST_OS = "guest-os"
    """Guest customisation of the hypervisor: of vSphere for Linux and Windows, the key-value exchange of Hyper-V."""


class Accelerator(StrEnum):
    """How QEMU runs guest code. `auto` is decided by booting a probe guest, never by looking at /dev/kvm."""

    AUTO = "auto"
    KVM = "kvm"
    TCG = "tcg"


@dataclass(frozen=True, kw_only=True)
class SecretRef:
    """Where a secret is, never the secret: `file:PATH`, `env:NAME` or `keyring:SERVICE/USER`."""

    scheme: str
    locator: str

    def __str__(self) -> str:
        return f"{self.scheme}:{self.locator}"


@dataclass(frozen=True, kw_only=True)
class SshAccess:
    """How to reach a machine by SSH. Host keys are always checked against `known_hosts`."""

    address: str
    user: str
    key: SecretRef
    known_hosts: str
    port: int = 22


class WinrmTransport(StrEnum):
    """How WinRM authenticates. Messages over plain HTTP are always encrypted by NTLM or Kerberos; `basic` needs HTTPS."""

    NTLM = "ntlm"
    KERBEROS = "kerberos"
    CREDSSP = "credssp"
    BASIC = "basic"


@dataclass(frozen=True, kw_only=True)
class Login:
    """A user and where its password is, for channels that log in with a password."""

    user: str
    password: SecretRef


@dataclass(frozen=True, kw_only=True)
class WinrmAccess:
    """How to reach a Windows machine by WinRM (WS-Management, MS-WSMV).

    `url` is such as `https://hv1.example.com:5986/wsman`. Certificates of HTTPS are always checked: against the
    authorities of the system, or those of `ca_file`.
    """

    url: str
    login: Login
    transport: WinrmTransport = WinrmTransport.NTLM
    ca_file: str = ""


class MigrationAuth(StrEnum):
    """How Hyper-V hosts trust each other for live migration (`VirtualMachineMigrationAuthenticationType`)."""

    KERBEROS = "kerberos"
    """Constrained delegation, set up in Active Directory."""
    CREDSSP = "credssp"
    """The credentials that labctl logs in with are delegated; needs the WinRM transport `credssp`."""


@dataclass(frozen=True, kw_only=True)
class VCenter:
    """A vCenter Server, or one ESXi host that stands alone, and where labctl may work in it.

    Certificates are checked against the system's authorities, those of `ca_file`, or one pinned `thumbprint`
    (SHA-256, 64 hexadecimal digits). `datacenter` and `folder` are names or inventory paths; empty means the only one.
    """

    name: str
    address: str
    """Host name or address, with `:port` where it isn't 443."""
    login: Login
    ca_file: str = ""
    thumbprint: str = ""
    datacenter: str = ""
    folder: str = ""
    clones_at_once: int = 2
    relocations_at_once: int = 1
    pin: bool = False
    """Whether DRS is told to leave the VMs of labctl where they are (an override for each VM)."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network that VMs are attached to.

    `bridge` is the Linux bridge (KVM), port group or virtual switch of this network on every host. With static
    addressing a VM gets a free address of `guest_range` (first and last address, both included).
    """

    name: str
    bridge: str
    mtu: int = 1500
    addressing: str = "static"
    guest_range: tuple[IPv4Address, IPv4Address] | None = None
    prefix_length: int = 24
    vlan: int | None = None
    """VLAN of the VMs' adapters; None: untagged, or as the port group says."""
    speed: int | None = None
    """What the physical path between two hosts carries, in bit/s; None: not known. Nothing on one host is bound by it."""

    @property
    def is_static(self) -> bool:
        """Whether VMs get their addresses from labctl; else they ask a DHCP server."""
        return self.addressing == "static"


@dataclass(frozen=True, kw_only=True)
class Host:
    """One hypervisor machine.

    `machine` names the physical machine: hosts of one machine are never used at the same time, because the one would
    disturb the other. `address` is the host's own address on the test network (None: it can't be an endpoint) and
    `migration_address` the one that incoming migrations are sent to. `facts` are what the user declares of the host
    (driver, firmware, teaming, ...): factors `host.NAME` are compared with them.
    """

    name: str
    hypervisor: Hypervisor
    uri: str
    """Of libvirt (KVM); empty for hosts of vSphere, which are reached by `vcenter`, and of Hyper-V, by `winrm`."""
    machine: str
    address: IPv4Interface | None = None
    migration_address: IPv4Address | None = None
    ssh: SshAccess | None = None
    accelerator: Accelerator = Accelerator.AUTO
    devices: tuple[str, ...] = ()
    """PCI addresses (`0000:3b:00.0`) that may be passed through as `vt-d`."""
    virtual_functions: tuple[str, ...] = ()
    """PCI addresses of virtual functions that may be passed through as `sr-iov`."""
    vcenter: str = ""
    """vSphere: the name of its vCenter in the lab file."""
    inventory: str = ""
    """vSphere: name or inventory path of the host; empty: the host's own name."""
    resource_pool: str = ""
    """vSphere: name or inventory path; empty: that of its cluster or of itself."""
    datastore: str = ""
    """vSphere: name of the datastore for the VMs' files; empty: the only one that all hosts of a migration path share."""
    storage: str = ""
    """Hyper-V: folder on the host for the files of VMs, such as `D:\\labctl`."""
    winrm: WinrmAccess | None = None
    """Hyper-V: how the host is reached."""
    migration_auth: MigrationAuth = MigrationAuth.KERBEROS
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def can_be_endpoint(self) -> bool:
        """Whether transfers can start or end on the host itself: it has an address there, and commands reach it."""
        return self.address is not None and (self.ssh is not None or self.winrm is not None)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A plain machine that is no hypervisor, an endpoint over SSH."""

    name: str
    address: IPv4Interface
    ssh: SshAccess
    machine: str


@dataclass(frozen=True, kw_only=True)
class Image:
    """What a VM boots. Paths are on the hosts. `channel` says how commands reach a guest of it.

    `login` is needed by the channels `vmtools`, `powershell-direct` and `winrm`, `ssh_key` and `known_hosts` by `ssh`
    (`known_hosts` empty: that of the VM's host, through which KVM guests are reached).
    """

    name: str
    kind: ImageKind
    channel: ChannelKind = ChannelKind.QEMU_AGENT
    kernel: str = ""
    initrd: str = ""
    command_line: str = ""
    disk: str = ""
    ssh_user: str = "root"
    ssh_key: SecretRef | None = None
    known_hosts: str = ""
    system: GuestSystem = GuestSystem.LINUX
    login: Login | None = None
    winrm_transport: WinrmTransport = WinrmTransport.NTLM
    winrm_ca_file: str = ""
    winrm_https: bool = True
    template: str = ""
    """vSphere: name or inventory path of a template or VM."""
    iso: str = ""
    """vSphere: `[datastore] folder/file.iso`. Hyper-V: a path on the host."""
    guest_id: str = ""
    """vSphere: what the guest is (`VirtualMachineGuestOsIdentifier`), for images of kind `iso`."""
    clone: Cloning = Cloning.LINKED
    customisation: Customisation = Customisation.NONE
    generation: int = 2
    """Hyper-V: 1 or 2. Legacy adapters need 1."""
    drivers: frozenset[str] = frozenset()
    """NIC models that the guest has a driver for; empty means: not known, assume all."""

    @property
    def hypervisors(self) -> frozenset[Hypervisor]:
        """Those that can boot it."""
        return bootable_on(self.kind, disk=self.disk, iso=self.iso)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the lab allows at once."""

    vms_per_host: int = 8
    migrations_at_once: int = 1


@dataclass(frozen=True, kw_only=True)
class QuietLimits:
    """What a host may be doing beside a measurement; None: not looked at."""

    cpu: float | None = None
    """Share of all its cores that are busy, 0 to 1."""
    load: float | None = None
    """Load average over one minute, per core."""
    network: int | None = None
    """bit/s over all its physical interfaces, both ways."""
    other_vms: int | None = None
    """Running VMs that are not of the attempt."""


@dataclass(frozen=True, kw_only=True)
class EmbeddedLayout:
    """Where the embedded lab keeps itself on this machine (see `labctl lab up`)."""

    directory: PurePosixPath
    uplink: IPv4Interface
    """The address of this machine on the management network of the embedded lab."""


@dataclass(frozen=True, kw_only=True)
class SimulatedLayout:
    """A lab that only pretends: its hosts, VMs and links are files in a directory, its figures no measurements."""

    directory: PurePosixPath
    seed: int = 1


@dataclass(frozen=True, kw_only=True)
class Lab:
    """The whole inventory. `migration_pairs` holds every ordered pair (source, destination) that has a path."""

    name: str
    site: str
    hosts: Mapping[str, Host]
    machines: Mapping[str, Machine]
    networks: Mapping[str, Network]
    images: Mapping[str, Image]
    migration_pairs: frozenset[tuple[str, str]]
    test_network: str
    limits: Limits = field(default_factory=Limits)
    vcenters: Mapping[str, VCenter] = field(default_factory=dict)
    embedded: EmbeddedLayout | None = None
    simulated: SimulatedLayout | None = None
    quiet: QuietLimits | None = None

    def network(self) -> Network:
        """The network that transfers are measured on."""
        return self.networks[self.test_network]
