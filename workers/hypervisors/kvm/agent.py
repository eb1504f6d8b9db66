"""The guest agent of a VM through libvirt, for the channel that speaks its language."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import libvirt
import libvirt_qemu

from labctl.errors import LabError
from workers.channels.base import ChannelError
from workers.channels.qemu_agent import AgentReplyError
from workers.guard import Deadline
from workers.hypervisors.base import Vm
from workers.hypervisors.kvm.connection import Connections, said

_SPARE_SECONDS = 5.0
"""How long libvirt gets beyond the agent's own deadline."""

_BETWEEN_HOSTS = 0.02
"""Seconds between two looks for a VM that is just being handed over by a migration."""


class LibvirtAgent:
    """An `AgentTransport`: one JSON command of the guest agent at a time, wherever the VM runs now."""

    def __init__(
        self, connections: Connections, vm: Vm, *, locate: Callable[[], str | None], handed_over: Callable[[], bool]
    ) -> None:
        """`locate` says on which host the VM runs; `handed_over` whether some host has it though it runs on none."""
        self._connections = connections
        self._vm = vm
        self._locate = locate
        self._handed_over = handed_over
        self._host = ""

    def command(self, json_text: str, *, timeout: float) -> str:
        """The agent's answer. `AgentReplyError` for one that is an error; `ChannelError` when there is none:
        `channel-unreachable` or `channel-timeout`. libvirt counts whole seconds, so 1 is the least."""
        deadline = Deadline.after(timeout)
        while True:
            try:
                return self._ask(self._host or self._find(deadline), json_text, deadline)
            except libvirt.libvirtError as error:
                if not _is_elsewhere(error) or deadline.passed:
                    raise self._error(error, timeout) from error
                self._host = ""
                time.sleep(min(_BETWEEN_HOSTS, deadline.left))
            except LabError as error:
                if isinstance(error, ChannelError):
                    raise
                raise ChannelError(error.what, kind="channel-unreachable", why=error.why, host=error.host) from error

    def _ask(self, host: str, json_text: str, deadline: Deadline) -> str:
        seconds = max(1, math.ceil(deadline.left))

        def ask(connection: libvirt.virConnect) -> str:
            domain = connection.lookupByUUIDString(self._vm.uuid)
            answer: str = libvirt_qemu.qemuAgentCommand(domain, json_text, seconds, 0)
            return answer

        answer = self._connections.write(host, ask, seconds=seconds + _SPARE_SECONDS)
        self._host = host
        return answer

    def _find(self, deadline: Deadline) -> str:
        while True:
            host = self._locate()
            if host is not None:
                return host
            if deadline.passed or not self._handed_over():
                raise ChannelError(
                    f"The VM {self._vm.name} doesn't run on any host.",
                    kind="channel-unreachable",
                    why="It has ended, by itself or by somebody else.",
                )
            time.sleep(min(_BETWEEN_HOSTS, deadline.left))

    def _error(self, error: libvirt.libvirtError, timeout: float) -> Exception:
        """What libvirt said, as an error of the channel or as the agent's own words."""
        text = said(error)
        if error.get_error_code() not in _NO_ANSWER:
            return AgentReplyError(text.partition("': ")[2] or text)
        late = any(words in text for words in _LATE)
        return ChannelError(
            f"The guest agent of {self._vm.name} did not answer within {timeout:.1f} s."
            if late
            else f"The guest agent of {self._vm.name} can't be reached.",
            kind="channel-timeout" if late else "channel-unreachable",
            why=text,
            host=self._host,
        )


_NO_ANSWER = (
    libvirt.VIR_ERR_AGENT_UNRESPONSIVE,
    libvirt.VIR_ERR_AGENT_UNSYNCED,
    libvirt.VIR_ERR_OPERATION_TIMEOUT,
    libvirt.VIR_ERR_OPERATION_INVALID,
)
_LATE = ("not available for now", "didn't respond", "timed out", "within")


def _is_elsewhere(error: libvirt.libvirtError) -> bool:
    """Whether the command was not executed because the domain is not, or no longer, on this host."""
    return error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN or "domain is not running" in said(error)
