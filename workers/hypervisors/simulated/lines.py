"""What is known of the network in one attempt: who is at its ends, who listens, and which VM moved when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from labctl.model.order import VmShape

_WHILE_COPYING = 0.65
"""What is left of a transfer's rate while a migration copies memory."""
_RECOVERING = 0.8
_RECOVERY_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class End:
    """One end of a transfer: a VM of this shape, or a host or machine itself. `name` is what its noise belongs to."""

    name: str
    host: str
    shape: VmShape | None = None


@dataclass(frozen=True, kw_only=True)
class Side:
    """One endpoint as its programs see it. `end` says what it is at a moment, `alive` whether it is there at all."""

    end: Callable[[float], End]
    address: str
    alive: Callable[[], bool]
    vm: str = ""


@dataclass(kw_only=True)
class Move:
    """One migration of a VM, in seconds of `labctl.clock.monotonic`: copying begins, the VM stands still, it is there.

    One that is taken back has no `down`, and ends where it was.
    """

    start: float
    down: float | None
    end: float
    source: str
    destination: str

    def host_at(self, moment: float) -> str:
        """Where the VM is, as far as this migration tells."""
        return self.destination if self.down is not None and moment >= self.end else self.source

    def share_at(self, moment: float) -> float:
        """What is left of a transfer's rate."""
        if self.start <= moment < self.end:
            return 0.0 if self.down is not None and moment >= self.down else _WHILE_COPYING
        if self.down is not None and self.end <= moment < self.end + _RECOVERY_SECONDS:
            return _RECOVERING
        return 1.0

    @property
    def turns(self) -> tuple[float, ...]:
        """The moments at which the rate changes."""
        return tuple(one for one in (self.start, self.down, self.end, self.end + _RECOVERY_SECONDS) if one is not None)


@dataclass(kw_only=True)
class Listener:
    """A server that listens, until its client has ended or it is killed."""

    tool: str
    side: Side
    ended: float | None = None
    """When it ends by itself: with its client."""
    output: bytes = b""
    killed: bool = False


@dataclass
class Lines:
    """What is known of the network in one attempt: who listens where, and which VM moved when."""

    listeners: dict[tuple[str, int], Listener] = field(default_factory=dict)
    moves: dict[str, list[Move]] = field(default_factory=dict)
    """By name of the VM, oldest first."""

    def host_of(self, vm: str, moment: float, otherwise: str) -> str:
        """Where a VM was at a moment; `otherwise` when it has not moved."""
        return next(
            (move.host_at(moment) for move in reversed(self.moves.get(vm, ())) if move.start <= moment), otherwise
        )
