"""Commands and files on a machine by SSH: keys only, host keys always checked, deadlines on everything.

Connections are kept and used again, but by one command at a time; commands that run at once have connections of their
own. Dropbear 2022.82 to 2024.85 closes a new channel when another command of the connection ends at that moment, and
may start the new command all the same (dropbear issue 321, measured with 2022.83).
"""

from __future__ import annotations

import io
import logging
import re
import shlex
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import paramiko

from labctl.model.lab import SshAccess
from labctl.model.result import ClockOffset
from labctl.secrets import resolve
from workers.channels.base import ChannelError
from workers.channels.interruptible import CallTooSlowError, call_interruptibly
from workers.channels.posix import CLOCK_SCRIPT, EndpointSilentError, PosixChannel, Spoken
from workers.guard import Deadline, Guard

CONNECT_SECONDS = 10.0
"""How long a connection may take to be made, and each of its steps: banner, key exchange, authentication."""

OPEN_SECONDS = 20.0
"""How long the other side may take to open a channel in a connection that is there."""

LINE_BYTES = 8000
"""Longest command line; a longer one is put into a file first. Dropbear takes 9000 (MAX_CMD_LEN), Linux 131071."""

KEEPALIVE_SECONDS = 15
LOST_SECONDS = 20
"""A connection on which nothing was acknowledged for so long is given up (TCP_USER_TIMEOUT, tcp(7))."""

POLL = 0.05
"""Seconds between two looks at the guard. Output that arrives is seen at once."""

SEND_POLL = 0.005
"""Seconds between two looks whether the other side takes more input."""

CHUNK_BYTES = 1 << 15
CLOCK_SAMPLES = 5

KEY_KINDS: tuple[type[paramiko.PKey], ...] = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)

# Whatever paramiko logs as an error also reaches us as an exception, which says it better.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


