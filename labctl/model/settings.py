"""Settings: everything that a campaign may fix or vary, each with its kind, default and what it concerns.

A factor of a campaign is a setting with several levels, so both share this one catalogue of names. Four families have
open names: `offload.NAME` (an offload inside the VMs: any that `ethtool -K` knows, or one of Windows), `host_offload.NAME`
(the same on the hosts of a run, restored afterwards), `host.NAME` (a fact that the lab file declares of its hosts) and
`own.NAME` (a factor of the user's, handed to the campaign's `prepare` commands).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from labctl.model.nic import NIC_MODELS
from labctl.model.offloads import WINDOWS_OFFLOADS
from labctl.model.scenario import Scenario

Level = str | int | float | bool
"""One value of a setting, in its canonical form."""


class Kind(StrEnum):
    """What values a setting takes and how they are written canonically."""

    CHOICE = "choice"
    COUNT = "count"
    """A whole number of at least `minimum`."""
    SIZE = "size"
    """Bytes as an int; `64k`, `64 KiB` (both 2^10) and `64 kB` (10^3) are understood."""
    RATE = "rate"
    """bit/s as an int; `100M` and `1.5 Gbit/s` are understood (decimal prefixes)."""
    SECONDS = "seconds"
    FRACTION = "fraction"
    """A number above 0 and below 1."""
    SWITCH = "switch"
    """True or False; `on`, `off`, `yes`, `no` are understood."""
    ARGUMENTS = "arguments"
    """Command line arguments in one string, split as a POSIX shell splits words; no expansion of any kind."""
    TEXT = "text"


class Concern(StrEnum):
    """What a setting acts on; it is dropped from cells of scenarios that have no such thing."""

    VM = "vm"
    TRANSFER = "transfer"
    PEER = "peer"
    MIGRATION = "migration"
    HOST = "host"
    OWN = "own"

    def applies_to(self, scenario: Scenario) -> bool:
        """Whether a run of the scenario has anything that settings of this concern act on."""
        if self is Concern.VM:
            return scenario.vms > 0
        if self is Concern.PEER:
            return scenario.has_peer
        if self is Concern.MIGRATION:
            return scenario.migrates
        return True


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One name that a campaign may fix or vary. A `default` of None is left to the tool or the system."""

    name: str
    kind: Kind
    concern: Concern
    default: Level | None
    what: str
    choices: tuple[str, ...] = ()
    minimum: int = 1
    unit: str = ""


TOOLS = ("iperf3", "iperf", "ntttcp", "filecopy")
"""Transfer tools that a campaign may name."""

DIRECTIONS = ("forward", "reverse", "both")
"""Who sends: the client, the server, or both at the same time."""

COPIES = ("stream", "scp", "sftp", "rsync", "smbclient", "smb-mount", "robocopy", "copy-item")
"""How `filecopy` copies: a plain TCP stream, over SSH, by rsync's own protocol, or over SMB."""

