"""One session with WinRM on a machine: a message there and back, with a deadline, and nothing in clear over plain HTTP.

pywinrm keeps a session that failed half-way through logging in, and sends its next message unencrypted through it; so a
session is let go of after every failure that isn't a fault of WS-Management. It is also let go of when it was idle for long:
Windows closes idle connections after two minutes, and a message that is sealed for one connection means nothing on the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import requests
from winrm.exceptions import WinRMOperationTimeoutError, WSManFaultError
from winrm.protocol import Protocol

from labctl import clock
from labctl.errors import LabError
from labctl.model.lab import WinrmAccess, WinrmTransport
from workers.guard import Deadline
from workers.winrm import access, failures
from workers.winrm.failures import Broken
from workers.winrm.refusals import REFUSALS, TRIALS
from workers.winrm.tickets import TICKETS

IDLE_SECONDS = 60.0
"""After how long a session is not trusted any more: half of what HTTP.sys allows."""

CONNECT_SECONDS = 10.0

OPERATION_SECONDS = 20.0
"""For how long Windows may keep a Receive that has nothing to deliver."""

MARGIN_SECONDS = 5.0
"""By how much longer an answer is waited for than Windows has been told to take."""

T = TypeVar("T")


class Session:
    """A session that is opened when it is used. For one thread at a time."""

    def __init__(self, machine: WinrmAccess, *, where: str, host: str) -> None:
        """`where` says whose inside this is, for messages."""
        self._machine = machine
        self._where = where
        self._host = host
        self._login: access.Login | None = None
        self._protocol: Protocol | None = None
        self._used_at = 0.0
        self._is_used = False

    def ask(self, message: Callable[[Protocol], T], deadline: Deadline) -> T | None:
        """Send a message and return what `message` makes of the answer; None: an operation timeout, nothing to say yet.

        Raises `Broken`. `message` is one call of a method of pywinrm's `Protocol` that sends one message.
        """
        if self._protocol is not None and clock.monotonic() - self._used_at > IDLE_SECONDS:
            self.drop()
        login = self._known()
        with TRIALS.turn(login.credentials, patience=min(deadline.left / 2, CONNECT_SECONDS + MARGIN_SECONDS)):
            answer = self._send(login, message, deadline)
        TRIALS.took(login.credentials)
        self._used_at = clock.monotonic()
        self._is_used = True
        return answer

    def _known(self) -> access.Login:
        """Who logs in. The secret is looked up for each session, so that a new password is used at once."""
        if self._protocol is None or self._login is None:
            try:
                self._login = access.login(self._machine, where=self._where, host=self._host)
            except LabError as error:
                raise Broken(error) from error
        return self._login

    def _send(self, login: access.Login, message: Callable[[Protocol], T], deadline: Deadline) -> T | None:
        try:
            protocol = self._open(login, deadline)
            _set_timeouts(protocol, deadline)
            return message(protocol)
        except WinRMOperationTimeoutError:
            return None
        except LabError as error:
            self.drop()
            raise Broken(error) from error
        except Exception as problem:  # pywinrm and what logs in for it raise whatever they like
            raise self._broken(problem) from problem

    def drop(self) -> None:
        """Let go of the session and its connection. Shells stay; any later session of the same user reaches them."""
        if self._protocol is not None:
            self._protocol.transport.close_session()
        self._protocol = None
        self._is_used = False

    def _open(self, login: access.Login, deadline: Deadline) -> Protocol:
        """The session, logged in."""
        if self._protocol is not None:
            return self._protocol
        if REFUSALS.refuse(login.credentials):
            raise failures.refused_credentials(
                where=self._where, user=self._machine.login.user, host=self._host, again=True
            )
        if self._machine.transport is WinrmTransport.KERBEROS:
            TICKETS.obtain(login.user, login.password, where=self._where, host=self._host)
        self._protocol = protocol = access.protocol(login)
        _set_timeouts(protocol, deadline)
        protocol.transport.build_session()
        return protocol

    def _broken(self, problem: Exception) -> Broken:
        """What a failure means. Faults of WS-Management leave the session as it is."""
        is_fault = isinstance(problem, WSManFaultError)
        # In a session that has worked before, even 401 may only mean that its connection was closed meanwhile.
        stale = self._is_used and not is_fault and not isinstance(problem, requests.exceptions.ReadTimeout)
        if failures.is_refusal(problem) and self._login is not None and not stale:
            REFUSALS.add(self._login.credentials)
        if not is_fault:
            self.drop()
        error = failures.from_exception(
            problem, where=self._where, url=self._machine.url, user=self._machine.login.user, host=self._host
        )
        return Broken(error, stale=stale, code=failures.fault_code(problem))


def _set_timeouts(protocol: Protocol, deadline: Deadline) -> None:
    """Such that neither Windows nor the socket keeps a message for longer than the deadline allows."""
    left = max(deadline.left, 0.2)
    operation = min(OPERATION_SECONDS, max(left - MARGIN_SECONDS, left / 2))
    protocol.operation_timeout_sec = max(1, int(operation))
    transport: Any = protocol.transport
    transport.read_timeout_sec = (min(left, CONNECT_SECONDS), min(left, operation + MARGIN_SECONDS))
