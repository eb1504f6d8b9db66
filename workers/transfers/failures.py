"""What the error messages of transfer tools mean. Wordings change between releases, so parts of them are compared."""

from __future__ import annotations

import re
from enum import Enum, auto

from labctl.model.reading import ErrorKind
from workers.transfers.text import one_line


class Fault(Enum):
    """What a message says, before it is known whether data had moved and who ended the transfer."""

    BUSY = auto()
    NOT_CONNECTED = auto()
    """The connection never came up: refused, no route, unknown host, timed out while connecting."""
    REFUSED = auto()
    """`Connection refused` by an operation other than connecting: a UDP port that nobody listens on."""
    CLIENT_ENDED = auto()
    """The tool says that its client was stopped."""
    SERVER_ENDED = auto()
    LOST = auto()
    OUTPUT = auto()
    """The tool could not write or exchange its output."""
    OTHER = auto()


_PHRASES: tuple[tuple[Fault, str], ...] = (
    (Fault.BUSY, r"server is busy|busy running a test|receiver is busy"),
    (Fault.CLIENT_ENDED, r"client has terminated"),
    (Fault.SERVER_ENDED, r"server has terminated"),
    (
        Fault.NOT_CONNECTED,
        r"unable to connect|connect failed|failed to connect|unable to create a new stream|could not connect"
        r"|name or service not known|temporary failure in name resolution|unknown host|no such host"
        r"|nodename nor servname|lookup failure|no address associated|could not resolve|unable to resolve|gethostbyname"
        r"|connect to host .* port|unable to read from stream socket: resource temporarily unavailable",
    ),
    (
        Fault.LOST,
        r"(write|read|recv|send|select)\w* failed: (connection reset|broken pipe|connection timed out"
        r"|no route to host|network is unreachable|network is down|software caused|host is down)",
    ),
    (Fault.REFUSED, r"connection refused|actively refused"),
    (
        Fault.LOST,
        r"control socket has closed|socket has closed|closed unexpectedly|unexpectedly closed"
        r"|connection reset|reset by peer|broken pipe"
        r"|timed out|time[- ]?out|connection abort|forcibly closed|unable to (write|read|send|receive)|idle"
        r"|network is down|lost connection|no route to host|network is unreachable|host is (down|unreachable)",
    ),
    (Fault.OUTPUT, r"data length overflow|no space left|unable to print|out of memory"),
)
_COMPILED = tuple((fault, re.compile(pattern, re.IGNORECASE)) for fault, pattern in _PHRASES)


def fault(message: str) -> Fault | None:
    """What the message says; None for an empty one."""
    plain = one_line(message)
    if not plain:
        return None
    for kind, pattern in _COMPILED:
        if pattern.search(plain):
            return kind
    return Fault.OTHER


def error_kind(found: Fault, *, moved: bool, server: bool) -> ErrorKind:
    """The kind of error that a fault is for the side that printed it.

    `moved` says whether data had moved before; `server` whether the tool ran as the server. A connection that never
    came up is `connect_refused` whatever the reason; once data has moved the same words mean that it was lost. The end
    of one's own process is `truncated_output`, that of the other side `connection_lost`.
    """
    if found is Fault.BUSY:
        return ErrorKind.SERVER_BUSY
    if found in (Fault.NOT_CONNECTED, Fault.REFUSED):
        return ErrorKind.CONNECTION_LOST if moved else ErrorKind.CONNECT_REFUSED
    if found in (Fault.CLIENT_ENDED, Fault.SERVER_ENDED):
        own = (found is Fault.SERVER_ENDED) == server
        return ErrorKind.TRUNCATED_OUTPUT if own else ErrorKind.CONNECTION_LOST
    if found is Fault.LOST:
        return ErrorKind.CONNECTION_LOST
    return ErrorKind.TRUNCATED_OUTPUT if moved else ErrorKind.NO_DATA
