"""Network namespaces: made complete, looked at, removed, and the processes that live in them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from labctl.errors import LabError
from workers.guard import Deadline
from workers.locallab.system import attempt, run
from workers.locallab.topology import Interface, Namespace, Topology

FOLDER = Path("/run/netns")
"""Where iproute2 keeps named namespaces (ip-netns(8))."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """An interface as the kernel has it."""

    mac: str
    mtu: int
    up: bool
    master: str
    addresses: frozenset[str]


def look(namespace: str | None) -> Mapping[str, Seen] | None:
    """The interfaces of a namespace (None: of this machine's own) by name; None when there is no such namespace."""
    if namespace is not None and not (FOLDER / namespace).exists():
        return None
    where = [] if namespace is None else ["-netns", namespace]
    listed = attempt(["ip", *where, "-json", "address", "show"])
    if listed.returncode != 0:
        return None
    return {
        link["ifname"]: Seen(
            mac=link.get("address", ""),
            mtu=link["mtu"],
            up="UP" in link["flags"],
            master=link.get("master", ""),
            addresses=frozenset(
                f"{address['local']}/{address['prefixlen']}"
                for address in link["addr_info"]
                if address["family"] == "inet"
            ),
        )
        for link in json.loads(listed.stdout or "[]")
    }


def complete(namespace: Namespace, seen: Mapping[str, Seen] | None, switch: Mapping[str, Seen] | None) -> bool:
    """Whether all that makes a namespace is there: its own interfaces, and its ends in the switch."""
    if seen is None or switch is None:
        return False
    return (
        "lo" in seen
        and seen["lo"].up
        and all(_matches(wanted, seen.get(wanted.name)) for wanted in namespace.interfaces)
        and all(_attached(switch.get(port), bridge) for port, bridge in namespace.attachments.items())
    )


def uplink_complete(topology: Topology, own: Mapping[str, Seen], switch: Mapping[str, Seen]) -> bool:
    """Whether this machine is joined to the management network."""
    uplink = topology.uplink
    return _matches(uplink, own.get(uplink.name)) and _attached(switch.get(uplink.peer), "management")


def _matches(wanted: Interface, seen: Seen | None) -> bool:
    addresses = frozenset() if wanted.address is None else frozenset({str(wanted.address)})
    return seen == Seen(mac=wanted.mac, mtu=wanted.mtu, up=True, master=wanted.master, addresses=addresses)


def _attached(seen: Seen | None, bridge: str) -> bool:
    return seen is not None and seen.up and seen.master == bridge


def make_switch(topology: Topology) -> None:
    """Make the switch namespace with its bridges."""
    _make(topology.switch.name)
    commands = ["link set dev lo up"]
    for bridge in topology.switch.interfaces:
        commands += _bridge(bridge)
    _batch(topology.switch.name, commands)


def make_member(topology: Topology, namespace: Namespace) -> None:
    """Make the namespace of a host or machine and join it to the switch. There must be none of its name."""
    switch = topology.switch.name
    _make(namespace.name)
    commands = ["link set dev lo up"]
    for interface in namespace.interfaces:
        if not interface.peer:
            commands += _bridge(interface)
            continue
        _drop(switch, interface.peer)
        commands.append(
            f"link add {interface.name} address {interface.mac} mtu {interface.mtu} "
            f"type veth peer name {interface.peer} mtu {interface.mtu} netns {switch}"
        )
        commands += _finish(interface)
    _batch(namespace.name, commands)
    _batch(switch, [f"link set dev {port} master {bridge} up" for port, bridge in namespace.attachments.items()])


def make_uplink(topology: Topology) -> None:
    """Join this machine to the management network."""
    uplink = topology.uplink
    remove_uplink(topology)
    _drop(topology.switch.name, uplink.peer)
    _batch(
        None,
        [
            f"link add {uplink.name} address {uplink.mac} mtu {uplink.mtu} "
            f"type veth peer name {uplink.peer} mtu {uplink.mtu} netns {topology.switch.name}",
            f"link set dev {uplink.name} addrgenmode none",
            *_finish(uplink),
        ],
    )
    _batch(topology.switch.name, [f"link set dev {uplink.peer} master management up"])


def remove_uplink(topology: Topology) -> None:
    """Take this machine off the management network. `LabError` (`not-ours`) when the interface is somebody else's."""
    seen = (look(None) or {}).get(topology.uplink.name)
    if seen is None:
        return
    if seen.mac != topology.uplink.mac:
        raise LabError(
            f"There is an interface {topology.uplink.name} here that labctl did not make.",
            kind="not-ours",
            why=f"Its hardware address is {seen.mac}; that of the lab's is {topology.uplink.mac}.",
            todo="Rename or remove that interface, or give the lab another name.",
        )
    _drop(None, topology.uplink.name)


def remove(namespace: str) -> None:
    """Remove a namespace by name, complete or not. Its processes have to be ended before."""
    attempt(["ip", "netns", "delete", namespace])
    with suppress(FileNotFoundError):
        (FOLDER / namespace).unlink()


def names(prefix: str) -> tuple[str, ...]:
    """All namespaces whose name begins so, also half-made ones."""
    try:
        return tuple(sorted(entry.name for entry in FOLDER.iterdir() if entry.name.startswith(prefix)))
    except FileNotFoundError:
        return ()


def _make(name: str) -> None:
    run(["ip", "netns", "add", name], what=f"Making the network namespace {name}")
    run(["ip", "netns", "exec", name, "sh", "-c", _NO_IPV6], what=f"Setting up the network namespace {name}")


_NO_IPV6 = 'for of in all default; do f=/proc/sys/net/ipv6/conf/$of/disable_ipv6; [ ! -e "$f" ] || echo 1 >"$f"; done'
"""Nothing here speaks IPv6, and its neighbour discovery on every new tap would disturb what is measured."""


def _bridge(bridge: Interface) -> list[str]:
    """A bridge that forwards from its first moment on and passes multicast like a simple switch."""
    return [
        f"link add {bridge.name} address {bridge.mac} type bridge forward_delay 0 stp_state 0 mcast_snooping 0",
        f"link set dev {bridge.name} mtu {bridge.mtu}",
        *_finish(bridge),
    ]


def _finish(interface: Interface) -> list[str]:
    commands = [] if interface.address is None else [f"address add {interface.address} dev {interface.name}"]
    master = f" master {interface.master}" if interface.master else ""
    return [*commands, f"link set dev {interface.name}{master} up"]


def _batch(namespace: str | None, commands: Sequence[str]) -> None:
    where = [] if namespace is None else ["-netns", namespace]
    owner = "of this machine" if namespace is None else namespace
    run(["ip", *where, "-batch", "-"], what=f"Setting up the network {owner}", stdin="\n".join(commands) + "\n")


def _drop(namespace: str | None, interface: str) -> None:
    """Delete an interface and with it its peer, if it is there."""
    where = [] if namespace is None else ["-netns", namespace]
    attempt(["ip", *where, "link", "delete", "dev", interface])


MARK = "/run"
"""Every daemon of ours has a file system of its own mounted here, whose source is the name of its namespace."""


def processes(prefix: str) -> Mapping[int, str]:
    """All processes of a lab: by pid, the name of the namespace that they belong to.

    A process belongs to a lab when it is in one of its network namespaces, or when the mark of the lab is mounted in
    its mount namespace; so it is also found when somebody has deleted the name of its network namespace.
    """
    named = _identities(prefix)
    own_mounts = _identity("/proc/self/ns/mnt")
    marks: dict[tuple[int, int] | None, str] = {own_mounts: "", None: ""}
    found: dict[int, str] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - thousands of entries, of which only names are needed
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        namespace = named.get(_identity(f"/proc/{entry}/ns/net"), "")
        if not namespace:
            mounts = _identity(f"/proc/{entry}/ns/mnt")
            if mounts not in marks:
                marks[mounts] = _mark(entry)
            namespace = marks[mounts] if marks[mounts].startswith(prefix) else ""
        if namespace:
            found[int(entry)] = namespace
    return found


def _identities(prefix: str) -> Mapping[tuple[int, int] | None, str]:
    """Names of a lab's network namespaces by their identity; never the namespace that we are in ourselves."""
    own = {_identity("/proc/self/ns/net"), _identity("/proc/1/ns/net"), None}
    identities = {_identity(str(FOLDER / name)): name for name in names(prefix)}
    return {identity: name for identity, name in identities.items() if identity not in own}


def _identity(path: str) -> tuple[int, int] | None:
    """Device and inode of a namespace; None when it can't be told (a zombie, a process that just ended)."""
    try:
        status = os.stat(path)  # noqa: PTH116 - called for every process
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _mark(pid: str) -> str:
    """The source of our mount on /run in the mount namespace of a process (proc(5), mountinfo); empty without one."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/mountinfo").read_text(errors="replace").splitlines():
            fields, _, rest = line.partition(" - ")
            source = rest.split()[1] if rest else ""
            if fields.split()[4] == MARK and source.startswith("labctl-"):
                return source
    return ""


def command_line(pid: int) -> tuple[str, ...]:
    """The arguments of a process, its program first; empty when it is gone."""
    try:
        return tuple(Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0"))
    except OSError:
        return ()


def command_name(pid: int) -> str:
    """The name of a process's program (15 characters at most); empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def end_processes(find: Callable[[], Iterable[int]], *, grace: float = 3.0, deadline: float = 15.0) -> None:
    """End all processes that `find` gives, and those that appear meanwhile: SIGTERM first, SIGKILL after `grace`.

    Raises `LabError` (`lab-setup`) when some are still there at the deadline.
    """
    gentle, end = Deadline.after(grace), Deadline.after(deadline)
    told: set[int] = set()
    while pids := set(find()):
        if end.passed:
            raise LabError(
                f"Processes of the lab don't end: {', '.join(map(str, sorted(pids)))}.",
                kind="lab-setup",
                why=f"They got SIGKILL and were still there after {deadline:g} s.",
                todo="Look at them with ps, then run `labctl lab down` again.",
            )
        for pid in pids:
            with suppress(ProcessLookupError):
                if gentle.passed:
                    os.kill(pid, signal.SIGKILL)
                elif pid not in told:
                    os.kill(pid, signal.SIGTERM)
        told |= pids
        time.sleep(0.02)
