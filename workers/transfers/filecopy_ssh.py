"""`filecopy` over SSH: an `sshd` of the transfer's own, with keys that are made for it and live as long."""

from __future__ import annotations

from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from labctl.model.order import TransferOrder
from workers.transfers.base import Placing, Process

_SSHD = """Port {port}
ListenAddress {server}
HostKey {host_key}
AuthorizedKeysFile {authorised}
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
PidFile none
UsePAM no
AllowTcpForwarding no
X11Forwarding no
Compression no
Subsystem sftp internal-sftp
"""


def placings(
    order: TransferOrder, server: str, port: int, source: str, target: str, beside: Callable[[str], str]
) -> tuple[Placing, ...]:
    """Host key, user key, configuration of sshd (sshd_config(5)), known host, and for sftp its batch."""
    host, user = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    config = _SSHD.format(port=port, server=server, host_key=beside("hostkey"), authorised=beside("authorised"))
    client, serving = Process.CLIENT, Process.SERVER
    files = [
        Placing(at=serving, path=beside("hostkey"), content=_private(host)),
        Placing(at=serving, path=beside("authorised"), content=_public(user) + b"\n"),
        Placing(at=serving, path=beside("sshd"), content=config.encode()),
        Placing(at=client, path=beside("key"), content=_private(user)),
        Placing(at=client, path=beside("known"), content=f"[{server}]:{port} ".encode() + _public(host) + b"\n"),
    ]
    if order.copy == "sftp":
        # `-f` has the side that writes force the file to its disk before it confirms (fsync@openssh.com).
        flush = " -f" if order.cache == "cold" else ""
        verb = "get" if order.reverse else "put"
        files.append(Placing(at=client, path=beside("batch"), content=f"{verb}{flush} {source} {target}\n".encode()))
    return tuple(files)


def client(
    order: TransferOrder, server: str, port: int, source: str, target: str, beside: Callable[[str], str]
) -> tuple[str, ...]:
    """`scp` or `sftp` as root, which checks the server's key and asks nothing. Files of the user are not read."""
    common = ["-q", "-F", "/dev/null", "-P", str(port), "-i", beside("key")]
    for option in ("BatchMode=yes", "IdentitiesOnly=yes", "StrictHostKeyChecking=yes", "Compression=no"):
        common += ["-o", option]
    common += ["-o", f"UserKnownHostsFile={beside('known')}"]
    there = f"root@{server}"
    if order.copy == "sftp":
        return ("sftp", *common, "-b", beside("batch"), there)
    pair = (f"{there}:{source}", target) if order.reverse else (source, f"{there}:{target}")
    return ("scp", *common, *pair)


def _private(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def _public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
