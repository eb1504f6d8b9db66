"""Connections to the hosts' libvirt, made in the process that uses them, with a deadline on every call.

What the library needs (https://libvirt.org/html/libvirt-libvirt-event.html): an event loop, registered before the first
connection is opened and run for ever, else keepalive messages go unanswered and an idle connection dies; and no use of
a connection, nor of that loop, in a forked child, where both processes would read from one socket.

Every call has a connection for itself while it lasts: with two calls at once on one connection, libvirt 9.0 sometimes
leaves an answer lying until the next keepalive, seconds later.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import libvirt

from labctl.errors import LabError
from labctl.model.lab import Host
from workers.guard import Deadline

T = TypeVar("T")

CALL_SECONDS = 20.0
"""Deadline of an ordinary call."""

OPEN_SECONDS = 10.0
"""Deadline for opening a connection."""

KEEPALIVE_SECONDS = 5
KEEPALIVE_COUNT = 3
"""A libvirt that answers no keepalive for KEEPALIVE_SECONDS * (KEEPALIVE_COUNT + 1) seconds is given up."""

_LOG = logging.getLogger(__name__)


class CallTimeout(Exception):
    """A call did not return in time. It may still take effect later."""


def bounded(call: Callable[[], T], seconds: float) -> T:
    """The result of a call into the library, or `CallTimeout` when it doesn't return in time.

    The library has no deadlines of its own: the call runs in a thread, which is left behind when it is given up.
    """
    box: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            box.append(call())
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=run, name="libvirt-call", daemon=True).start()
    if not done.wait(seconds):
        raise CallTimeout(f"no answer within {seconds:.0f} s")
    if errors:
        raise errors[0]
    return box[0]


def is_dead(connection: libvirt.virConnect) -> bool:
    """Whether a connection is of no use any more. Asks nobody."""
    try:
        return bool(connection.isAlive() != 1)
    except libvirt.libvirtError:
        return True


def lab_error(host: str, what: str, error: Exception, *, kind: str = "libvirt", todo: str = "") -> LabError:
    """An error of the library as one that says which host, what happened and what to do."""
    return LabError(what, kind=kind, why=said(error), todo=todo or "See the log of libvirt on the host.", host=host)


def said(error: Exception) -> str:
    """What the library said."""
    return str(error).strip() or type(error).__name__


def unreachable(host: Host, error: Exception) -> LabError:
    """The error for a host whose libvirt doesn't answer."""
    return lab_error(
        host.name,
        f"The libvirt of host {host.name} ({host.uri}) doesn't answer.",
        error,
        kind="host-unreachable",
        todo=f"Check that libvirtd runs there: virsh -c '{host.uri}' version. An embedded lab: labctl lab up.",
    )


