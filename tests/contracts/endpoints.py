"""Endpoints for the channels' contract suite: real servers in a mount namespace of their own.

Such an endpoint has its own /tmp, /run and /root, so that nothing outside is touched and everything left behind shows;
with `busybox=True` its /bin/sh is busybox, as in a probe guest.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workers.channels.base import ChannelError

UNSHARED = ("unshare", "--mount", "--propagation", "private")

ENTER = r"""
mount --bind "$1/tmp" /tmp && mount --bind "$1/run" /run && mount --bind "$1/root" /root || exit 1
[ "$2" = dash ] || mount --bind "$2" /bin/sh || exit 1
cd /
shift 2
exec "$@"
"""


class Endpoint:
    """One endpoint and its server, which may be stopped and started again."""

    def __init__(self, home: Path, argv: Sequence[str], *, busybox: bool) -> None:
        self.home = home
        self._argv = argv
        self._shell = shutil.which("busybox") if busybox else "dash"
        self.server: subprocess.Popen[bytes] | None = None

    @property
    def tmp(self) -> Path:
        """Its /tmp, seen from outside."""
        return self.home / "tmp"

    def start(self, ready: Callable[[], bool]) -> None:
        with (self.home / "server.log").open("ab") as log:
            self.server = subprocess.Popen(
                [*UNSHARED, "sh", "-c", ENTER, "enter", str(self.home), str(self._shell), *self._argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(ready, f"the server of {self.home}: {(self.home / 'server.log').read_text(errors='replace')}")

    def stop(self) -> None:
        """End the server and everything else that runs inside."""
        if self.server is not None:
            inside = self.processes()
            for pid in inside:
                _kill(pid)
            self.server.kill()
            self.server.wait()
            self.server = None

    def stop_server(self) -> None:
        """End the server only, and at once."""
        assert self.server is not None
        self.server.kill()
        self.server.wait()

    def signal(self, number: int) -> None:
        assert self.server is not None
        self.server.send_signal(number)

    def processes(self) -> list[int]:
        """What runs inside, without the server itself."""
        assert self.server is not None
        namespace = _namespace(self.server.pid)
        everything = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
        return [pid for pid in everything if pid != self.server.pid and namespace and _namespace(pid) == namespace]

    def commands(self) -> list[str]:
        """The command lines of what runs inside, without servers of SSH sessions."""
        lines = (_command_line(pid) for pid in self.processes())
        return [line for line in lines if line and not line.startswith(("sshd:", "/usr/sbin/dropbear", "dropbear"))]

    def leftovers(self) -> list[str]:
        """Names in its /tmp."""
        return sorted(path.name for path in self.tmp.iterdir())


@contextmanager
def new_home() -> Iterator[Path]:
    """A directory for an endpoint, outside /tmp because the endpoint mounts its own there."""
    home = Path(tempfile.mkdtemp(prefix="labctl-endpoint-", dir="/var/tmp"))
    for name in ("tmp", "run/sshd", "root/.ssh"):
        (home / name).mkdir(parents=True, mode=0o755)
    (home / "tmp").chmod(0o1777)
    for name in ("root", "root/.ssh"):
        (home / name).chmod(0o700)
    try:
        yield home
    finally:
        shutil.rmtree(home)


def agent_endpoint(home: Path, *, busybox: bool, blocked: str = "") -> Endpoint:
    """A guest agent that listens on `home/agent.sock`."""
    argv = ["qemu-ga", "-m", "unix-listen", "-p", f"{home}/agent.sock", "-t", str(home)]
    return Endpoint(home, argv + (["-b", blocked] if blocked else []), busybox=busybox)


def start_agent(endpoint: Endpoint) -> None:
    path = endpoint.home / "agent.sock"
    path.unlink(missing_ok=True)
    endpoint.start(path.is_socket)


def tools_endpoint(home: Path, *, busybox: bool) -> Endpoint:
    """A stand-in of VMware Tools that listens on `home/tools.sock`. It is the system's Python that gets the text of the
    program: where this checkout lies below /tmp, the endpoint doesn't see it."""
    program = Path(__file__).with_name("tools_daemon.py").read_text()
    argv = ["/usr/bin/python3", "-c", program, f"{home}/tools.sock"]
    return Endpoint(home, argv, busybox=busybox)


def start_tools(endpoint: Endpoint) -> None:
    path = endpoint.home / "tools.sock"
    path.unlink(missing_ok=True)
    endpoint.start(path.is_socket)


