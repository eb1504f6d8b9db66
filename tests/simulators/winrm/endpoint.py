"""A WinRM endpoint of our own: WS-Management over HTTP and HTTPS, behind which scripts run by name and input.

    with WinrmEndpoint(run, host="hv1", users={"LAB\\\\op": "pw"}) as endpoint:
        WinrmAccess(url=endpoint.url, ...)

`run(name, document, context)` is a script (`processes.Run`). Jobs, quotas, chunked output, operation timeouts, encryption and
authentication are the endpoint's own. What goes wrong is ordered in `endpoint.mishaps`.
"""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.simulators.winrm import faults, jobs, messages
from tests.simulators.winrm.authentication import USERS, Identity, Refused
from tests.simulators.winrm.mishaps import PROGRESS, Mishaps
from tests.simulators.winrm.processes import Context, Output, Process, Run, Simulated
from tests.simulators.winrm.shells import Quotas, Shells
from workers.powershell import envelope
from workers.powershell.base import Json


class WinrmEndpoint:
    """A server on 127.0.0.1 with a port of its own, from `with` until its end."""

    def __init__(
        self,
        run: Run,
        *,
        host: str = "hv1",
        users: Mapping[str, str],
        transports: frozenset[str] = frozenset({"ntlm"}),
        certificates: Path | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        """`certificates` holds `server.pem` and `server.key`: then it is HTTPS."""
        self.host = host
        self.transports = transports
        self.mishaps = Mishaps()
        self.shells = Shells(quotas or Quotas())
        self.jobs = jobs.Jobs(run)
        self.requests: Counter[str] = Counter()
        """Messages by action (`Create`, `Command`, ...)."""
        self.scripts: Counter[str] = Counter()
        """Scripts that were run, by name; those of jobs are in `jobs.started`."""
        self.logins: Counter[str] = Counter()
        """`failed`: credentials that were shown and wrong; `done`: connections with a client that is known."""
        self.unencrypted = 0
        """Bodies that came over plain HTTP without encryption."""
        self._run = run
        self._tls = _tls(certificates) if certificates is not None else None
        self._certificate = _der(certificates) if certificates is not None else b""
        self._closing = threading.Event()
        for user, password in users.items():
            USERS.set(user, password)
        self._server = _Server(("127.0.0.1", 0), self)

    @property
    def url(self) -> str:
        """Where it answers."""
        scheme = "https" if self._tls is not None else "http"
        return f"{scheme}://127.0.0.1:{self._server.server_address[1]}/wsman"

    def __enter__(self) -> WinrmEndpoint:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.cut_all()
        self.shells.clear()
        self.jobs.lose()
        self._server.server_close()

    def set_password(self, user: str, password: str) -> None:
        """From now on this is the user's password."""
        USERS.set(user, password)

    def cut_connections(self) -> None:
        """All connections are gone; shells stay."""
        self._server.cut_all()

    def restart(self) -> None:
        """The host restarts: connections, shells and processes are gone; files of jobs are not."""
        self.cut_connections()
        self.shells.clear()
        self.jobs.lose()

    # --- what happens to a message -----------------------------------------------------------------------------------

    def answer(self, content: bytes, identity: Identity, connection: _Connection) -> tuple[int, bytes]:
        """Status and body for a message. Raises `_Cut` when there is none."""
        message = messages.parse(content)
        action = message.action.rpartition("/")[2]
        self.requests[action] += 1
        try:
            if len(content) > self.shells.quotas.envelope:
                raise faults.Fault(faults.ENVELOPE_TOO_LARGE, "The SOAP packet is larger than the maximum.")
            status = self.mishaps.status(action)
            if status is not None:
                return status
            ordered = self.mishaps.fault(action)
            if ordered is not None:
                raise ordered
            return 200, self._act(message, action, identity)
        except faults.Fault as fault:
            return 500, messages.faulted(message, fault)

    def _act(self, message: messages.Message, action: str, identity: Identity) -> bytes:
        user = identity.user
        if action == "Create":
            return messages.created(message, self.shells.create(user))
        if action == "Delete":
            self.shells.delete(message.shell, user)
            return messages.done(message)
        if action == "Command":
            self._cut_if("cut_command")
            line = " ".join(
                filter(
                    None, (message.text("rsp:CommandLine/rsp:Command"), message.text("rsp:CommandLine/rsp:Arguments"))
                )
            )
            return messages.started(message, self.shells.start(message.shell, user, line, self._program(identity)))
        if action == "Send":
            return self._send(message, user)
        if action == "Receive":
            return self._receive(message, user)
        if action == "Signal":
            self.shells.signal(message.shell, user, message.attribute("rsp:Signal", "CommandId"))
            return messages.done(message)
        raise faults.Fault(faults.ACCESS_DENIED, f"The action {message.action} is not supported.")

    def _send(self, message: messages.Message, user: str) -> bytes:
        command = self.shells.command(message.shell, user, message.attribute("rsp:Send/rsp:Stream", "CommandId"))
        end = message.attribute("rsp:Send/rsp:Stream", "End") == "true"
        command.send(base64.b64decode(message.text("rsp:Send/rsp:Stream")), end=end)
        self._cut_if("cut_send")
        if self.mishaps.hits("closed_pipes"):
            raise faults.Fault(faults.NO_DATA, "The pipe is being closed.")
        return messages.done(message)

    def _receive(self, message: messages.Message, user: str) -> bytes:
        id = message.attribute("rsp:Receive/rsp:DesiredStream", "CommandId")
        command = self.shells.command(message.shell, user, id)
        self._cut_if("cut_receive")
        if self.mishaps.hits("silent"):
            self._closing.wait()
            raise _Cut
        if self.mishaps.hits("timeouts"):
            raise faults.timed_out()
        room = 100 * 1024
        pieces, exit_code = command.receive(message.seconds, room)
        return messages.received(message, id, pieces, exit_code)

    def _cut_if(self, name: str) -> None:
        if self.mishaps.hits(name):
            raise _Cut

    def _program(self, identity: Identity) -> Process:
        return _Program(self, identity)

    # --- what a command does -----------------------------------------------------------------------------------------

    def run_process(self, stdin: bytes, output: Output, ended: threading.Event, identity: Identity) -> int:
        """A PowerShell with a request on its stdin, and what befalls it."""
        request = envelope.decode_request(stdin)
        package, _, name = request.name.rpartition("/")
        instead = self.mishaps.replacement()
        if instead is not None:
            output.write("stdout", instead[0])
            output.write("stderr", instead[1])
            return instead[2]
        self.scripts[name] += 1
        before = self.mishaps.before()
        if before:
            output.write("stdout", before)
        if self.mishaps.hits("progress_on_stderr"):
            output.write("stderr", PROGRESS)
        context = Context(
            host=self.host,
            user=identity.user,
            transport=identity.transport,
            package=package,
            progress=lambda value: None,
            ended=ended,
        )
        return Simulated(run_script=self._script, context=context).run(stdin, output, ended)

    def _script(self, name: str, document: Mapping[str, Json], context: Context) -> Json:
        if context.package == jobs.PACKAGE and name in jobs.NAMES:
            return self.jobs.script(name, document, context)
        return self._run(name, document, context)


class _Program:
    def __init__(self, endpoint: WinrmEndpoint, identity: Identity) -> None:
        self._endpoint = endpoint
        self._identity = replace(identity)

    def run(self, stdin: bytes, output: Output, ended: threading.Event) -> int:
        return self._endpoint.run_process(stdin, output, ended, self._identity)


class _Cut(Exception):
    """The connection ends without an answer."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], endpoint: WinrmEndpoint) -> None:
        self.endpoint = endpoint
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        super().__init__(address, _Connection)

    def finish_request(self, request: Any, client_address: Any) -> None:
        tls = self.endpoint._tls
        try:
            if tls is not None:
                request = tls.wrap_socket(request, server_side=True)
        except OSError:
            return
        with self._lock:
            self._sockets.add(request)
        try:
            super().finish_request(request, client_address)
        except OSError:
            pass
        finally:
            with self._lock:
                self._sockets.discard(request)
            request.close()

    def cut_all(self) -> None:
        with self._lock:
            for one in self._sockets:
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue


class _Connection(BaseHTTPRequestHandler):
    """One connection; who its client is holds for all of it."""

    protocol_version = "HTTP/1.1"
    server: _Server
    disable_nagle_algorithm = True
    wbufsize = -1

    def setup(self) -> None:
        super().setup()
        self.endpoint = self.server.endpoint
        self.identity = Identity(
            transports=self.endpoint.transports,
            encrypted_line=self.endpoint._tls is not None,
            certificate=self.endpoint._certificate,
        )

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        known = bool(self.identity.user)
        try:
            told = self.identity.authenticate(self.headers.get("Authorization", ""))
        except Refused as refused:
            self.endpoint.logins["failed"] += refused.failed
            self._respond(401, b"", [("WWW-Authenticate", offer) for offer in refused.offers])
            return
        self.endpoint.logins["done"] += not known
        try:
            status, answer, kind = self._exchange(body)
        except _Cut:
            self.close_connection = True
            return
        headers = [("Content-Type", kind)] if kind else []
        self._respond(status, answer, [*headers, *([("WWW-Authenticate", told)] if told else [])])

    def _exchange(self, body: bytes) -> tuple[int, bytes, str]:
        if not body:
            return (503 if self.endpoint.mishaps.hits("busy_logins") else 200), b"", ""
        soap = "application/soap+xml;charset=UTF-8"
        try:
            content, encrypted = self.identity.decrypt(self.headers.get("Content-Type", ""), body)
        except Exception:  # what a message that is sealed for another connection gets
            return (401 if self.endpoint.mishaps.hits("foreign_seals") else 400), b"", ""
        if not encrypted and self.endpoint._tls is None:
            self.endpoint.unencrypted += 1
            return 500, b"", ""
        try:
            status, answer = self.endpoint.answer(content, self.identity, self)
        except ValueError:
            return 400, b"", ""
        if encrypted and answer:
            kind, answer = self.identity.encrypt(answer)
            return status, answer, kind
        return status, answer, soap

    def _respond(self, status: int, body: bytes, headers: list[tuple[str, str]]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


def _tls(certificates: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    return context


def _der(certificates: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert((certificates / "server.pem").read_text())
