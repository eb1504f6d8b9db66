"""Verification: what was asked for is read back inside the endpoint, never assumed. A mismatch is a `lab-error`."""

from __future__ import annotations

from collections.abc import Mapping

from labctl.errors import LabError
from labctl.model.nic import NIC_MODELS
from labctl.model.order import RunOrder, VmShape
from labctl.model.result import Fact
from workers.asked import Asked, check_mtu, check_path, check_tool, nic_mismatch, nic_missing, offload_mismatch
from workers.channels.base import Channel
from workers.channels.windows import WindowsChannel
from workers.guard import Deadline, Guard
from workers.verification_windows import read_windows_machine, verify_windows

LONG_OFFLOAD_NAMES = {
    "rx": "rx-checksumming",
    "tx": "tx-checksumming",
    "sg": "scatter-gather",
    "tso": "tcp-segmentation-offload",
    "ufo": "udp-fragmentation-offload",
    "gso": "generic-segmentation-offload",
    "gro": "generic-receive-offload",
    "lro": "large-receive-offload",
    "rxvlan": "rx-vlan-offload",
    "txvlan": "tx-vlan-offload",
}
"""Short names as `ethtool -K` takes them, and the long ones that `ethtool -k` prints (ethtool(8))."""

LINK_SECONDS = 10.0
"""How long a link may take to come up after the guest has."""

# One script and one round trip, with as few programs as can be: under software emulation each costs tens of milliseconds.
# Arguments: MAC of the adapter, MTU to set or empty, transfer tool, then words for `ethtool -K`.
GUEST_SCRIPT = """
want=$1; mtu=$2; tool=$3; shift 3
nic=
for path in /sys/class/net/*; do
  mac=; read -r mac < "$path/address"
  [ "$mac" = "$want" ] && nic=${path##*/}
done
read -r kernel < /proc/sys/kernel/osrelease
echo "nic=$nic"; echo "kernel=$kernel"
[ -n "$nic" ] || exit 0
at=/sys/class/net/$nic
[ -z "$mtu" ] || ip link set dev "$nic" mtu "$mtu" || echo "mtu.error=refused"
[ $# -eq 0 ] || echo "offload.error=$(ethtool -K "$nic" "$@" 2>&1 | head -n 1)"
value=; read -r value < $at/mtu; echo "mtu=$value"
value=; read -r value < $at/carrier; echo "link=$value"
value=; read -r value 2>/dev/null < $at/speed; echo "speed=$value"
ethtool -i "$nic" | while read -r key value; do
  case $key in
    driver:|version:|firmware-version:|bus-info:) echo "ethtool.${key%:}=$value" ;;
  esac
  if [ "$key" = bus-info: ]; then
    vendor=; device=
    [ ! -r "/sys/bus/pci/devices/$value/vendor" ] || read -r vendor < "/sys/bus/pci/devices/$value/vendor"
    [ ! -r "/sys/bus/pci/devices/$value/device" ] || read -r device < "/sys/bus/pci/devices/$value/device"
    echo "pci=${vendor#0x}:${device#0x}"
  fi
done
ethtool -k "$nic" | while read -r key value; do
  case $value in on*|off*) echo "feature.${key%:}=$value" ;; esac
done
ip -o -4 addr show dev "$nic" | while read -r index name family address rest; do echo "address=$address"; done
echo "tool=$("$tool" --version 2>&1 | head -n 1)"
"""

MACHINE_SCRIPT = """
read -r kernel < /proc/sys/kernel/osrelease
read -r host < /proc/sys/kernel/hostname
read -r load rest < /proc/loadavg
echo "kernel=$kernel"; echo "hostname=$host"; echo "load=$load"
echo "tool=$("$1" --version 2>&1 | head -n 1)"
"""


