"""What `labctl run` starts for itself and stops again: a private Redis and a worker.

Redis listens on a unix socket in a directory of its own and keeps nothing on disk: the store is the truth. Both
processes have sessions of their own, so that a Ctrl-C in the terminal reaches only the command itself, and both end
when the command dies, however it dies (PR_SET_PDEATHSIG for Redis; the worker watches its owner).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from labctl.campaign.dispatch import CeleryDispatcher, queue_of
from labctl.errors import LabError
from labctl.model.lab import Lab

_START_SECONDS = 15.0
_STOP_SECONDS = 10.0
_LAST_SECONDS = 45.0
"""How long a worker may take to end its attempts and to remove their VMs."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True)
class Session:
    """A running engine: where its broker is, what sends to it, and its worker process."""

    broker: str
    dispatcher: CeleryDispatcher
    redis: subprocess.Popen[bytes]
    worker: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Raise `LabError` (`worker-died`, `broker`) when the worker or Redis has ended by itself."""
        code = self.worker.poll()
        if code is not None:
            raise LabError(
                f"The worker ended with exit code {code}.",
                kind="worker-died",
                why=_tail(self.log),
                todo="The campaign is kept: `labctl run --resume ID` goes on with it.",
            )
        code = self.redis.poll()
        if code is not None:
            raise LabError(
                f"The private Redis ended with exit code {code}.",
                kind="broker",
                why="Something other than labctl ended it; for want of memory, perhaps.",
                todo="The campaign is kept: `labctl run --resume ID` goes on with it.",
            )


@contextmanager
def session(lab: Lab, *, state: Path, store_url: str, slots: int) -> Iterator[Session]:
    """Start Redis and a worker with so many slots; stop both at the end, whatever happens.

    Raises `LabError` (`missing-program`, `broker`, `worker-died`) when they don't come up.
    """
    logs = state / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="labctl-") as directory:
        broker = Path(directory) / "redis.sock"
        with _redis(broker, Path(directory)) as process:
            url = f"redis+socket://{broker}"
            log = logs / f"worker-{os.getpid()}.log"
            with _worker(
                lab, broker=url, store_url=store_url, slots=slots, log=log, directory=Path(directory)
            ) as worker:
                dispatcher = CeleryDispatcher(url)
                try:
                    yield Session(broker=url, dispatcher=dispatcher, redis=process, worker=worker, log=log)
                finally:
                    dispatcher.close()


@contextmanager
def _redis(socket: Path, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    program = shutil.which("redis-server")
    if program is None:
        raise LabError(
            "redis-server is not installed.",
            kind="missing-program",
            why="`labctl run` brings up a private Redis as the broker between itself and its workers.",
            todo="Run `make setup`, or `apt-get install redis-server`.",
        )
    log = directory / "redis.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, "--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700", "--save", "",
             "--appendonly", "no", "--maxmemory-policy", "noeviction", "--daemonize", "no", "--dir", str(directory)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=_end_with_parent,
        )  # fmt: skip
    try:
        _wait_for_redis(process, socket, log)
        yield process
    finally:
        _stop(process, seconds=_STOP_SECONDS)


def _wait_for_redis(process: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    client = redis.Redis(unix_socket_path=str(socket), socket_timeout=2)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(redis.RedisError, OSError):
            client.ping()
            client.close()
            return
        time.sleep(0.02)
    raise LabError(
        "The private Redis did not come up.", kind="broker", why=_tail(log), todo="See the message of Redis."
    )


@contextmanager
def _worker(
    lab: Lab, *, broker: str, store_url: str, slots: int, log: Path, directory: Path
) -> Iterator[subprocess.Popen[bytes]]:
    ready, stop = directory / "worker.ready", directory / "worker.stop"
    environment = os.environ | {
        "LABCTL_BROKER": broker,
        "LABCTL_STORE": store_url,
        "LABCTL_OWNER": str(os.getpid()),
        "LABCTL_READY": str(ready),
        "LABCTL_STOP": str(stop),
        "PYTHONUNBUFFERED": "1",
    }
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "workers.app", "worker", "--pool", "prefork",
             "--concurrency", str(slots), "--queues", queue_of(lab), "--hostname", f"run-{os.getpid()}@%h",
             "--without-gossip", "--without-mingle", "--loglevel", "INFO"],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=directory,
            start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise LabError("The worker did not come up.", kind="worker-died", why=_tail(log), todo=f"See {log}.")
            time.sleep(0.05)
        yield process
    finally:
        stop.touch()
        _stop(process, seconds=_LAST_SECONDS)


def _stop(process: subprocess.Popen[bytes], *, seconds: float) -> None:
    """End a process group that we started: ask, wait so many seconds, then force."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end_with_parent() -> None:
    """In the child, before the program starts: be sent SIGTERM when the parent dies (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _tail(log: Path) -> str:
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-5:])
    return ""
