"""Guests of simulated VMs, in which real programs run: namespaces on one bridge, reached by SSH from this machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path

from labctl.model.nic import NIC_MODELS
from labctl.spec.embedded import BENCHMARK_NETWORK
from tests.simulators.base import Guest
from workers.guard import Deadline
from workers.locallab import namespaces
from workers.locallab.members import passwd
from workers.locallab.system import ENVIRONMENT, attempt, run

BOOT_SECONDS = 30.0
BRIDGE = re.compile(r"lw(\d+)-\d+")
"""Bridges of worlds: the id of the process that made it, and a number."""

DIRECTORY = "labctl-world-"
"""Their directories among the temporary ones: this, and the name of the bridge."""

MTU = 9000
"""What the bridge carries. Guests begin with 1500 and may be given more."""

PASSED_THROUGH = {"vt-d": ("igb", "8086:1521"), "sr-iov": ("ixgbevf", "8086:10ed")}
"""What guests see of adapters whose driver depends on the machine: an Intel I350, a virtual function of an 82599."""

_worlds = iter(range(1, 1 << 30))


@dataclass(frozen=True, kw_only=True)
class _Running:
    """A guest that runs. `pid` is that of a process in it, as this machine knows it."""

    process: subprocess.Popen[str]
    pid: int
    link: str
    """Its end on the bridge."""
    address: IPv4Interface


class GuestWorld:
    """A `World`. Guests and bridge are gone after `close`; guests also when this process is killed, and the rest then
    with the next world on this machine. Needs root.

    `network` is theirs, its first address this machine's; by default a free /24 of 198.18.0.0/15.
    """

    def __init__(self, network: IPv4Network | None = None) -> None:
        _remove_what_the_dead_have_left()
        self.network = network or _free_network()
        self.gateway = IPv4Interface(f"{self.network[1]}/{self.network.prefixlen}")
        """This machine's own address in the world."""
        self.bridge = f"lw{os.getpid()}-{next(_worlds)}"
        self._directory = Path(tempfile.mkdtemp(prefix=f"{DIRECTORY}{self.bridge}-"))
        self._lock = threading.Lock()
        self._guests: dict[str, _Running] = {}
        self._links = iter(range(1, 1 << 30))
        self._leases: set[IPv4Address] = set()
        self._make_keys()
        _ip(
            f"link add {self.bridge} type bridge forward_delay 0 stp_state 0 mcast_snooping 0",
            f"link set dev {self.bridge} mtu {MTU} addrgenmode none",
            f"address add {self.gateway} dev {self.bridge}",
            f"link set dev {self.bridge} up",
        )

    @property
    def key(self) -> Path:
        """See `World`."""
        return self._directory / "key"

    @property
    def known_hosts(self) -> Path:
        """See `World`."""
        return self._directory / "known_hosts"

    def __enter__(self) -> GuestWorld:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def boot(self, guest: Guest) -> IPv4Interface:
        """See `World`. It takes about a tenth of a second; then its SSH server answers."""
        with self._lock:
            if guest.name in self._guests:
                raise ValueError(f"a guest {guest.name} runs already")
            address = guest.address or self._lease()
            link = f"{self.bridge.split('-')[0]}x{next(self._links)}"
        running = self._start(guest, address, link)
        with self._lock:
            self._guests[guest.name] = running
        return address

    def enter(self, name: str) -> tuple[str, ...]:
        """What to put before a command line so that it runs in a guest, with the guest's own process ids."""
        return ("nsenter", "--target", str(self._guests[name].pid), "--net", "--mount", "--uts", "--pid", "--")

    def names(self) -> frozenset[str]:
        """The guests that run."""
        return frozenset(self._guests)

    def root(self, name: str) -> Path:
        """The guest's file system as this machine sees it."""
        return Path(f"/proc/{self._guests[name].pid}/root")

    def pause(self, name: str) -> None:
        """See `World`."""
        _freeze(self._guests[name].pid)

    def resume(self, name: str) -> None:
        """See `World`."""
        for pid in processes_in(self._guests[name].pid):
            _signal(pid, signal.SIGCONT)

    def stun(self, name: str, seconds: float) -> None:
        """See `World`. A guest that is ended meanwhile is none any more afterwards.

        Its port of the bridge passes nothing meanwhile, because the kernel goes on for guests that stand still. The guest
        sees no loss of its link, as with real hypervisors; Linux would take up to a second to believe in it again.
        """
        guest = self._guests[name]
        _freeze(guest.pid)
        attempt(["bridge", "link", "set", "dev", guest.link, "state", "disabled"])
        time.sleep(seconds)
        attempt(["bridge", "link", "set", "dev", guest.link, "state", "forwarding"])
        for pid in processes_in(guest.pid):
            _signal(pid, signal.SIGCONT)

    def stop(self, name: str) -> None:
        """See `World`."""
        with self._lock:
            guest = self._guests.pop(name, None)
            if guest is None:
                return
            self._leases.discard(guest.address.ip)
        _end(guest.process, guest.link)

    def close(self) -> None:
        """See `World`."""
        for name in tuple(self._guests):
            self.stop(name)
        _ip(f"link delete dev {self.bridge}")
        shutil.rmtree(self._directory)

    def _lease(self) -> IPv4Interface:
        """An address by DHCP: the first free one of the upper half of the network."""
        half = self.network.num_addresses // 2
        taken = {guest.address.ip for guest in self._guests.values()} | self._leases
        free = next(self.network[half + at] for at in range(half - 1) if self.network[half + at] not in taken)
        self._leases.add(free)
        return IPv4Interface(f"{free}/{self.network.prefixlen}")

    def _start(self, guest: Guest, address: IPv4Interface, link: str) -> _Running:
        files = self._directory / "guests" / guest.name
        self._write_files(files, guest)
        process = subprocess.Popen(
            [
                *(
                    "unshare",
                    "--net",
                    "--mount",
                    "--uts",
                    "--pid",
                    "--fork",
                    "--kill-child",
                    "--propagation",
                    "private",
                ),
                *("tini", "--", "sh", str(Path(__file__).with_name("guest.sh"))),
                *(str(self._directory / "stage"), str(files), str(address), str(self.gateway.ip)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(files.parent / f"{guest.name}.log").open("w"),
            env={**ENVIRONMENT},
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        overdue = threading.Timer(BOOT_SECONDS, process.kill)
        overdue.start()
        try:
            pid = int(process.stdout.readline())
            _ip(
                f"link add {link} mtu {MTU} type veth peer name eth0 address {guest.mac} netns {pid}",
                f"link set dev {link} addrgenmode none",
                f"link set dev {link} master {self.bridge} up",
            )
            process.stdin.write("\n")
            process.stdin.flush()
            if process.stdout.readline() != "up\n":
                raise ValueError("it did not come up")
        except (ValueError, OSError) as error:
            _end(process, link)
            said = (files.parent / f"{guest.name}.log").read_text(errors="replace")
            raise RuntimeError(f"guest {guest.name} does not boot: {said[-1000:]}") from error
        finally:
            overdue.cancel()
        return _Running(process=process, pid=pid, link=link, address=address)

    def _write_files(self, files: Path, guest: Guest) -> None:
        """What a guest has in /run when it boots."""
        shutil.rmtree(files, ignore_errors=True)
        files.mkdir(parents=True)
        driver, pci = _appearance(guest.nic_model)
        bus = "0000:0b:00.0" if pci else ""
        (files / "hostname").write_text(f"{guest.name}\n")
        (files / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {guest.name}\n")
        (files / "passwd").write_text(passwd(Path("/etc/passwd").read_text(), Path("/run/root")))
        (files / "pci").write_text(f"{bus} {pci.replace(':', ' ')}\n")
        (files / "ethtool").write_text(_ETHTOOL.format(driver=driver, bus=bus))
        (files / "ethtool").chmod(0o755)
        shutil.copy(self._directory / "host_key", files)
        shutil.copy(self.key.with_suffix(".pub"), files / "authorized_keys")

    def _make_keys(self) -> None:
        """One key for whoever logs in, and one host key for all guests, which may have any address of the network."""
        (self._directory / "stage").mkdir()
        host_key = self._directory / "host_key"
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)], what="Making a key")
        run(["dropbearkey", "-t", "ed25519", "-f", str(host_key)], what="Making a host key")
        shown = run(["dropbearkey", "-y", "-f", str(host_key)], what="Reading a host key")
        public = next(line for line in shown.splitlines() if line.startswith("ssh-ed25519 "))
        kind, content = public.split()[:2]
        self.known_hosts.write_text("".join(f"{address} {kind} {content}\n" for address in self.network.hosts()))


_ETHTOOL = """\
#!/bin/sh
# Names the driver of the adapter that the VM was given; all else is that of the veth which it really is.
[ "$1" = -i ] || exec /run/ethtool.real "$@"
/run/ethtool.real "$@" | sed -e 's/^driver: .*/driver: {driver}/' -e 's/^bus-info:.*/bus-info: {bus}/'
"""


def _appearance(nic_model: str) -> tuple[str, str]:
    """The driver and the `vendor:device` that a guest sees; the latter empty for an adapter that is on no PCI bus."""
    if nic_model in PASSED_THROUGH:
        return PASSED_THROUGH[nic_model]
    model = NIC_MODELS[nic_model]
    return model.linux_drivers[0], model.pci_ids[0] if model.pci_ids else ""


def _end(process: subprocess.Popen[str], link: str) -> None:
    """End a guest: its first process dies with this one, and all others with that."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    attempt(["ip", "link", "delete", "dev", link])


def _freeze(pid: int) -> None:
    """Stop all processes of a guest, and wait until they stand still.

    Two looks have to find nothing that moves: one that is started while the first goes on may be missed by it.
    """
    deadline = Deadline.after(5.0)
    quiet = 0
    while quiet < 2:
        moving = [one for one in processes_in(pid) if _state(one) not in STANDING_STILL]
        quiet = 0 if moving else quiet + 1
        if deadline.passed:
            raise RuntimeError(f"processes of a guest can't be frozen: {moving}")
        for one in moving:
            _signal(one, signal.SIGSTOP)


STANDING_STILL = "TtZX"
"""States of processes that do nothing: stopped, being traced, dead (proc(5), stat)."""


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def processes_in(pid: int) -> Iterable[int]:
    """All processes in the PID namespace of one, by the ids that they have outside."""
    wanted = _pid_namespace(str(pid))
    if wanted is None:
        return ()
    entries = (entry.name for entry in Path("/proc").iterdir())
    return [int(entry) for entry in entries if entry.isdigit() and _pid_namespace(entry) == wanted]


def _pid_namespace(pid: str) -> int | None:
    try:
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    except OSError:
        return None


def _signal(pid: int, which: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, which)


def _ip(*commands: str) -> None:
    run(["ip", "-batch", "-"], what="Changing the network of the guests", stdin="\n".join(commands) + "\n")


def _free_network() -> IPv4Network:
    """A /24 for benchmarks (RFC 2544) that no interface of this machine is in; which one differs between processes."""
    seen = namespaces.look(None) or {}
    taken = [IPv4Interface(address).network for interface in seen.values() for address in interface.addresses]
    blocks = list(BENCHMARK_NETWORK.subnets(new_prefix=24))
    first = os.getpid() * 7 % len(blocks)
    return next(
        block for block in blocks[first:] + blocks[:first] if not any(block.overlaps(network) for network in taken)
    )


def _remove_what_the_dead_have_left() -> None:
    for interface in namespaces.look(None) or {}:
        if _maker_is_dead(interface):
            attempt(["ip", "link", "delete", "dev", interface])
    for directory in Path(tempfile.gettempdir()).glob(f"{DIRECTORY}lw*"):
        if _maker_is_dead(directory.name.removeprefix(DIRECTORY)):
            shutil.rmtree(directory, ignore_errors=True)


def _maker_is_dead(name: str) -> bool:
    named = BRIDGE.match(name)
    return named is not None and not Path(f"/proc/{named[1]}").exists()
