"""The QEMU guest agent's protocol over a Unix socket: that of an agent itself, or of a VM's character device.

One JSON text per line each way. An agent, or the device before it, may still hold replies to questions of an earlier
connection, so every connection begins with `guest-sync-delimited`: its reply comes after a byte 0xFF, which no JSON
text contains, and whatever came before it is thrown away. After a call that failed the connection is made anew.
Source: QEMU, docs/interop/qemu-ga-ref (guest-sync-delimited).
"""

from __future__ import annotations

import json
import secrets
import select
import socket

from workers.channels.base import ChannelError
from workers.guard import Deadline

SENTINEL = b"\xff"
"""Sent, it makes the agent forget half a question; received, it announces the reply to `guest-sync-delimited`."""

SHORTEST = 0.001
"""Seconds; a socket's timeout of 0 would mean something else."""


class SocketAgentTransport:
    """An `AgentTransport` over a Unix socket. Connects when it is first used, and again when it must."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._received = bytearray()

    def command(self, json_text: str, *, timeout: float) -> str:
        """See `AgentTransport.command`."""
        deadline = Deadline.after(timeout)
        try:
            connection = self._connected(deadline)
            self._send(connection, json_text.encode() + b"\n", deadline)
            return self._line(connection, deadline).decode()
        except TimeoutError as error:
            self.close()
            raise ChannelError(
                f"The guest agent behind {self._path} did not answer within {timeout:g} s.",
                kind="channel-timeout",
                why="It is busy, stopped, or gone.",
            ) from error
        except OSError as error:
            self.close()
            raise self._unreachable(str(error)) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._received.clear()

    def _connected(self, deadline: Deadline) -> socket.socket:
        if self._socket is not None and _ended(self._socket):
            self.close()
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(max(deadline.left, SHORTEST))
            self._socket.connect(self._path)
            try:
                self._synchronise(self._socket, deadline)
            except TimeoutError as error:
                raise self._unreachable("nobody answers: the agent does not run, or is stopped") from error
        return self._socket

    def _synchronise(self, connection: socket.socket, deadline: Deadline) -> None:
        number = secrets.randbelow(2**31)
        question = {"execute": "guest-sync-delimited", "arguments": {"id": number}}
        self._send(connection, SENTINEL + json.dumps(question).encode() + b"\n", deadline)
        while True:
            _, announced, reply = self._line(connection, deadline).rpartition(SENTINEL)
            if announced and json.loads(reply).get("return") == number:
                return

    def _send(self, connection: socket.socket, content: bytes, deadline: Deadline) -> None:
        connection.settimeout(max(deadline.left, SHORTEST))
        connection.sendall(content)

    def _line(self, connection: socket.socket, deadline: Deadline) -> bytes:
        searched = 0
        while (end := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
            connection.settimeout(max(deadline.left, SHORTEST))
            received = connection.recv(1 << 16)
            if not received:
                raise ConnectionResetError("the agent closed the connection")
            self._received += received
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    def _unreachable(self, why: str) -> ChannelError:
        return ChannelError(
            f"The guest agent behind {self._path} is not reachable.",
            kind="channel-unreachable",
            why=why,
            todo="See that the guest runs and that qemu-ga runs in it.",
        )


def _ended(connection: socket.socket) -> bool:
    """Whether the other side has closed an idle connection, or sent what nobody asked for."""
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable)