def differences(shape: VmShape, made: Mapping[str, Fact]) -> tuple[str, ...]:
    """Where what the hypervisor says it made is not what was asked for, in sentences. An unknown fact is no difference."""
    backend = None if shape.vhost is None else ("vhost" if shape.vhost else "qemu")
    asked: dict[str, Fact] = {
        "nic.model": shape.nic_model,
        "nic.queues": shape.queues,
        "nic.backend": backend,
        "vcpus": shape.vcpus,
        "memory_bytes": -(-shape.memory // 1024) * 1024,
    }
    return tuple(
        f"{name} is {made[name]}, though {value} was asked for"
        for name, value in asked.items()
        if value is not None and made.get(name) is not None and made[name] != value
    )


def prepare(channel: Channel, order: RunOrder) -> None:
    """Run the campaign's own commands in a VM. Raises `LabError` (`prepare-failed`)."""
    for command in order.prepare:
        result = channel.run(command, timeout=order.timeouts.command)
        if result.exit_code != 0:
            said = (result.stderr or result.stdout).decode(errors="replace").strip()[-300:]
            raise LabError(
                f"A `prepare` command failed in {channel.endpoint}: {' '.join(command)}",
                kind="prepare-failed",
                why=f"exit code {result.exit_code}: {said or 'nothing was printed'}",
                todo="Correct `prepare` in the campaign file, or the image.",
            )


def verify_vm(
    channel: Channel, asked: Asked, *, timeout: float, guard: Guard, set_up: bool = True
) -> Mapping[str, Fact]:
    """Set MTU and offloads, read everything back, and return it as facts. Waits for the adapter and its link.

    Without `set_up` nothing is set: what a migration has changed is then seen, not mended. Windows guests are known by their
    channel, and verified in the same way by `workers.verification_windows`.

    Raises `LabError`: `nic-missing`, `nic-mismatch`, `offload-mismatch`, `mtu-mismatch`, `address-missing`, `link-down`,
    `tool-missing`; each says what was asked and what was found.
    """
    if isinstance(channel, WindowsChannel):
        return verify_windows(channel, asked, guard=guard, set_up=set_up)
    deadline = Deadline.after(LINK_SECONDS)
    while True:
        facts = _read_vm(channel, asked, timeout=timeout, set_up=set_up)
        ready = facts.get("link") == 1 and asked.has(facts.get("address"))
        if ready or deadline.passed:
            break
        guard.sleep(0.05)
    _check_adapter(channel.endpoint, asked, facts)
    check_path(channel.endpoint, asked, up=facts.get("link") == 1, address=facts.get("address"), seconds=LINK_SECONDS)
    check_tool(channel.endpoint, asked.tool, facts.get("tool"))
    return facts


def read_machine(channel: Channel, *, tool: str, timeout: float) -> Mapping[str, Fact]:
    """Facts of a host or plain machine that is an endpoint. Raises `LabError` (`tool-missing`)."""
    if isinstance(channel, WindowsChannel):
        return read_windows_machine(channel, tool=tool)
    script = channel.run(["/bin/sh", "-c", MACHINE_SCRIPT, "labctl", tool], timeout=timeout)
    facts = _facts(script.require(f"Reading facts of {channel.endpoint}").stdout)
    check_tool(channel.endpoint, tool, facts.get("tool"))
    return facts


def _read_vm(channel: Channel, asked: Asked, *, timeout: float, set_up: bool) -> dict[str, Fact]:
    wanted = asked.shape.offloads.items() if set_up else ()
    offloads = [word for name, on in wanted for word in (name, "on" if on else "off")]
    mtu = str(asked.shape.mtu) if set_up and asked.shape.mtu is not None else ""
    script = channel.run(
        ["/bin/sh", "-c", GUEST_SCRIPT, "labctl", asked.mac, mtu, asked.tool, *offloads], timeout=timeout
    )
    return _facts(script.require(f"Verifying {channel.endpoint}").stdout)


def _facts(printed: bytes) -> dict[str, Fact]:
    """`key=value` lines as facts; whole numbers become ints, empty values None."""
    facts: dict[str, Fact] = {}
    for line in printed.decode(errors="replace").splitlines():
        key, equals, value = line.partition("=")
        if equals:
            text = value.strip()
            facts[key] = int(text) if text.lstrip("-").isdigit() else (text or None)
    return facts


def _check_adapter(endpoint: str, asked: Asked, facts: Mapping[str, Fact]) -> None:
    model = NIC_MODELS[asked.shape.nic_model]
    if not facts.get("nic"):
        raise nic_missing(endpoint, asked)
    driver, pci = str(facts.get("ethtool.driver") or ""), str(facts.get("pci") or "")
    if (model.linux_drivers and driver not in model.linux_drivers) or (model.pci_ids and pci not in model.pci_ids):
        raise nic_mismatch(
            endpoint,
            wanted=f"{model.name} (driver {' or '.join(model.linux_drivers)}, PCI {' or '.join(model.pci_ids) or 'none'})",
            found=f"driver {driver or 'none'}, PCI {pci or 'none'}",
        )
    for name, on in asked.shape.offloads.items():
        found = str(facts.get(f"feature.{LONG_OFFLOAD_NAMES.get(name, name)}") or "absent")
        if found.split()[0] != ("on" if on else "off"):
            why = str(facts.get("offload.error") or "The driver keeps it fixed.")
            raise offload_mismatch(endpoint, asked, name, found=found, why=why)
    check_mtu(endpoint, asked, facts.get("mtu"))