class Connections:
    """The connections of one driver. Safe to use from several threads; a forked child makes its own.

    A call that only reads is repeated once on a new connection when the old one has died; a call that changes something
    never is: it may have taken effect.
    """

    def __init__(self, hosts: Mapping[str, Host]) -> None:
        self._hosts = hosts
        self._idle: dict[str, list[libvirt.virConnect]] = {}
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def host(self, name: str) -> Host:
        """The host of this name. `LabError` (`host-unreachable`) when the lab has none."""
        try:
            return self._hosts[name]
        except KeyError:
            raise LabError(f"The lab has no host {name}.", kind="host-unreachable", host=name) from None

    def read(self, host: str, call: Callable[[libvirt.virConnect], T], *, seconds: float = CALL_SECONDS) -> T:
        """The result of a call that changes nothing. It must look its domains up anew, for it may be made twice.

        Raises `LabError` (`host-unreachable`) and passes the library's other errors on.
        """
        try:
            return self._call(host, call, seconds)
        except _Lost:
            pass
        try:
            return self._call(host, call, seconds)
        except _Lost as lost:
            raise unreachable(self.host(host), lost.error) from lost.error

    def write(self, host: str, call: Callable[[libvirt.virConnect], T], *, seconds: float = CALL_SECONDS) -> T:
        """The result of a call that changes something, made once. Errors as for `read`; it may have taken effect."""
        try:
            return self._call(host, call, seconds)
        except _Lost as lost:
            raise unreachable(self.host(host), lost.error) from lost.error

    @contextmanager
    def lease(self, host: str) -> Iterator[libvirt.virConnect]:
        """A connection for the caller alone: an idle one, else a new one. Raises `LabError` (`host-unreachable`)."""
        connection = self._take(host)
        try:
            yield connection
        finally:
            self._give_back(host, connection)

    def abandon(self, connection: libvirt.virConnect) -> None:
        """Never use a connection again on which a call hangs. It stays referenced: closing it would hang as well."""
        _ABANDONED.append(connection)

    def close(self) -> None:
        """Close the connections of this process that are not in use."""
        with self._lock:
            idle = self._own_idle()
            connections = [connection for several in idle.values() for connection in several]
            idle.clear()
        for connection in connections:
            _let_go(connection)

    def _call(self, host: str, call: Callable[[libvirt.virConnect], T], seconds: float) -> T:
        connection = self._take(host)
        try:
            result = bounded(lambda: call(connection), seconds)
        except CallTimeout as error:
            self.abandon(connection)
            raise unreachable(self.host(host), error) from error
        except libvirt.libvirtError as error:
            dead = is_dead(connection)
            self._give_back(host, connection)
            if dead:
                raise _Lost(error) from error
            raise
        except BaseException:
            self._give_back(host, connection)
            raise
        self._give_back(host, connection)
        return result

    def _take(self, host: str) -> libvirt.virConnect:
        with self._lock:
            idle = self._own_idle().setdefault(host, [])
            alive = next((connection for connection in reversed(idle) if not is_dead(connection)), None)
            dead = [connection for connection in idle if is_dead(connection)]
            self._idle[host] = [one for one in idle if one is not alive and one not in dead]
        for connection in dead:
            _let_go(connection)
        return alive if alive is not None else self._open(self.host(host))

    def _give_back(self, host: str, connection: libvirt.virConnect) -> None:
        if any(connection is abandoned for abandoned in _ABANDONED):
            return
        if is_dead(connection):
            _let_go(connection)
            return
        with self._lock:
            self._own_idle().setdefault(host, []).append(connection)

    def _own_idle(self) -> dict[str, list[libvirt.virConnect]]:
        """The idle connections of this process."""
        if self._pid != os.getpid():
            # The parent's: kept referenced, because closing them here would end them there.
            _INHERITED.append(self._idle)
            self._idle = {}
            self._pid = os.getpid()
        return self._idle

    def _open(self, host: Host) -> libvirt.virConnect:
        _start_event_loop(host)
        try:
            return _open_bounded(host.uri)
        except (libvirt.libvirtError, CallTimeout) as error:
            raise unreachable(host, error) from error


class _Lost(Exception):
    """The connection died during a call."""

    def __init__(self, error: libvirt.libvirtError) -> None:
        super().__init__(str(error))
        self.error = error


_INHERITED: list[object] = []
_ABANDONED: list[libvirt.virConnect] = []


def _open_bounded(uri: str) -> libvirt.virConnect:
    """A new connection. One that comes after its deadline is closed again by the thread that opened it."""
    late = threading.Event()
    deadline = Deadline.after(OPEN_SECONDS)

    def connect() -> libvirt.virConnect:
        connection = libvirt.open(uri)
        if late.is_set():
            _let_go(connection)
        else:
            connection.setKeepAlive(KEEPALIVE_SECONDS, KEEPALIVE_COUNT)
        return connection

    try:
        return bounded(connect, deadline.left)
    except CallTimeout:
        late.set()
        raise


def _let_go(connection: libvirt.virConnect) -> None:
    try:
        bounded(connection.close, OPEN_SECONDS)
    except (libvirt.libvirtError, CallTimeout) as error:
        _LOG.debug("A connection was not closed: %s", error)


_EVENT_LOOP_LOCK = threading.Lock()
_event_loop_pid = 0


def _start_event_loop(host: Host) -> None:
    """Run the library's event loop in a thread of this process, from before its first connection until its end."""
    global _event_loop_pid
    with _EVENT_LOOP_LOCK:
        if _event_loop_pid == os.getpid():
            return
        if _event_loop_pid:
            raise LabError(
                "This process was forked from one that already talks to libvirt, so it can't.",
                kind="libvirt",
                why="Both would read from the same connections.",
                todo="Start workers before the first use of a host, or as new processes (spawn).",
                host=host.name,
            )
        libvirt.registerErrorHandler(lambda _context, _error: None, None)
        libvirt.virEventRegisterDefaultImpl()
        threading.Thread(target=_run_event_loop, name="libvirt-events", daemon=True).start()
        _event_loop_pid = os.getpid()


def _run_event_loop() -> None:
    while True:
        try:
            libvirt.virEventRunDefaultImpl()
        except libvirt.libvirtError as error:
            _LOG.warning("The event loop of libvirt: %s", error)
