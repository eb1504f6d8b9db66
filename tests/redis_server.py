"""A Redis server of a test's own: real, on a unix socket or a port of its own, and as breakable as any."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from tests.desk import until


class RedisServer:
    """One server. `options` are those of redis-server, and hold for every start."""

    def __init__(self, directory: Path, *options: str, url: str = "", client: dict[str, Any] | None = None) -> None:
        self.directory = directory
        self._options = options
        self._socket = directory / "redis.sock"
        self.url = url or f"redis+socket://{self._socket}"
        self._client = client or {"unix_socket_path": str(self._socket)}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        listens = () if "--port" in self._options or "--tls-port" in self._options else ("--port", "0")
        with (self.directory / "redis.log").open("ab") as log:
            self.process = subprocess.Popen(
                ["redis-server", *listens, "--unixsocket", str(self._socket), "--save", "", "--dir", str(self.directory),
                 *self._options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        until("Redis answers", self._answers)

    def client(self) -> redis.Redis:
        """A client of it, past labctl."""
        return redis.Redis(socket_timeout=5, **self._client)

    def kill(self) -> None:
        """End it with no chance to do anything about it."""
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        """End it, in whatever state it is."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _answers(self) -> bool:
        with suppress(redis.RedisError, OSError), self.client() as client:
            return bool(client.ping())
        assert self.process is not None
        assert self.process.poll() is None, (self.directory / "redis.log").read_text()
        return False


@contextmanager
def a_redis(
    directory: Path, *options: str, url: str = "", client: dict[str, Any] | None = None
) -> Iterator[RedisServer]:
    """A server that runs as long as the block does."""
    directory.mkdir(parents=True, exist_ok=True)
    server = RedisServer(directory, *options, url=url, client=client)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
