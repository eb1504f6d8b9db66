"""What every transfer tool is: two command lines and a pure parser; and for some, what comes before and after."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from labctl.model.order import TransferOrder
from labctl.model.reading import Capture, Reading


class Process(Enum):
    """Which process of a transfer."""

    CLIENT = auto()
    SERVER = auto()


@dataclass(frozen=True, kw_only=True)
class Placing:
    """A file that an endpoint needs before the transfer."""

    at: Process
    path: str
    content: bytes
    mode: int = 0o600


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command around a transfer, outside of its time. `seconds` is its deadline."""

    at: Process
    argv: tuple[str, ...]
    what: str
    """What it does, for messages: `Making the file`."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a transfer needs beside its two processes, in this order. `after` and `cleanup` are run whatever happened;
    what `before` and `after` print is given to the parser, in front of and behind what the client printed."""

    placings: tuple[Placing, ...] = ()
    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()
    cleanup: tuple[Step, ...] = ()


class TransferTool(Protocol):
    """A tool with a server and a client. Commands are argument lists without redirections."""

    @property
    def name(self) -> str:
        """As campaigns name it."""

    @property
    def server_ends(self) -> bool:
        """Whether its server ends by itself after its client has; else it serves until it is sent SIGTERM."""

    @property
    def timed(self) -> bool:
        """Whether a transfer lasts for the seconds of the order; else it moves so many bytes and ends when it has."""

    def server_command(
        self, order: TransferOrder, *, port: int, server: str = "", version: str = ""
    ) -> tuple[str, ...]:
        """The server of one transfer, in the foreground, on a port of its own; empty when its system serves already.

        `server` is its own address, `version` the first line of what `TOOL --version` printed there; empty: not known.
        """

    def client_command(self, order: TransferOrder, *, server: str, port: int, version: str = "") -> tuple[str, ...]:
        """The client of one transfer against the server's address."""

    def surroundings(self, order: TransferOrder, *, server: str, port: int) -> Surroundings:
        """What comes before and after."""

    def parse(self, capture: Capture) -> Reading:
        """The reading of captured bytes. Pure; never raises for what a tool may print; exit codes are not believed."""

    def unsupported(self, order: TransferOrder, version: str = "") -> str:
        """Why the tool, or this release of it, can't do this order, in a sentence; empty when it can."""
