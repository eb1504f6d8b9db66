"""What each transfer tool can't do, in sentences: the plan asks before anything starts, and the worker asks again.

Only what holds for every release and on every system is here; what a release lacks is found out in the endpoint, where
it is known which one is installed. Sources: the manual pages and `--help` of iperf3 3.1 to 3.21 and of iperf 2.0.5 to
2.2, `src/parameter.c` of ntttcp-for-linux 1.4, and the usage text of NTttcp 5.40 for Windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from labctl.model.lab import GuestSystem
from labctl.model.order import TransferOrder
from labctl.model.settings import Level

Value = Level | None
"""The value of a setting; None: left to the tool or the system."""

FILECOPY_SETTINGS = ("copy", "size", "medium", "cache")
"""Settings that act on `filecopy` and on nothing else."""

LATENCY_MOST = 100
"""Echo requests per second beside a transfer, at the most: more would be a load of their own."""

PORTS_MOST = 64
"""Streams of ntttcp, which takes a port for each: so many lie between the ports of two attempts."""

OMIT_MOST = 60
"""MAX_OMIT_TIME of iperf3 up to 3.17, in seconds."""

MSS_MOST = 9216
"""MAX_MSS of iperf3: 9 KiB."""

_WINDOWS_COPIES = ("robocopy", "copy-item")
_NOT_COLD = ("scp", "smbclient", *_WINDOWS_COPIES)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One thing that speaks against some orders. `reads` are the settings that it looks at; `why` gives the reason for
    their values in a sentence, empty when nothing speaks against them."""

    reads: tuple[str, ...]
    why: Callable[[Mapping[str, Value]], str]


def cannot(order: TransferOrder) -> str:
    """Why the tool can't do this order, whatever its release; empty when it can."""
    values = _values(order)
    off = off_system(values, order.sender_system, order.receiver_system)
    found = (limit.why(values) for limit in LIMITS)
    return off or next((why for why in found if why), "")


SYSTEM_SETTINGS = ("tool", "copy", "medium", "window", "rate", "protocol", "latency")
"""The settings that some system can't do for some tool."""


def off_system(values: Mapping[str, Value], sender: GuestSystem, receiver: GuestSystem) -> str:
    """Why the tool can't do these `SYSTEM_SETTINGS` between endpoints of these systems; empty when it can."""
    tool, copy = values["tool"], values["copy"]
    windows, linux = GuestSystem.WINDOWS in (sender, receiver), GuestSystem.LINUX in (sender, receiver)
    if windows and values["latency"] is not None:
        return "the ping of Windows sends one request a second and tells whole milliseconds, so latency needs Linux"
    if tool == "ntttcp":
        return _ntttcp_off(values, windows=windows, linux=linux)
    if tool != "filecopy":
        return ""
    if copy in _WINDOWS_COPIES and linux:
        return f"filecopy by {copy} needs Windows at both ends"
    if copy not in _WINDOWS_COPIES and windows:
        return f"filecopy by {copy} needs Linux at both ends"
    if windows and values["medium"] == "ram":
        return "Windows has no disk in RAM: medium must be disk"
    return ""


def _ntttcp_off(values: Mapping[str, Value], *, windows: bool, linux: bool) -> str:
    if windows and linux:
        return "NTttcp for Windows and ntttcp-for-linux don't understand each other's synchronisation"
    if linux and values["window"] is not None:
        return "ntttcp-for-linux can't set the socket buffers"
    if linux and values["rate"] is not None and values["protocol"] == "udp":
        return "ntttcp-for-linux limits the rate of TCP only"
    return ""


def program(order: TransferOrder) -> str:
    """The program of an order, by which an endpoint shows that it has the tool."""
    if order.tool != "filecopy":
        return order.tool
    shown = {"smb-mount": "mount.cifs", "stream": "head", "scp": "ssh-keygen", "sftp": "ssh-keygen"}
    return (shown | {"copy-item": "powershell"}).get(order.copy, order.copy)


def _values(order: TransferOrder) -> dict[str, Value]:
    """The order's settings by name, those left to the tool as None."""
    return {
        "tool": order.tool,
        "protocol": order.protocol,
        "streams": order.streams,
        "window": order.window,
        "buffer": order.buffer,
        "rate": order.rate,
        "direction": order.direction,
        "reverse": order.reverse,
        "mss": order.mss,
        "congestion": order.congestion or None,
        "dscp": order.dscp,
        "family": order.family,
        "omit": order.omit or None,
        "zerocopy": order.zerocopy,
        "latency": order.latency,
        "medium": order.medium,
        "cache": order.cache,
        "copy": order.copy,
    }


def direction(values: Mapping[str, Value]) -> str:
    """The direction that acts: the one given, else what `reverse` says."""
    return str(values["direction"] or ("reverse" if values["reverse"] else "forward"))