class SocketTools:
    """The `GuestOperations` of an endpoint made by `tools_endpoint`. Tests may let it fail, and look at what was asked."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._path = str(endpoint.home / "tools.sock")
        self.asked: list[str] = []
        self.before: Callable[[str], None] = lambda operation: None
        """Called with the name of each operation before it is carried out."""

    def obstacle(self, *, timeout: float) -> str:
        self.asked.append("obstacle")
        self.before("obstacle")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(timeout)
            return "" if probe.connect_ex(self._path) == 0 else "Guest operations are not ready."

    def make_directory(self, path: str, *, timeout: float) -> None:
        self._ask("make_directory", path, timeout)

    def remove_directory(self, path: str, *, timeout: float) -> None:
        self._ask("remove_directory", path, timeout)

    def put_file(self, path: str, content: bytes, *, timeout: float) -> None:
        self._ask("put_file", path, timeout, content=content)

    def get_file(self, path: str, *, timeout: float) -> bytes | None:
        found, content = self._ask("get_file", path, timeout)
        return content if found else None

    def start(self, program: str, arguments: str, *, directory: str, timeout: float) -> int:
        return int(self._ask("start", program, timeout, arguments=arguments, directory=directory)[0])

    def lives(self, pid: int, *, timeout: float) -> bool:
        return bool(self._ask("lives", "", timeout, pid=pid)[0])

    def _ask(
        self, operation: str, path: str, timeout: float, *, content: bytes = b"", **more: object
    ) -> tuple[Any, bytes]:
        self.asked.append(operation)
        self.before(operation)
        question = {"operation": operation, "path": path, "size": len(content), **more}
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(timeout)
                connection.connect(self._path)
                with connection.makefile("rwb") as stream:
                    stream.write(json.dumps(question).encode() + b"\n" + content)
                    stream.flush()
                    answer = json.loads(stream.readline())
                    reply = stream.read(answer["size"])
        except TimeoutError as error:
            raise ChannelError("no answer", kind="channel-timeout") from error
        except (OSError, ValueError) as error:
            raise ChannelError("no tools", kind="channel-unreachable", why=str(error)) from error
        if "error" in answer:
            raise ChannelError(f"{operation} {path} failed.", kind="command-failed", why=answer["error"])
        return answer["value"], reply


def make_key(path: Path) -> Path:
    """A new private key for SSH, its public half beside it."""
    path.unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)], check=True)
    return path


def ssh_endpoint(home: Path, port: int) -> Endpoint:
    """OpenSSH's server on 127.0.0.1, with keys `home/host_key` and `home/user_key`."""
    make_key(home / "host_key")
    shutil.copy(f"{make_key(home / 'user_key')}.pub", home / "root/.ssh/authorized_keys")
    (home / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {home}/host_key\nUsePAM no\nPidFile none\nStrictModes no\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        "PrintLastLog no\nPrintMotd no\nAllowTcpForwarding yes\n"
    )
    return Endpoint(home, ["/usr/sbin/sshd", "-D", "-e", "-f", f"{home}/sshd_config"], busybox=False)


def dropbear_endpoint(home: Path, port: int) -> Endpoint:
    """Dropbear on 127.0.0.1 and busybox, with keys `home/host_key` and `home/user_key`."""
    shutil.copy(f"{make_key(home / 'user_key')}.pub", home / "root/.ssh/authorized_keys")
    key = home / "dropbear_key"
    shown = subprocess.run(
        ["dropbearkey", "-t", "ed25519", "-f", str(key)], check=True, capture_output=True, text=True
    ).stdout
    public = next(line for line in shown.splitlines() if line.startswith("ssh-ed25519"))
    (home / "host_key.pub").write_text(public + "\n")
    argv = ["/usr/sbin/dropbear", "-F", "-E", "-s", "-r", str(key), "-p", f"127.0.0.1:{port}", "-P", f"{home}/pid"]
    return Endpoint(home, argv, busybox=True)


def known_hosts(path: Path, port: int, public_key: Path) -> Path:
    """A known-hosts file that knows 127.0.0.1 at this port."""
    kind, key, *_ = public_key.read_text().split()
    path.write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
    return path


def free_port() -> int:
    """A TCP port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Whether somebody accepts connections on 127.0.0.1 at this port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(condition: Callable[[], bool], what: str, *, seconds: float = 10.0) -> None:
    """Wait for a condition; the test fails when it doesn't come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not in {seconds} s: {what}"
        time.sleep(0.02)


def _namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/mnt").readlink())
    except OSError:
        return ""


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
