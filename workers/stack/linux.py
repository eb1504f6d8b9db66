"""The network stack of a Linux host: features of its adapters, by ethtool(8).

`ethtool -k` prints features in groups (`tcp-segmentation-offload` and, indented below it, its parts), and of each whether
the driver keeps it fixed. Groups are what people name; parts are what is recorded and restored, because switching a group
on switches parts on that were off before.
"""

from __future__ import annotations

from collections.abc import Sequence

from workers.channels.base import Channel
from workers.stack.base import Knob, Reading
from workers.verification import LONG_OFFLOAD_NAMES

CALL_SECONDS = 60.0
"""How long a script may take; the one that sets features waits up to half of it for links."""

# Adapters under the test network: from its bridge, and from whatever has the host's own address there, down to devices
# that have none below them. Not those of VMs (tun), and the bridge itself where nothing is below it.
LOOK_SCRIPT = r"""
bridge=$1 address=$2
PATH=$PATH:/usr/sbin:/sbin
below() {
    [ ! -e "/sys/class/net/$1/tun_flags" ] || return 0
    leaf=y
    for lower in "/sys/class/net/$1"/lower_*; do
        [ -e "$lower" ] || continue
        leaf=
        (below "${lower##*/lower_}")
    done
    [ -z "$leaf" ] || [ -e "/sys/class/net/$1/bridge" ] || echo "$1"
}
{
    [ ! -e "/sys/class/net/$bridge" ] || below "$bridge"
    [ -z "$address" ] || ip -o -4 addr show to "$address" | while read -r index name rest; do below "${name%@*}"; done
} | sort -u | while read -r adapter; do
    echo "adapter $adapter"
    ethtool -k "$adapter" 2>/dev/null
done
"""

SET_SCRIPT = r"""
PATH=$PATH:/usr/sbin:/sbin
has_link() {
    carrier=
    read -r carrier <"/sys/class/net/$1/carrier"
    [ "$carrier" = 1 ]
} 2>/dev/null
linked=
while [ $# -gt 2 ]; do
    case " $linked " in
    *" $1 "*) ;;
    *) ! has_link "$1" || linked="$linked $1" ;;
    esac
    ethtool -K "$1" "$2" "$3" 2>&1
    shift 3
done
tries=150
for adapter in $linked; do
    while [ $tries -gt 0 ] && ! has_link "$adapter"; do
        sleep 0.2
        tries=$((tries - 1))
    done
done
exit 0
"""
"""Arguments: adapter, feature, `on` or `off`, and so on. Waits for links that some drivers drop over it."""

_SHORT = {long: short for short, long in LONG_OFFLOAD_NAMES.items()}


class LinuxStack:
    """A `Stack` by a channel in which commands of a shell run."""

    def __init__(self, channel: Channel, *, bridge: str, address: str) -> None:
        self._channel = channel
        self._where = [bridge, address]
        self._adapters: dict[str, dict[str, str]] = {}
        self._groups: dict[str, dict[str, list[str]]] = {}

    def adapters(self) -> tuple[str, ...]:
        """See `Stack.adapters`."""
        return tuple(self._adapters)

    def look(self) -> None:
        """See `Stack.look`."""
        argv = ["/bin/sh", "-c", LOOK_SCRIPT, "labctl", *self._where]
        said = self._channel.run(argv, timeout=CALL_SECONDS).require(f"Reading offloads of {self._channel.endpoint}")
        self._adapters, self._groups = {}, {}
        adapter = group = ""
        for line in said.stdout.decode(errors="replace").splitlines():
            if line.startswith("adapter "):
                adapter = line.removeprefix("adapter ")
                self._adapters[adapter], self._groups[adapter] = {}, {}
                continue
            name, colon, value = line.partition(": ")
            if not colon or not adapter:
                continue
            if line[:1].isspace():
                self._groups[adapter][group].append(name.strip())
            else:
                group = name
                self._groups[adapter][group] = []
            self._adapters[adapter][name.strip()] = value.strip()

    def readings(self, offload: str) -> tuple[Reading, ...]:
        """See `Stack.readings`."""
        long = LONG_OFFLOAD_NAMES.get(offload, offload)
        found = []
        for adapter, features in self._adapters.items():
            if long not in features:
                continue
            on = _is(features[long], "on")
            parts = self._groups[adapter].get(long) or [long]
            others = [part for part in parts if _is(features[part], "on") is on and "[fixed]" not in features[part]]
            knobs = tuple(
                Knob(adapter=adapter, name=_SHORT.get(part, part), value="off" if on else "on") for part in others
            )
            found.append(Reading(adapter=adapter, on=on, changes=knobs, found=features[long]))
        return tuple(found)

    def value(self, adapter: str, name: str) -> str | None:
        """See `Stack.value`."""
        said = self._adapters.get(adapter, {}).get(LONG_OFFLOAD_NAMES.get(name, name))
        return said.split()[0] if said else None

    def set(self, knobs: Sequence[Knob]) -> str:
        """See `Stack.set`."""
        words = [word for knob in knobs for word in (knob.adapter, knob.name, knob.value)]
        said = self._channel.run(["/bin/sh", "-c", SET_SCRIPT, "labctl", *words], timeout=CALL_SECONDS)
        return said.require(f"Setting offloads of {self._channel.endpoint}").stdout.decode(errors="replace").strip()


def _is(value: str, word: str) -> bool:
    return value.split()[:1] == [word]
