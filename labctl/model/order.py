"""Work orders: everything that one attempt must know, resolved from the campaign, the cell and the lab."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from labctl.model.campaign import QuietWait, Timeouts
from labctl.model.lab import GuestSystem
from labctl.model.scenario import Scenario, Side
from labctl.model.settings import Level


@dataclass(frozen=True, kw_only=True)
class VmShape:
    """What a VM is asked to be. Memory in bytes, MTU in bytes."""

    image: str
    nic_model: str
    vcpus: int
    memory: int
    queues: int
    machine_type: str
    vhost: bool | None = None
    mtu: int | None = None
    offloads: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TransferOrder:
    """One measured movement of data, to be made by a tool. Seconds, bytes, bit/s."""

    tool: str
    seconds: float
    interval: float
    streams: int = 1
    window: int | None = None
    buffer: int | None = None
    protocol: str = "tcp"
    rate: int | None = None
    reverse: bool = False
    """The server sends; with `both` it sends too."""
    both: bool = False
    mss: int | None = None
    congestion: str = ""
    dscp: int | None = None
    family: str = "ipv4"
    omit: float = 0.0
    zerocopy: bool = False
    latency: int | None = None
    """Echo requests per second beside the transfer; None: no latency probe."""
    copy: str = "stream"
    size: int = 0
    medium: str = "ram"
    cache: str = "warm"
    sender_system: GuestSystem = GuestSystem.LINUX
    receiver_system: GuestSystem = GuestSystem.LINUX
    client_args: tuple[str, ...] = ()
    server_args: tuple[str, ...] = ()

    @property
    def direction(self) -> str:
        """As the setting says it: `forward`, `reverse` or `both`."""
        return "both" if self.both else "reverse" if self.reverse else "forward"

    @property
    def client_system(self) -> GuestSystem:
        """What the client runs on, which receives when `reverse`."""
        return self.receiver_system if self.reverse and not self.both else self.sender_system

    @property
    def server_system(self) -> GuestSystem:
        """What the server runs on."""
        return self.sender_system if self.reverse and not self.both else self.receiver_system


@dataclass(frozen=True, kw_only=True)
class MigrationOrder:
    """Which VM moves, when (share of the transfer), and how. Bandwidth in bit/s, deadline in seconds."""

    mover: Side
    at: float
    back: bool
    bandwidth: int | None
    auto_converge: bool
    post_copy: bool
    deadline: float


@dataclass(frozen=True, kw_only=True)
class EndpointOrder:
    """One side of the transfer: a VM on `host` (`vm` true), a host itself, or a plain machine."""

    side: Side
    host: str
    """Name of the host, or of the plain machine when `machine` is true."""
    vm: bool
    machine: bool = False


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where the two endpoints start, and where the moving one goes. `destination` is empty when nothing moves."""

    sender: EndpointOrder
    receiver: EndpointOrder
    destination: str = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of all hosts and plain machines that the run uses, each once, in order of first use."""
        names = [self.sender.host, self.receiver.host, self.destination]
        return tuple(dict.fromkeys(name for name in names if name))


@dataclass(frozen=True, kw_only=True)
class RunOrder:
    """One replicate of a cell, ready to be executed by an attempt."""

    scenario: Scenario
    placement: Placement
    vm: VmShape | None
    transfer: TransferOrder
    warmup: TransferOrder
    warmups: int
    transfers: int
    migration: MigrationOrder | None
    prepare: tuple[tuple[str, ...], ...]
    timeouts: Timeouts
    reuse: bool
    settings: Mapping[str, Level]
    """All settings of the run in canonical form, for the record."""
    quiet: QuietWait | None = None
    """How to wait for quiet hosts before transfers; None: the lab has no quiet limits."""
    host_offloads: Mapping[str, bool] = field(default_factory=dict)
    """Offloads that the hosts of the run shall have on or off; what they were before is restored afterwards."""