class SshChannel(PosixChannel):
    """A `Channel` to a machine that runs an SSH server. It connects when it is first used, and again after a loss.

    `via` is the channel of a machine to jump through; it stays its maker's to close.
    """

    inline_limit = 1 << 62

    def __init__(self, *, endpoint: str, access: SshAccess, guard: Guard, via: SshChannel | None = None) -> None:
        super().__init__(endpoint=endpoint, guard=guard)
        self._access = access
        self._via = via
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._busy: list[_Connection] = []

    def wait_ready(self, *, timeout: float) -> float:
        """See `Channel.wait_ready`. A refusal (host key, authentication) is raised at once."""
        began = time.monotonic()
        deadline = Deadline.after(timeout)
        while True:
            try:
                self._connect(deadline=deadline, guard=self._guard)
            except ChannelError as error:
                if error.kind != "channel-unreachable" or deadline.passed:
                    raise
            else:
                return time.monotonic() - began
            self._guard.sleep(min(0.1, deadline.left))

    def clock(self, *, timeout: float) -> ClockOffset:
        """See `Channel.clock`. A sample is one line each way in a channel that is open already."""
        deadline = Deadline.after(timeout)
        with self._session(CLOCK_SCRIPT, [], deadline, self._guard) as session:
            samples = [self._clock_sample(session, deadline) for _ in range(CLOCK_SAMPLES)]
            session.shutdown_write()
            self._await_status(session, deadline, self._guard)
        return min(samples, key=lambda sample: sample.uncertainty)

    def _clock_sample(self, session: paramiko.Channel, deadline: Deadline) -> ClockOffset:
        before, began = time.time(), time.monotonic()
        session.settimeout(POLL)
        session.sendall(b"\n")
        line = b""
        while not line.endswith(b"\n"):
            self._guard.check()
            if deadline.passed:
                raise self._overdue()
            try:
                received = session.recv(100)
            except TimeoutError:
                continue
            if not received:
                raise self._unreachable("the connection was closed", "")
            line += received
        trip = time.monotonic() - began
        if not re.fullmatch(rb"\d+\.\d+\n", line):
            raise ChannelError(
                f"{self._endpoint} does not tell the time.", kind="command-failed", why=f"It said {line!r}."
            )
        return ClockOffset(seconds=float(line) - (before + trip / 2), uncertainty=trip / 2)

    def _execute(
        self,
        script: str,
        arguments: Sequence[str],
        *,
        stdin: bytes,
        deadline: Deadline,
        guard: Guard,
        quiet: float = 0.0,  # noqa: ARG002
    ) -> Spoken:
        """See `PosixChannel._execute`. The other side speaks by itself, so `quiet` is kept in any case."""
        with self._session(script, arguments, deadline, guard) as session:
            try:
                return self._converse(session, memoryview(stdin), deadline, guard)
            except (OSError, EOFError, paramiko.SSHException) as error:
                raise self._unreachable("the connection was lost", str(error)) from error

    def _converse(self, session: paramiko.Channel, stdin: memoryview, deadline: Deadline, guard: Guard) -> Spoken:
        """Send all input and take all output, each as far as the other side is ready for it."""
        stdout, stderr = bytearray(), bytearray()
        sending = True
        while True:
            guard.check()
            if deadline.passed:
                raise self._overdue()
            session.settimeout(SEND_POLL if sending else POLL)
            if sending:
                stdin = _send_some(session, stdin)
                sending = bool(stdin)
                if not sending:
                    session.shutdown_write()
            while session.recv_stderr_ready():
                stderr += session.recv_stderr(CHUNK_BYTES)
            try:
                received = session.recv(CHUNK_BYTES)
            except TimeoutError:
                continue
            if not received:
                break
            stdout += received
        self._await_status(session, deadline, guard)
        while received := session.recv_stderr(CHUNK_BYTES) if session.recv_stderr_ready() else b"":
            stderr += received
        if session.exit_status < 0:
            raise self._unreachable("the connection was lost, or the command's launcher was killed", "")
        return Spoken(exit_code=session.exit_status, stdout=bytes(stdout), stderr=bytes(stderr))

    def _await_status(self, session: paramiko.Channel, deadline: Deadline, guard: Guard) -> None:
        while not session.status_event.wait(POLL):
            guard.check()
            if deadline.passed:
                raise self._overdue()

    def _read(self, path: str, *, deadline: Deadline, guard: Guard) -> bytes:
        spoken = self._execute(_READ_SCRIPT, [path], stdin=b"", deadline=deadline, guard=guard)
        if spoken.exit_code != 0:
            raise ChannelError(
                f"The file {path} could not be read in {self._endpoint}.",
                kind="command-failed",
                why=spoken.stderr.decode(errors="replace").strip()[-400:],
            )
        return spoken.stdout

    @contextmanager
    def _session(
        self, script: str, arguments: Sequence[str], deadline: Deadline, guard: Guard
    ) -> Iterator[paramiko.Channel]:
        """A channel in which the script has been started, alone in its connection."""
        line = _command_line(script, arguments)
        if len(line) > LINE_BYTES:
            line = self._staged(line, deadline, guard)
        connection = self._borrow(deadline, guard)
        try:
            session = self._open(connection, line, deadline, guard)
            yield session
            session.close()
        except BaseException:
            self._give_up(connection)
            raise
        self._give_back(connection)

    def _open(self, connection: _Connection, line: bytes, deadline: Deadline, guard: Guard) -> paramiko.Channel:
        limit = Deadline(min(deadline.at, time.monotonic() + OPEN_SECONDS))

        def start() -> paramiko.Channel:
            session = connection.transport.open_session(timeout=max(limit.left, POLL))
            session.exec_command(line)
            return session

        try:
            return call_interruptibly(start, guard=guard, deadline=limit, dispose=paramiko.Channel.close)
        except CallTooSlowError as error:
            raise EndpointSilentError(
                f"{self._named()}: no command could be started in time.",
                kind="channel-timeout",
                why="The connection is there, but the SSH server does not answer.",
            ) from error
        except (OSError, EOFError, paramiko.SSHException) as error:
            if connection.alive:
                raise self._refused(
                    "it starts no commands", str(error), "See its SSH server's log, MaxSessions and forced commands."
                ) from error
            raise self._unreachable("the connection was lost", str(error)) from error

    def _staged(self, line: bytes, deadline: Deadline, guard: Guard) -> bytes:
        """A short command line that does what a long one does, which it reads from a file and removes."""
        directory = self._new_job()
        spoken = self._execute(_STAGE_SCRIPT, [directory], stdin=line, deadline=deadline, guard=guard)
        if spoken.exit_code != 0:
            why = spoken.stderr.decode(errors="replace").strip()[-400:]
            raise self._refused("a long command could not be sent", why, "See that there is room in /tmp.")
        self._forget(directory)
        return _command_line(_STAGED_SCRIPT, [directory])

    def _connect(self, *, deadline: Deadline, guard: Guard) -> None:
        self._give_back(self._borrow(deadline, guard))

    def _borrow(self, deadline: Deadline, guard: Guard) -> _Connection:
        """A connection for one command: an idle one, or a new one."""
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if connection.alive:
                    self._busy.append(connection)
                    return connection
                connection.close()
        connection = self._new_connection(deadline, guard)
        with self._lock:
            self._busy.append(connection)
        return connection

    def _give_back(self, connection: _Connection) -> None:
        with self._lock:
            if connection in self._busy:
                self._busy.remove(connection)
                self._idle.append(connection)

    def _give_up(self, connection: _Connection) -> None:
        """Close a connection whose command did not come to its end, because it may still speak."""
        connection.close()
        with self._lock:
            if connection in self._busy:
                self._busy.remove(connection)

    def _disconnect(self) -> None:
        with self._lock:
            connections = [*self._idle, *self._busy]
            self._idle.clear()
            self._busy.clear()
        for connection in connections:
            connection.close()

    def _new_connection(self, deadline: Deadline, guard: Guard) -> _Connection:
        access = self._access
        key = self._key()
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(_RefuseUnknown())
        self._load_known_hosts(client)
        limit = Deadline(min(deadline.at, time.monotonic() + 3 * CONNECT_SECONDS))
        connection = _Connection(client, None if self._via is None else self._via._new_connection(limit, guard))

        def connect() -> _Connection:
            client.connect(
                access.address,
                access.port,
                username=access.user,
                pkey=key,
                sock=self._socket(connection.jump, limit),
                timeout=_step(limit),
                banner_timeout=_step(limit),
                auth_timeout=_step(limit),
                channel_timeout=OPEN_SECONDS,
                allow_agent=False,
                look_for_keys=False,
            )
            connection.transport.set_keepalive(KEEPALIVE_SECONDS)
            return connection

        try:
            return call_interruptibly(connect, guard=guard, deadline=limit, dispose=_Connection.close)
        except CallTooSlowError as error:
            connection.close()
            raise self._unreachable("it did not answer in time", "") from error
        except (OSError, EOFError, paramiko.SSHException) as error:
            connection.close()
            raise self._connect_error(error, key) from error
        except BaseException:
            connection.close()
            raise

    def _socket(self, jump: _Connection | None, limit: Deadline) -> socket.socket | paramiko.Channel:
        address = (self._access.address, self._access.port)
        if jump is not None:
            return jump.transport.open_channel("direct-tcpip", address, ("127.0.0.1", 0), timeout=_step(limit))
        connection = socket.create_connection(address, timeout=_step(limit))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_SECONDS * 1000)
        return connection

    def _key(self) -> paramiko.PKey:
        secret = resolve(self._access.key)
        for kind in KEY_KINDS:
            try:
                return kind.from_private_key(io.StringIO(secret.text))
            except paramiko.PasswordRequiredException as error:
                why = "It is encrypted, and nobody is there to type its passphrase."
                raise self._refused("the private key can't be used", why, "Use a key without passphrase.") from error
            except (paramiko.SSHException, ValueError, IndexError):
                continue
        why = f"{self._access.key} holds no Ed25519, ECDSA or RSA private key."
        raise self._refused("the private key can't be used", why, "Make one: ssh-keygen -t ed25519")

    def _load_known_hosts(self, client: paramiko.SSHClient) -> None:
        path = Path(self._access.known_hosts).expanduser()
        try:
            client.load_system_host_keys(str(path))
        except OSError as error:
            raise self._refused(
                "the known-hosts file can't be read", str(error), f"Make it: {self._keyscan()} > {path}"
            ) from error

    def _connect_error(self, error: Exception, key: paramiko.PKey) -> ChannelError:
        access = self._access
        if isinstance(error, _UnknownHostKeyError):
            return self._refused(
                "its host key is unknown",
                f"{access.known_hosts} has no key of {access.address}, which shows {error}.",
                f"Compare that with the machine's own and add it: {self._keyscan()} >> {access.known_hosts}",
            )
        if isinstance(error, paramiko.BadHostKeyException):
            return self._refused(
                "its host key has changed",
                f"{access.known_hosts} has {error.expected_key.fingerprint}, "
                f"the machine shows {error.key.fingerprint}: it was set up anew, or another machine answers.",
                f"If it was set up anew, replace its line in {access.known_hosts}.",
            )
        if isinstance(error, paramiko.AuthenticationException) and not _INTERRUPTED.search(str(error)):
            return self._refused(
                "it refuses the authentication",
                f"User {access.user}, key {key.fingerprint}: {error}",
                f"Put the public key into ~{access.user}/.ssh/authorized_keys of that machine.",
            )
        if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
            return self._refused("it has no algorithm in common with us", str(error), "Update its SSH server.")
        return self._unreachable("no connection could be made", str(error) or type(error).__name__)

    def _keyscan(self) -> str:
        return f"ssh-keyscan -p {self._access.port} {self._access.address}"

    def _refused(self, what: str, why: str, todo: str) -> ChannelError:
        return ChannelError(f"{self._named()}: {what}.", kind="channel-refused", why=why, todo=todo)

    def _unreachable(self, what: str, why: str) -> ChannelError:
        return ChannelError(
            f"{self._named()}: {what}.",
            kind="channel-unreachable",
            why=why,
            todo="See that the machine runs, that its SSH server does, and that no firewall is between.",
        )

    def _overdue(self) -> ChannelError:
        return ChannelError(f"{self._named()}: no answer in time.", kind="channel-timeout")

    def _named(self) -> str:
        access = self._access
        return f"{self._endpoint} (ssh {access.user}@{access.address}:{access.port})"


