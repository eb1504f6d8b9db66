"""Faults of WS-Management with the codes that Windows gives them (wsmerror.h, MS-WSMV 3.1.4)."""

from __future__ import annotations

OPERATION_TIMED_OUT = 2150858793
UNEXPECTED_SELECTORS = 2150858843
"""What a request to a shell that is not there gets."""
ACCESS_DENIED = 5
INVALID_COMMAND = 2150858932
MAX_SHELLS = 2150859173
MAX_SHELLS_PLUGIN = 2150859236
MAX_OPERATIONS = 2150859174
MAX_OPERATIONS_USER = 2150859240
MAX_SHELL_USERS = 2150859179
MAX_COMMANDS_PER_SHELL = 2150859241
ENVELOPE_TOO_LARGE = 2150858801
OUT_OF_MEMORY = 2147942414
NO_DATA = 232
"""What input to a command that has ended gets: the pipe is being closed."""
COMMAND_LINE_TOO_LONG = 2147942606
"""HRESULT of ERROR_FILENAME_EXCED_RANGE: what CreateProcess and cmd.exe make of a line that is too long."""


class Fault(Exception):
    """A request that is answered with a fault."""

    def __init__(self, code: int, text: str, *, subcode: str = "w:InternalError") -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.subcode = subcode


def timed_out() -> Fault:
    """A Receive that had nothing to deliver within the operation timeout."""
    return Fault(
        OPERATION_TIMED_OUT,
        "The WS-Management service cannot complete the operation within the time specified in OperationTimeout.",
        subcode="w:TimedOut",
    )


def shell_not_found(shell: str) -> Fault:
    """A request to a shell that is not there (any more)."""
    return Fault(
        UNEXPECTED_SELECTORS,
        f"The request for the Windows Remote Shell with ShellId {shell} failed because the shell was not found on the "
        "server. Possible causes are: the specified ShellId is incorrect or the shell no longer exists on the server. "
        "Provide the correct ShellId or create a new shell and retry the operation.",
        subcode="w:InvalidSelectors",
    )


def quota(code: int, text: str) -> Fault:
    """A quota that is used up."""
    return Fault(code, f"The WS-Management service cannot process the request. {text}", subcode="w:QuotaLimit")
