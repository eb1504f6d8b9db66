"""What the stacks of Linux and of Windows hosts have in common: knobs that can be read and set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One value of a host that belongs to an offload, in the system's own words."""

    adapter: str
    """Empty when it is the whole system's."""
    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How an offload stands on one adapter, or in the whole system."""

    adapter: str
    on: bool
    changes: tuple[Knob, ...]
    """What would have to be set to have it the other way; empty when the driver keeps it fixed. Values are the new ones."""
    found: str
    """As the system says it, for messages."""


class Stack(Protocol):
    """The network stack of one host. Errors are `LabError`, every call has a deadline of its own."""

    def adapters(self) -> tuple[str, ...]:
        """The host's own adapters under the test network, as last looked at."""

    def look(self) -> None:
        """Read everything anew."""

    def readings(self, offload: str) -> tuple[Reading, ...]:
        """How an offload stands on each of these adapters, as last looked at; empty when none of them has it."""

    def value(self, adapter: str, name: str) -> str | None:
        """The value of a knob, as last looked at; None when there is no such adapter, or it has no such knob."""

    def set(self, knobs: Sequence[Knob]) -> str:
        """Set knobs, and return what the system said to it. Whether it worked is told by the next look."""
