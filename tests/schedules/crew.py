"""The processes of one night: services and their workers, and Redis; started, found, stopped and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import redis

from tests.schedules.forks import PROGRAMS, ForkedProcess, descendants
from tests.schedules.programs import NIGHT, TELL
from tests.schedules.shortened import PATIENCE

Say = Callable[[str], None]


@dataclass(kw_only=True)
class Service:
    """One service. While it does not run, `due` is when it is started again."""

    number: int
    process: ForkedProcess | None = None
    due: float | None = None
    codes: list[int] = field(default_factory=list)
    """With which codes it has ended so far."""


class Crew:
    """All processes of a night but the one that conducts it. `directory` is that of its fork server."""

    def __init__(self, directory: Path, *, services: int, shared_redis: bool, say: Say) -> None:
        self.server = os.getppid()
        """The process of the fork server, from which all others descend."""
        self.directory = directory
        self.state = directory / "state"
        self.temporary = directory / "tmp"
        self.logs = directory / "logs"
        self.services = [Service(number=number) for number in range(services)]
        self.pause = 0.3
        """Seconds until a service that has died is started again."""
        self._shared = directory / "redis.sock" if shared_redis else None
        self._redis: subprocess.Popen[bytes] | None = None
        self._stopped: dict[int, float] = {}
        """Processes that are stopped, and when they go on."""
        self._say = say

    # Services

    def start(self, service: Service) -> None:
        """Start a service."""
        broker = ["--broker", f"redis+socket://{self._shared}"] if self._shared else []
        own = {"LABCTL_PATIENCE": PATIENCE, NIGHT: str(self.directory), "TMPDIR": str(self.temporary)}
        with (self.logs / f"service-{service.number}.log").open("ab") as output:
            service.process = ForkedProcess(
                self.directory, "service", ["--state", str(self.state), *broker, "worker"],
                environment=os.environ | own, directory=self.directory, stdout=output.fileno(), stderr=output.fileno(),
            )  # fmt: skip
        service.due = None
        self._say(f"service {service.number} is started, process {service.process.pid}")

    def look(self) -> None:
        """Start services again that have died, and let processes go on that were stopped long enough."""
        now = time.monotonic()
        for service in self.services:
            if service.process is not None and service.process.poll() is not None:
                self._ended(service)
                service.due = now + self.pause
            if service.process is None and service.due is not None and service.due <= now:
                self.start(service)
        for pid, until in list(self._stopped.items()):
            if until <= now:
                self.let_go_on(pid)

    def end(self, service: Service, *, seconds: float) -> int | None:
        """Ask a service to end, and wait for it. Returns its code; None when it doesn't end."""
        assert service.process is not None
        process = service.process
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            self._ended(service)
        return process.returncode

    def _ended(self, service: Service) -> None:
        assert service.process is not None
        assert service.process.returncode is not None
        self._say(f"service {service.number}, process {service.process.pid}, ended with {service.process.returncode}")
        service.codes.append(service.process.returncode)
        service.process, service.due = None, None

    # Redis

    def start_redis(self) -> None:
        """Start the Redis that the services share, if they do."""
        if self._shared is None:
            return
        self._shared.unlink(missing_ok=True)
        with (self.logs / "redis.log").open("ab") as output:
            self._redis = subprocess.Popen(
                ["redis-server", "--port", "0", "--unixsocket", str(self._shared), "--save", "", "--appendonly", "no",
                 "--dir", str(self.directory)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    def end_redis(self) -> None:
        """End the Redis that the services share, at once."""
        if self._redis is not None:
            self._redis.kill()
            self._redis.wait()
            self._redis = None

    def sockets(self) -> list[Path]:
        """Where all Redis are that run."""
        return [self._shared] if self._shared else sorted(self.temporary.glob("labctl-*/redis.sock"))

    def clients(self) -> list[redis.Redis]:
        """Clients of all Redis that run."""
        return [redis.Redis(unix_socket_path=str(path), socket_timeout=1.0) for path in self.sockets()]

    def redis_processes(self) -> list[int]:
        """The processes of all Redis."""
        return sorted(pid for pid in descendants(self.server) if _name(pid) == "redis-server")

    # Processes

    def mains(self) -> list[int]:
        """The main processes of Celery workers."""
        return self._of("worker")

    def workers(self) -> list[int]:
        """The processes that carry out attempts."""
        mains, alive = set(self.mains()), descendants(self.server)
        return sorted(pid for pid in alive if _parent(pid) in mains)

    def stop(self, pid: int, seconds: float) -> None:
        """Stop a process for a while."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            self._stopped[pid] = time.monotonic() + seconds
            self._say(f"process {pid} is stopped")

    def find_stopped(self, seconds: float) -> None:
        """Notice workers that have stopped themselves: they go on after so many seconds."""
        for pid, state in descendants(self.server).items():
            if state == "T" and pid not in self._stopped:
                self._stopped[pid] = time.monotonic() + seconds
                self._say(f"process {pid} has stopped")

    def let_go_on(self, pid: int) -> None:
        """Let a process go on that was stopped."""
        self._stopped.pop(pid, None)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
            self._say(f"process {pid} goes on")

    def let_all_go_on(self) -> None:
        """Let all processes go on that are stopped."""
        self.find_stopped(0.0)
        for pid in list(self._stopped):
            self.let_go_on(pid)

    def kill(self, pid: int) -> bool:
        """Kill a process. False when there is none."""
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self._say(f"process {pid} is killed")
        return True

    def tell(self) -> None:
        """Have all services and workers that run say in their logs what they do."""
        for pid in {*self._of("service"), *self.mains(), *self.workers()}:
            with suppress(ProcessLookupError):
                os.kill(pid, TELL)

    def left(self) -> dict[int, str]:
        """All processes of the night that run, with their command lines, but for who conducts it and the shared Redis."""
        own = {os.getpid(), self._redis.pid if self._redis is not None else 0}
        return {pid: _command_line(pid) for pid in descendants(self.server) if pid not in own}

    def _of(self, program: str) -> list[int]:
        alive = descendants(self.server)
        paths = (self.directory / PROGRAMS).iterdir()
        return sorted(int(path.name) for path in paths if int(path.name) in alive and path.read_text() == program)


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return ""
