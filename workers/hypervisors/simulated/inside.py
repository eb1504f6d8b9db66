"""The inside of simulated endpoints: what commands print there, and the programs that move data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from labctl import clock
from labctl.errors import LabError
from labctl.model.nic import NIC_MODELS, NicModel
from labctl.model.result import ClockOffset
from workers.channels.base import ChannelError
from workers.channels.simulated import Program, Said
from workers.hypervisors.base import Vm
from workers.hypervisors.simulated import vm as vms
from workers.hypervisors.simulated.asked import TOOLS, VERSIONS, asked
from workers.hypervisors.simulated.lines import End, Side
from workers.hypervisors.simulated.programs import Client, Other, Server
from workers.hypervisors.simulated.world import NoAnswerError, World
from workers.verification import GUEST_SCRIPT, LONG_OFFLOAD_NAMES, MACHINE_SCRIPT

_OFF_BY_DEFAULT = frozenset({"lro", "ufo"})
_PASSED_THROUGH = ("ixgbevf", "8086:10ed")
"""Driver and PCI id of an adapter that is passed through."""


class _Inside:
    """What all endpoints have in common."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._files: dict[str, bytes] = {}

    @property
    def name(self) -> str:
        """Whose inside it is, for messages."""
        return self._name

    def touch(self, operation: str, *, seconds: float) -> None:
        """The line before an operation inside: faults strike here."""
        host, vm = self._place()
        try:
            failing = self._world.before(operation, host, vm, seconds=seconds, interruptible=True)
        except NoAnswerError as error:
            kind = "channel-timeout" if error.late else "channel-unreachable"
            raise ChannelError(f"{self._name} doesn't answer.", kind=kind, why=error.what, host=host) from error
        if failing:
            raise ChannelError(f"{self._name} refuses: {operation}.", kind="command-failed", host=host)

    def read_file(self, path: str) -> bytes:
        """The content of a file that was written here."""
        try:
            return self._files[path]
        except KeyError:
            raise ChannelError(f"There is no file {path} in {self._name}.", kind="command-failed") from None

    def write_file(self, path: str, content: bytes) -> None:
        """Create or replace a file."""
        self._files[path] = content

    def clock(self) -> ClockOffset:
        """Some milliseconds beside the worker's, always the same."""
        return ClockOffset(seconds=0.005 * (self._world.like(1.0, "clock", self._name) - 1.0), uncertainty=0.0005)

    def execute(self, argv: Sequence[str], stdin: bytes) -> Said:
        """Run a command. What the model knows nothing of succeeds and prints nothing."""
        del stdin
        self._world.spend(self._world.figures.command, self._place()[0])
        program = argv[0].rpartition("/")[2]
        if program == "sh" and len(argv) > 3:
            return self._script(argv[2], argv[4:])
        if program == "hostname":
            return _printed(self._hostname())
        if program == "false":
            return Said(exit_code=1)
        if program == "ping":
            return Said(exit_code=0 if self._answers(argv[-1]) else 1)
        if program in TOOLS and "--version" in argv:
            return _printed(VERSIONS[program])
        return Said()

    def start(self, argv: Sequence[str], *, ready_port: int | None, lifetime: float) -> Program:
        """Start a program: a server or client of a transfer tool, or one that sits there for its lifetime."""
        order = asked(argv)
        if order is None:
            return Other(clock.monotonic() + lifetime)
        if not order.server:
            return Server(self._world, self._side(), order, ready_port or order.port)
        return Client(self._world, self._side(), order)

    def _script(self, script: str, arguments: Sequence[str]) -> Said:
        if script == MACHINE_SCRIPT:
            return _printed(
                "kernel=6.1.0-simulated",
                f"hostname={self._hostname()}",
                "load=0.10",
                f"tool={VERSIONS.get(arguments[0], f'sh: {arguments[0]}: not found')}",
            )
        return Said()

    def _place(self) -> tuple[str, str]:
        """The host that it is on and the name of the VM, empty for a machine itself."""
        raise NotImplementedError

    def _hostname(self) -> str:
        raise NotImplementedError

    def _side(self) -> Side:
        raise NotImplementedError

    def _answers(self, address: str) -> bool:
        """Whether anybody in the lab has this address."""
        lab = self._world.lab
        known = [one.address for one in lab.hosts.values()] + [one.address for one in lab.machines.values()]
        if any(one is not None and str(one.ip) == address for one in known):
            return True
        return any(vms.address_of(vm) == address for host in lab.hosts for vm in vms.everything(self._world, host))


