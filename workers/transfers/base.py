"""What every transfer tool is: two command lines and a pure parser."""

from __future__ import annotations

from typing import Protocol

from labctl.model.order import TransferOrder
from labctl.model.reading import Capture, Reading


class TransferTool(Protocol):
    """A tool with a server and a client. Commands are argument lists without redirections."""

    @property
    def name(self) -> str:
        """As campaigns name it."""

    @property
    def server_ends(self) -> bool:
        """Whether its server ends by itself after its client has; else it serves until it is sent SIGTERM."""

    def server_command(self, order: TransferOrder, *, port: int) -> tuple[str, ...]:
        """The server of one transfer, in the foreground, on a port of its own."""

    def client_command(self, order: TransferOrder, *, server: str, port: int) -> tuple[str, ...]:
        """The client of one transfer against the server's address."""

    def parse(self, capture: Capture) -> Reading:
        """The reading of captured bytes. Pure; never raises for what a tool may print; exit codes are not believed."""

    def unsupported(self, order: TransferOrder) -> str:
        """Why the tool can't do this order, in a sentence; empty when it can."""
