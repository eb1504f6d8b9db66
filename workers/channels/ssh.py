"""Commands and files on a machine by SSH: keys only, host keys always checked, deadlines on everything."""

from __future__ import annotations

import io
import logging
import re
import shlex
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import paramiko

from labctl.errors import AttemptCancelled
from labctl.model.lab import SshAccess
from labctl.model.result import ClockOffset
from workers.channels.base import ChannelError
from workers.channels.interruptible import CallTooSlowError, call_interruptibly
from workers.channels.posix import EndpointSilentError, PosixChannel, Spoken
from workers.guard import Deadline, Guard
from workers.secrets import resolve

CONNECT_SECONDS = 10.0
"""How long a connection may take to be made, and each of its steps: banner, key exchange, authentication."""

OPEN_SECONDS = 20.0
"""How long the other side may take to open a channel in a connection that is there."""

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
        self._client: paramiko.SSHClient | None = None
        self._connecting = threading.Lock()

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
        session = self._session(_CLOCK_SCRIPT, [], deadline, self._guard)
        try:
            samples = [self._clock_sample(session, deadline) for _ in range(CLOCK_SAMPLES)]
        finally:
            session.close()
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
        session = self._session(script, arguments, deadline, guard)
        try:
            return self._converse(session, memoryview(stdin), deadline, guard)
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise self._unreachable("the connection was lost", str(error)) from error
        finally:
            session.close()

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
        while not session.status_event.wait(POLL):
            guard.check()
            if deadline.passed:
                raise self._overdue()
        while received := session.recv_stderr(CHUNK_BYTES) if session.recv_stderr_ready() else b"":
            stderr += received
        if session.exit_status < 0:
            raise self._unreachable("the connection was lost, or the command's launcher was killed", "")
        return Spoken(exit_code=session.exit_status, stdout=bytes(stdout), stderr=bytes(stderr))

    def _read(self, path: str, *, deadline: Deadline, guard: Guard) -> bytes:
        spoken = self._execute(_READ_SCRIPT, [path], stdin=b"", deadline=deadline, guard=guard)
        if spoken.exit_code != 0:
            raise ChannelError(
                f"The file {path} could not be read in {self._endpoint}.",
                kind="command-failed",
                why=spoken.stderr.decode(errors="replace").strip()[-400:],
            )
        return spoken.stdout

    def _session(self, script: str, arguments: Sequence[str], deadline: Deadline, guard: Guard) -> paramiko.Channel:
        """A channel in which the script has been started."""
        words = ["exec", "/bin/sh", "-c", script, "labctl", *arguments]
        # The one place where SSH makes us write a command line: its protocol has no argument lists.
        line = " ".join([words[0], *map(shlex.quote, words[1:])]).encode(errors="surrogateescape")
        transport = self._transport(deadline, guard)
        limit = Deadline(min(deadline.at, time.monotonic() + OPEN_SECONDS))

        def start() -> paramiko.Channel:
            session = transport.open_session(timeout=max(limit.left, POLL))
            try:
                session.exec_command(line)
            except BaseException:
                session.close()
                raise
            return session

        try:
            return call_interruptibly(start, guard=guard, deadline=limit, dispose=paramiko.Channel.close)
        except CallTooSlowError as error:
            raise EndpointSilentError(
                f"{self._endpoint} did not open a channel in time.",
                kind="channel-timeout",
                why="The connection is there, but its SSH server does not answer.",
            ) from error
        except paramiko.ChannelException as error:
            raise ChannelError(
                f"{self._endpoint} refuses to open another channel.",
                kind="channel-refused",
                why=str(error),
                todo="See MaxSessions and the forced commands of its SSH server.",
            ) from error
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise self._unreachable("the connection was lost", str(error)) from error

    def _connect(self, *, deadline: Deadline, guard: Guard) -> None:
        self._transport(deadline, guard)

    def _transport(self, deadline: Deadline, guard: Guard) -> paramiko.Transport:
        """The connection, made now if there is none."""
        while not self._connecting.acquire(timeout=POLL):
            guard.check()
            if deadline.passed:
                raise self._overdue()
        try:
            transport = self._client.get_transport() if self._client else None
            if transport is not None and transport.is_active():
                return transport
            self._disconnect()
            self._client = self._new_client(deadline, guard)
            transport = self._client.get_transport()
            if transport is None:
                raise self._unreachable("the connection was lost", "")
            transport.set_keepalive(KEEPALIVE_SECONDS)
            return transport
        finally:
            self._connecting.release()

    def _new_client(self, deadline: Deadline, guard: Guard) -> paramiko.SSHClient:
        access = self._access
        key = self._key()
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(_RefuseUnknown())
        self._load_known_hosts(client)
        limit = Deadline(min(deadline.at, time.monotonic() + 3 * CONNECT_SECONDS))

        def connect() -> paramiko.SSHClient:
            client.connect(
                access.address,
                access.port,
                username=access.user,
                pkey=key,
                sock=self._socket(limit, guard),
                timeout=_step(limit),
                banner_timeout=_step(limit),
                auth_timeout=_step(limit),
                channel_timeout=OPEN_SECONDS,
                allow_agent=False,
                look_for_keys=False,
            )
            return client

        try:
            return call_interruptibly(connect, guard=guard, deadline=limit, dispose=paramiko.SSHClient.close)
        except (AttemptCancelled, ChannelError):
            client.close()
            raise
        except CallTooSlowError as error:
            client.close()
            raise self._unreachable("it did not answer in time", "") from error
        except (OSError, EOFError, paramiko.SSHException) as error:
            client.close()
            raise self._connect_error(error, key) from error

    def _socket(self, limit: Deadline, guard: Guard) -> socket.socket | paramiko.Channel:
        address = (self._access.address, self._access.port)
        if self._via is not None:
            transport = self._via._transport(limit, guard)
            return transport.open_channel("direct-tcpip", address, ("127.0.0.1", 0), timeout=_step(limit))
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

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None


class _UnknownHostKeyError(paramiko.SSHException):
    """A machine whose key nobody has written down."""


class _RefuseUnknown(paramiko.MissingHostKeyPolicy):
    """Refuses machines whose key nobody has written down."""

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002
        raise _UnknownHostKeyError(f"{key.get_name()} {key.fingerprint}")


_INTERRUPTED = re.compile("timeout|transport shut down|saw EOF", re.IGNORECASE)
"""How paramiko words the end of a connection while it authenticates, which refuses nothing."""


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

_CLOCK_SCRIPT = r"""
case $(date +%N) in
*[!0-9]* | '')  # busybox: no fraction in date, but adjtimex(2) tells it, in microseconds or (8192: STA_NANO) less
    while read -r _; do
        adjtimex | while read -r name value _; do
            case $name in
            status:) [ $((value & 8192)) = 0 ] && format='%s.%06d\n' || format='%s.%09d\n' ;;
            time.tv_sec:) second=$value ;;
            time.tv_usec:) printf "$format" "$second" "$value" ;;
            esac
        done
    done
    ;;
*)
    while read -r _; do
        date +%s.%N
    done
    ;;
esac
"""
"""Prints the time, in seconds since the epoch, for each line it is sent."""