class MachineInside(_Inside):
    """The inside of a host or of a plain machine."""

    def __init__(self, world: World, machine: str) -> None:
        kind = "host" if machine in world.lab.hosts else "machine"
        super().__init__(world, f"{kind} {machine}")
        self._machine = machine

    def ready(self) -> float | None:
        """Machines always answer."""
        return 0.0

    def _place(self) -> tuple[str, str]:
        return self._machine, ""

    def _hostname(self) -> str:
        return self._machine

    def _side(self) -> Side:
        lab = self._world.lab
        member = lab.hosts[self._machine] if self._machine in lab.hosts else lab.machines[self._machine]
        return Side(
            end=lambda _moment: End(name=self._name, host=self._machine),
            address=str(member.address.ip) if member.address is not None else "",
            alive=self._alive,
        )

    def _alive(self) -> bool:
        try:
            self._world.before("answer", self._machine)
        except LabError:
            return False
        return True


class VmInside(_Inside):
    """The inside of a VM, wherever it is now."""

    def __init__(self, world: World, vm: Vm, find: Callable[[], vms.Presence | None]) -> None:
        """`find` gives the VM as its host has it now; None when it is on no host."""
        super().__init__(world, f"vm {vm.name}")
        self._vm = vm
        self._find = find
        self._mtu = 1500
        self._offloads: dict[str, bool] = {}
        self._host = vm.host

    def ready(self) -> float | None:
        """When its guest answers; None for one that never does, or that stands still."""
        presence = self._require()
        return None if presence.paused else presence.ready

    def _require(self) -> vms.Presence:
        presence = self._find()
        if presence is None:
            raise ChannelError(
                f"The VM {self._vm.name} doesn't run on any host.",
                kind="channel-unreachable",
                why="It has ended, by itself or by somebody else.",
                host=self._host,
            )
        self._host = presence.host
        return presence

    def _place(self) -> tuple[str, str]:
        return self._require().host, self._vm.name

    def _hostname(self) -> str:
        return self._vm.name

    def _side(self) -> Side:
        presence = self._require()
        name, shape, home = presence.name, presence.shape, presence.host

        def end(moment: float) -> End:
            return End(name=name, host=self._world.lines.host_of(name, moment, home), shape=shape)

        return Side(end=end, address=vms.address_of(presence), alive=self._alive, vm=name)

    def _alive(self) -> bool:
        presence = self._find()
        if presence is None:
            return False
        try:
            self._world.before("answer", presence.host, presence.name)
        except LabError:
            return False
        return self._find() is not None

    def _script(self, script: str, arguments: Sequence[str]) -> Said:
        if script != GUEST_SCRIPT:
            return super()._script(script, arguments)
        mac, mtu, tool, *words = arguments
        presence = self._require()
        model = NIC_MODELS[presence.shape.nic_model]
        if mac != presence.mac:
            return _printed("nic=", "kernel=6.1.0-simulated")
        self._mtu = int(mtu) if mtu else self._mtu
        refused = [name for name in words[::2] if not _can_switch(model, name)]
        self._offloads |= {name: on == "on" for name, on in zip(words[::2], words[1::2], strict=True)}
        driver, pci = _identity(model)
        lines = ["nic=eth0", "kernel=6.1.0-simulated"]
        if words:
            lines.append(f"offload.error={f'Cannot change {refused[0]}' if refused else ''}")
        lines += [f"mtu={self._mtu}", "link=1", "speed=", f"ethtool.driver={driver}", "ethtool.version=simulated"]
        lines += [f"pci={pci}", *(f"feature.{long}={self._feature(model, name)}" for name, long in _FEATURES)]
        lines += [f"address={presence.address}", f"tool={VERSIONS.get(tool, f'sh: {tool}: not found')}"]
        return _printed(*lines)

    def _feature(self, model: NicModel, name: str) -> str:
        if not _can_switch(model, name):
            return "off [fixed]"
        return "on" if self._offloads.get(name, name not in _OFF_BY_DEFAULT) else "off"


_FEATURES = tuple(LONG_OFFLOAD_NAMES.items())


def _can_switch(model: NicModel, name: str) -> bool:
    return model.offloads is None or name in model.offloads


def _identity(model: NicModel) -> tuple[str, str]:
    """Driver and PCI id that a guest sees."""
    if model.passthrough:
        return _PASSED_THROUGH
    return (model.linux_drivers or ("simulated",))[0], (model.pci_ids or ("",))[0]


def _printed(*lines: str) -> Said:
    return Said(stdout="\n".join((*lines, "")).encode())
