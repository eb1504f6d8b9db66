"""Certificates with something wrong about them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


def own_certificate(
    folder: Path,
    *,
    address: str = "127.0.0.1",
    starts: timedelta = timedelta(hours=-1),
    lasts: timedelta = timedelta(days=1),
) -> Path:
    """A certificate that has signed itself (`server.pem`, `server.key`); who trusts it, trusts `server.pem`."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, address)])
    start = datetime.now(UTC) + starts
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + lasts)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address(address))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "server.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    (folder / "server.key").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )
    return folder
