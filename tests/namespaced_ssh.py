"""Keys and readiness of SSH servers that tests start in network namespaces."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path


def make_key(path: Path) -> Path:
    """A new private key, its public half beside it."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)], check=True)
    return path


def known_hosts(path: Path, address: str, public_key: Path) -> Path:
    """A known-hosts file that knows this address."""
    kind, key, *_ = public_key.read_text().split()
    path.write_text(f"{address} {kind} {key}\n")
    return path


def listening(address: str, port: int, *, log: Path, seconds: float = 10.0) -> None:
    """Wait until somebody accepts connections there; the test fails when nobody does."""
    end = time.monotonic() + seconds
    while True:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex((address, port)) == 0:
                return
        assert time.monotonic() < end, log.read_text(errors="replace")
        time.sleep(0.02)