_SETTINGS = (
    Setting(
        name="nic_model",
        kind=Kind.CHOICE,
        concern=Concern.VM,
        default="virtio",
        what="adapter of the VMs",
        choices=tuple(NIC_MODELS),
    ),
    Setting(name="image", kind=Kind.TEXT, concern=Concern.VM, default="probe", what="image of the lab file"),
    Setting(name="vcpus", kind=Kind.COUNT, concern=Concern.VM, default=1, what="virtual CPUs of each VM"),
    Setting(
        name="memory", kind=Kind.SIZE, concern=Concern.VM, default=192 * 2**20, what="memory of each VM", unit="bytes"
    ),
    Setting(name="queues", kind=Kind.COUNT, concern=Concern.VM, default=1, what="queue pairs of the adapter"),
    Setting(
        name="vhost",
        kind=Kind.SWITCH,
        concern=Concern.VM,
        default=None,
        what="in-kernel back end of virtio (None: the hypervisor's choice)",
    ),
    Setting(
        name="machine_type",
        kind=Kind.CHOICE,
        concern=Concern.VM,
        default="q35",
        what="chipset of the VM",
        choices=("q35", "pc"),
    ),
    Setting(
        name="mtu",
        kind=Kind.COUNT,
        concern=Concern.VM,
        default=None,
        what="MTU inside the VMs",
        minimum=576,
        unit="bytes",
    ),
    Setting(
        name="tool", kind=Kind.CHOICE, concern=Concern.TRANSFER, default="iperf3", what="transfer tool", choices=TOOLS
    ),
    Setting(
        name="seconds",
        kind=Kind.SECONDS,
        concern=Concern.TRANSFER,
        default=10.0,
        what="length of a counted transfer",
        unit="s",
    ),
    Setting(
        name="warmup_seconds",
        kind=Kind.SECONDS,
        concern=Concern.TRANSFER,
        default=2.0,
        what="length of a warm-up transfer",
        unit="s",
    ),
    Setting(
        name="interval",
        kind=Kind.SECONDS,
        concern=Concern.TRANSFER,
        default=1.0,
        what="length of the intervals that the tool reports",
        unit="s",
    ),
    Setting(name="streams", kind=Kind.COUNT, concern=Concern.TRANSFER, default=1, what="parallel connections"),
    Setting(
        name="window",
        kind=Kind.SIZE,
        concern=Concern.TRANSFER,
        default=None,
        what="socket buffer asked for",
        unit="bytes",
    ),
    Setting(
        name="buffer",
        kind=Kind.SIZE,
        concern=Concern.TRANSFER,
        default=None,
        what="bytes per write of the tool",
        unit="bytes",
    ),
    Setting(
        name="protocol",
        kind=Kind.CHOICE,
        concern=Concern.TRANSFER,
        default="tcp",
        what="transport protocol",
        choices=("tcp", "udp"),
    ),
    Setting(
        name="rate", kind=Kind.RATE, concern=Concern.TRANSFER, default=None, what="rate limit per stream", unit="bit/s"
    ),
    Setting(
        name="reverse",
        kind=Kind.SWITCH,
        concern=Concern.TRANSFER,
        default=False,
        what="the server sends to the client, where no direction is given",
    ),
    Setting(
        name="direction",
        kind=Kind.CHOICE,
        concern=Concern.TRANSFER,
        default=None,
        what="who sends: the client, the server, or both at the same time",
        choices=DIRECTIONS,
    ),
    Setting(
        name="mss",
        kind=Kind.COUNT,
        concern=Concern.TRANSFER,
        default=None,
        what="largest TCP segment asked for",
        minimum=88,
        unit="bytes",
    ),
    Setting(
        name="congestion",
        kind=Kind.TEXT,
        concern=Concern.TRANSFER,
        default=None,
        what="TCP congestion control, as the sender's system names it: cubic, bbr, ...",
    ),
    Setting(
        name="dscp",
        kind=Kind.COUNT,
        concern=Concern.TRANSFER,
        default=None,
        what="differentiated services code point of the packets, 0 to 63",
        minimum=0,
    ),
    Setting(
        name="family",
        kind=Kind.CHOICE,
        concern=Concern.TRANSFER,
        default="ipv4",
        what="version of the Internet Protocol",
        choices=("ipv4", "ipv6"),
    ),
    Setting(
        name="omit",
        kind=Kind.SECONDS,
        concern=Concern.TRANSFER,
        default=None,
        what="ramp-up before the counted time, moved but left out of the figures",
        unit="s",
    ),
    Setting(
        name="zerocopy",
        kind=Kind.SWITCH,
        concern=Concern.TRANSFER,
        default=False,
        what="the sender hands pages to the kernel instead of copying them",
    ),
    Setting(
        name="latency",
        kind=Kind.COUNT,
        concern=Concern.TRANSFER,
        default=None,
        what="echo requests per second beside a transfer, for the round-trip time under load",
        unit="1/s",
    ),
    Setting(
        name="copy",
        kind=Kind.CHOICE,
        concern=Concern.TRANSFER,
        default="stream",
        what="how filecopy copies",
        choices=COPIES,
    ),
    Setting(
        name="size",
        kind=Kind.SIZE,
        concern=Concern.TRANSFER,
        default=64 * 2**20,
        what="size of the file that filecopy copies",
        unit="bytes",
    ),
    Setting(
        name="medium",
        kind=Kind.CHOICE,
        concern=Concern.TRANSFER,
        default="ram",
        what="what filecopy's file lies on, at both ends",
        choices=("ram", "disk"),
    ),
    Setting(
        name="cache",
        kind=Kind.CHOICE,
        concern=Concern.TRANSFER,
        default="warm",
        what="page caches of filecopy: warm (file read before, written data may stay in memory), or cold (file dropped "
        "from memory before, written data forced to the disk within the time)",
        choices=("warm", "cold"),
    ),
    Setting(
        name="client_args",
        kind=Kind.ARGUMENTS,
        concern=Concern.TRANSFER,
        default="",
        what="further arguments of the client, passed through and recorded",
    ),
    Setting(
        name="server_args",
        kind=Kind.ARGUMENTS,
        concern=Concern.TRANSFER,
        default="",
        what="further arguments of the server, passed through and recorded",
    ),
    Setting(
        name="peer",
        kind=Kind.TEXT,
        concern=Concern.PEER,
        default="own-host",
        what="the host side of a transfer: `own-host`, `other-host`, or a plain machine of the lab",
    ),
    Setting(
        name="migrate_at",
        kind=Kind.FRACTION,
        concern=Concern.MIGRATION,
        default=1 / 3,
        what="when the migration starts, as a share of the transfer",
    ),
    Setting(
        name="mover",
        kind=Kind.CHOICE,
        concern=Concern.MIGRATION,
        default="receiver",
        what="which VM moves",
        choices=("receiver", "sender"),
    ),
    Setting(
        name="migrate_back",
        kind=Kind.SWITCH,
        concern=Concern.MIGRATION,
        default=False,
        what="a second migration brings the VM home within the same transfer",
    ),
    Setting(
        name="migrate_bandwidth",
        kind=Kind.RATE,
        concern=Concern.MIGRATION,
        default=None,
        what="limit of the migration traffic",
        unit="bit/s",
    ),
    Setting(
        name="auto_converge",
        kind=Kind.SWITCH,
        concern=Concern.MIGRATION,
        default=False,
        what="the hypervisor may slow the VM down so that the migration ends",
    ),
    Setting(
        name="post_copy",
        kind=Kind.SWITCH,
        concern=Concern.MIGRATION,
        default=False,
        what="switch to post-copy after the first pass over memory",
    ),
)

SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _SETTINGS}
"""Settings with fixed names, by name."""

SCENARIO = "scenario"
"""The factor that every cell has."""


def find_setting(name: str) -> Setting | None:
    """The setting of this name, of the fixed ones or of an open family; None when there is none."""
    if name in SETTINGS:
        return SETTINGS[name]
    family, dot, rest = name.partition(".")
    if not dot or not rest:
        return None
    if family == "offload":
        return Setting(
            name=name,
            kind=Kind.SWITCH,
            concern=Concern.VM,
            default=None,
            what=f"{_offload(rest)} of the adapter, set in the VMs and read back",
        )
    if family == "host_offload":
        return Setting(
            name=name,
            kind=Kind.SWITCH,
            concern=Concern.HOST,
            default=None,
            what=f"{_offload(rest)} of the hosts' adapters under the test network, set for each run, read back, and restored",
        )
    if family == "host":
        return Setting(
            name=name,
            kind=Kind.TEXT,
            concern=Concern.HOST,
            default=None,
            what=f"fact {rest} that the lab file declares of its hosts",
        )
    if family == "own":
        return Setting(name=name, kind=Kind.TEXT, concern=Concern.OWN, default=None, what="a factor of your own")
    return None


def _offload(name: str) -> str:
    known = WINDOWS_OFFLOADS.get(name)
    return f"offload {name} ({known.what})" if known else f"offload {name}"