def _direction(values: Mapping[str, Value]) -> str:
    tool, given = values["tool"], direction(values)
    if values["direction"] == "forward" and values["reverse"]:
        return "direction is forward and reverse is on: one of both must go"
    if tool == "ntttcp" and given != "forward":
        return f"with ntttcp it is always the connecting side that sends, so it has no direction {given}"
    if tool == "filecopy" and given == "both":
        return "filecopy copies one file one way; it has no direction both"
    return ""


def _protocol(values: Mapping[str, Value]) -> str:
    if values["tool"] == "filecopy" and values["protocol"] == "udp":
        return "filecopy copies over TCP only"
    return ""


def _streams(values: Mapping[str, Value]) -> str:
    tool, streams = values["tool"], values["streams"]
    if not isinstance(streams, int):
        return ""
    if tool == "filecopy" and streams > 1:
        return "filecopy copies one file over one connection"
    if tool == "ntttcp" and streams > PORTS_MOST:
        return f"ntttcp takes a port for each stream, at most {PORTS_MOST} here, and {streams} are asked for"
    return ""


def _none_of(setting: str, what: str, *tools: str) -> Limit:
    """That tools have no such setting at all."""

    def why(values: Mapping[str, Value]) -> str:
        if values["tool"] not in tools or values[setting] in (None, False):
            return ""
        return f"{values['tool']} can't {what}"

    return Limit(reads=("tool", setting), why=why)


def _tcp_only(setting: str, what: str) -> Limit:
    def why(values: Mapping[str, Value]) -> str:
        if values["protocol"] != "udp" or values[setting] in (None, False):
            return ""
        return f"UDP has no {what}"

    return Limit(reads=("protocol", setting), why=why)


def _mss(values: Mapping[str, Value]) -> str:
    mss = values["mss"]
    if values["tool"] == "iperf3" and isinstance(mss, int) and mss > MSS_MOST:
        return f"iperf3 takes an MSS of at most {MSS_MOST} bytes, and mss is {mss}"
    return ""


def _dscp(values: Mapping[str, Value]) -> str:
    dscp = values["dscp"]
    return f"a DSCP is 0 to 63, and dscp is {dscp}" if isinstance(dscp, int) and dscp > 63 else ""


def _omit(values: Mapping[str, Value]) -> str:
    tool, omit = values["tool"], values["omit"]
    if not isinstance(omit, float) or tool not in ("iperf3", "ntttcp"):
        return ""
    if not omit.is_integer():
        return f"{tool} takes whole seconds of omit only, and omit is {omit:g}"
    if tool == "iperf3" and omit > OMIT_MOST:
        return f"iperf3 omits at most {OMIT_MOST} s, and omit is {omit:g}"
    return ""


def _family(values: Mapping[str, Value]) -> str:
    if values["tool"] == "filecopy" and values["family"] == "ipv6":
        return "filecopy is driven over IPv4 only"
    return ""


def _latency(values: Mapping[str, Value]) -> str:
    latency = values["latency"]
    if isinstance(latency, int) and latency > LATENCY_MOST:
        return f"a latency probe sends at most {LATENCY_MOST} requests per second, and latency is {latency}"
    return ""


def _cache(values: Mapping[str, Value]) -> str:
    if values["tool"] == "filecopy" and values["cache"] == "cold" and values["medium"] == "ram":
        return "a file in RAM can't be cold: it is its own page cache"
    if values["tool"] == "filecopy" and values["cache"] == "cold" and values["copy"] in _NOT_COLD:
        return f"with {values['copy']} the other side can't be made to write the file to its disk within the time"
    return ""


LIMITS: tuple[Limit, ...] = (
    Limit(reads=("tool", "direction", "reverse"), why=_direction),
    Limit(reads=("tool", "protocol"), why=_protocol),
    Limit(reads=("tool", "streams"), why=_streams),
    _none_of("window", "set the socket buffers", "filecopy"),
    _none_of("buffer", "set the size of its writes", "filecopy"),
    _none_of("rate", "limit its rate", "filecopy"),
    _none_of("mss", "set the largest segment", "ntttcp", "filecopy"),
    _none_of("congestion", "choose the congestion control", "ntttcp", "filecopy"),
    _none_of("dscp", "set the DSCP of its packets", "ntttcp", "filecopy"),
    _none_of("omit", "leave a ramp-up out of its figures", "iperf", "filecopy"),
    _none_of("zerocopy", "be told to send without copying", "iperf", "ntttcp", "filecopy"),
    _tcp_only("mss", "segments"),
    _tcp_only("congestion", "congestion control"),
    _tcp_only("zerocopy", "zero-copy mode in iperf3"),
    Limit(reads=("tool", "mss"), why=_mss),
    Limit(reads=("dscp",), why=_dscp),
    Limit(reads=("tool", "omit"), why=_omit),
    Limit(reads=("tool", "family"), why=_family),
    Limit(reads=("latency",), why=_latency),
    Limit(reads=("tool", "cache", "medium", "copy"), why=_cache),
)
"""All of them, in the order in which they are asked."""