class _Connection:
    """One connection, and the one through the jump machine that carries it."""

    def __init__(self, client: paramiko.SSHClient, jump: _Connection | None) -> None:
        self._client = client
        self.jump = jump

    @property
    def transport(self) -> paramiko.Transport:
        transport = self._client.get_transport()
        if transport is None:
            raise EOFError("the connection is closed")
        return transport

    @property
    def alive(self) -> bool:
        transport = self._client.get_transport()
        return transport is not None and transport.is_active()

    def close(self) -> None:
        self._client.close()
        if self.jump is not None:
            self.jump.close()


class _UnknownHostKeyError(paramiko.SSHException):
    """A machine whose key nobody has written down."""


class _RefuseUnknown(paramiko.MissingHostKeyPolicy):
    """Refuses machines whose key nobody has written down."""

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002
        raise _UnknownHostKeyError(f"{key.get_name()} {key.fingerprint}")


_INTERRUPTED = re.compile("timeout|transport shut down|saw EOF", re.IGNORECASE)
"""How paramiko words the end of a connection while it authenticates, which refuses nothing."""


def _command_line(script: str, arguments: Sequence[str]) -> bytes:
    """The one place where SSH makes us write a command line: its protocol has no argument lists."""
    words = ["/bin/sh", "-c", script, "labctl", *arguments]
    return f"exec {shlex.join(words)}".encode(errors="surrogateescape")


def _step(limit: Deadline) -> float:
    return max(min(limit.left, CONNECT_SECONDS), POLL)


def _send_some(session: paramiko.Channel, stdin: memoryview) -> memoryview:
    """What is left of the input after sending as much as the other side takes now; none if it takes no more at all."""
    try:
        while stdin and session.send_ready():
            stdin = stdin[session.send(bytes(stdin[:CHUNK_BYTES])) :]
    except TimeoutError:
        return stdin
    except OSError:
        return stdin[:0]
    return stdin


_READ_SCRIPT = r"""
exec cat "$1"
"""
"""Argument: a path."""

_STAGE_SCRIPT = r"""
mkdir -m 700 "$1" && cat >"$1/line"
"""
"""Argument: a new directory."""

_STAGED_SCRIPT = r"""
line=$(cat "$1/line") && rm -rf "$1" && eval "$line"
"""
"""Argument: a directory made by `_staged`, which is removed."""
