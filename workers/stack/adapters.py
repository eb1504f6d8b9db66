"""Network adapters of a Windows system, as `read-adapters.ps1` tells of them, and how offloads stand on them.

Drivers read their settings from the registry under standardised keywords ("Standardized INF keywords for network devices",
learn.microsoft.com): 0 is off; checksums are 1 (sending), 2 (receiving) or 3 (both), all others 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from labctl.model.offloads import WINDOWS_OFFLOADS
from workers.powershell.base import Json, PowerShell, Script
from workers.stack.base import Knob, Reading

READ = Script(package="workers.stack", name="read-adapters", writes=False)
SET = Script(package="workers.stack", name="set-adapters", writes=True)

READ_SECONDS = 60.0
"""How long reading may take: CIM is slow in a busy guest."""

JUMBO, MTU, CHIMNEY = "*JumboPacket", "mtu", "chimney"

KEYWORDS: Mapping[str, tuple[str, ...]] = {
    "lso": ("*LsoV2IPv4", "*LsoV2IPv6"),
    "lsov1": ("*LsoV1IPv4",),
    "checksum": (
        "*IPChecksumOffloadIPv4",
        "*TCPChecksumOffloadIPv4",
        "*TCPChecksumOffloadIPv6",
        "*UDPChecksumOffloadIPv4",
        "*UDPChecksumOffloadIPv6",
    ),
    "rss": ("*RSS",),
    "rsc": ("*RscIPv4", "*RscIPv6"),
    "vmq": ("*VMQ",),
}
"""The keywords of each offload that is an adapter's."""

_ALL: list[Json] = [*(keyword for keywords in KEYWORDS.values() for keyword in keywords), JUMBO]
_ON = ("3", "1")
"""Values that mean on, the fullest first."""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One adapter. `settings` are what its driver is told, by keyword; `actual` what it has made of that, where Windows
    says it."""

    name: str
    description: str
    pnp: str
    up: bool
    speed: int | None
    mtu: int | None
    addresses: tuple[str, ...]
    driver: str
    driver_version: str | None
    driver_date: str | None
    driver_provider: str | None
    settings: Mapping[str, str]
    choices: Mapping[str, tuple[str, ...]]
    actual: Mapping[str, bool | None]

    def reading(self, offload: str) -> Reading | None:
        """How an offload stands on it; None when its driver has none of the offload's keywords."""
        found = {keyword: self.settings[keyword] for keyword in KEYWORDS[offload] if keyword in self.settings}
        if not found:
            return None
        # What the driver makes of its settings counts; they are set again even when they seem right already.
        actual = self.actual.get(offload)
        on = any(value != "0" for value in found.values()) if actual is None else actual
        knobs = [Knob(adapter=self.name, name=key, value="0" if on else self._on(key)) for key in found]
        said = ", ".join(f"{keyword}={value}" for keyword, value in found.items())
        return Reading(adapter=self.name, on=on, changes=tuple(knobs), found=f"{'on' if on else 'off'} ({said})")

    def jumbo(self, mtu: int) -> Knob | None:
        """What has to be set so that its driver carries packets of this MTU; None when it does, or has no such setting.
        `*JumboPacket` counts the 14 bytes of the Ethernet header too."""
        needed, now = mtu + 14, self.settings.get(JUMBO)
        if now is None or int(now) >= needed:
            return None
        larger = sorted(int(choice) for choice in self.choices.get(JUMBO, ()) if int(choice) >= needed)
        return Knob(adapter=self.name, name=JUMBO, value=str(larger[0] if larger else needed))

    def _on(self, keyword: str) -> str:
        choices = self.choices.get(keyword, ())
        return next((value for value in _ON if value in choices), "3" if "Checksum" in keyword else "1")


@dataclass(frozen=True, kw_only=True)
class System:
    """A Windows system and those of its adapters that were asked for."""

    adapters: tuple[Adapter, ...]
    chimney: str | None
    windows: str | None
    build: str | None
    integration_services: str | None
    tools: str | None
    tool: str | None
    power_plan: str | None

    def readings(self, offload: str) -> tuple[Reading, ...]:
        """How an offload stands on each adapter that has it, or in the system; empty when nothing has it."""
        if WINDOWS_OFFLOADS[offload].system_wide:
            if self.chimney is None:
                return ()
            on = self.chimney != "disabled"
            knob = Knob(adapter="", name=CHIMNEY, value="disabled" if on else "enabled")
            return (Reading(adapter="", on=on, changes=(knob,), found=self.chimney),)
        return tuple(found for adapter in self.adapters if (found := adapter.reading(offload)) is not None)


def read_system(
    powershell: PowerShell, *, mac: str | None = None, switch: str | None = None, address: str | None = None,
    tool: str | None = None,
) -> System:  # fmt: skip
    """A Windows system, with the adapter of this MAC address, or those under this virtual switch and with this address.
    Raises what `PowerShell.call` raises."""
    document: dict[str, Json] = {"mac": mac, "switch": switch, "address": address, "keywords": _ALL, "tool": tool}
    said = cast("dict[str, Any]", powershell.call(READ, document, timeout=READ_SECONDS))
    return System(
        adapters=tuple(_adapter(each) for each in said["adapters"]),
        **{key: said[key] for key in System.__dataclass_fields__ if key != "adapters"},
    )


def changes_of(knobs: Sequence[Knob]) -> dict[str, Json]:
    """The document that has knobs set."""
    return {"changes": [{"adapter": knob.adapter, "keyword": knob.name, "value": knob.value} for knob in knobs]}


def _adapter(said: Mapping[str, Any]) -> Adapter:
    return Adapter(
        **{key: said[key] for key in Adapter.__dataclass_fields__ if key not in ("settings", "choices", "addresses")},
        settings={each["keyword"]: str(each["value"]) for each in said["settings"]},
        choices={each["keyword"]: tuple(each["choices"]) for each in said["settings"]},
        addresses=tuple(said["addresses"]),
    )
