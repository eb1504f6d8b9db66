"""The broker: where Redis is, how Celery is told, and what is wrong with it in words. Its password is never among them.

URLs are `redis://[USER]:PASSWORD@HOST:PORT/DB`, `rediss://...` with TLS, and `redis+socket:///PATH`. With TLS the
certificate of the server is always checked, unless the URL says `ssl_cert_reqs=none`: against the authorities that the
machine knows, or the one in the file that the URL (`?ssl_ca_certs=PATH`) or `LABCTL_BROKER_CA` names.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import redis
from redis import exceptions

from labctl.errors import LabError, SpecError
from labctl.spec.values import WEEK

VARIABLE = "LABCTL_BROKER"
CA_VARIABLE = "LABCTL_BROKER_CA"

LONGEST_STEP_SECONDS = int(WEEK)
"""No step of an attempt takes longer: what can be written as a time in a campaign file ends there."""
VISIBILITY_SECONDS = 2 * LONGEST_STEP_SECONDS
"""After so long Redis would deliver a message again that nobody has acknowledged (see `workers/app.py`)."""

_SCHEMES = ("redis", "rediss", "redis+socket")
_TLS_KEYS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_FULL = 0.7
"""Share of its memory limit from which on it is said that Redis is nearly full."""


@dataclass(frozen=True, kw_only=True)
class Broker:
    """One Redis. `tls` is what redis-py and kombu are told of the encryption; empty without any."""

    url: str = field(repr=False)
    """As Celery takes it: without the parameters that are in `tls`."""
    tls: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """Where it is, as people and logs are told."""
        parts = urlsplit(self.url)
        host = f"{parts.hostname or ''}:{parts.port or 6379}" if parts.scheme != "redis+socket" else ""
        return f"{parts.scheme}://{host}{parts.path}"

    def settings(self) -> dict[str, Any]:
        """How Celery is told: its URL, its encryption, and the visibility timeout in all three places that know one.
        Of apps that share a broker the shortest timeout wins, so all of labctl's have this one."""
        return {
            "broker_url": self.url,
            "broker_use_ssl": dict(self.tls) or None,
            "broker_transport_options": {
                "visibility_timeout": VISIBILITY_SECONDS,
                "health_check_interval": 10,
                "socket_keepalive": True,
                "socket_connect_timeout": 5,
                "socket_timeout": 30,
            },
            "result_backend_transport_options": {"visibility_timeout": VISIBILITY_SECONDS},
            "visibility_timeout": VISIBILITY_SECONDS,
        }

    def client(self, *, seconds: float = 2.0) -> redis.Redis:
        """A client of its own; no answer to a command takes longer than so many seconds."""
        parts = urlsplit(self.url)
        common: dict[str, Any] = {
            "username": unquote(parts.username or "") or None,
            "password": unquote(parts.password or "") or None,
            "db": _database(parts),
            "socket_timeout": seconds,
            "socket_connect_timeout": seconds,
        }
        if parts.scheme == "redis+socket":
            return redis.Redis(unix_socket_path=parts.path, **common)
        encrypted = {"ssl": True, **self.tls} if self.tls else {}
        return redis.Redis(host=parts.hostname or "localhost", port=parts.port or 6379, **common, **encrypted)


def broker_of(url: str, environment: Mapping[str, str] = os.environ) -> Broker:
    """The broker that a URL names. Raises `SpecError` for one that is no Redis."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in _SCHEMES and (parts.port is None or parts.port > 0) and _database(parts) >= 0
    except ValueError:
        usable = False
    if not usable:
        raise SpecError(
            "The broker's URL can't be used.",
            why="It is none of redis://[:PASSWORD@]HOST:PORT/DB, rediss://... (with TLS) and redis+socket:///PATH. "
            "Special characters of a password are written as %XX.",
            todo=f"Mend --broker or {VARIABLE}.",
        )
    if parts.scheme != "rediss":
        return Broker(url=url)
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    tls: dict[str, Any] = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}
    if query.get("ssl_cert_reqs", "").lower().removeprefix("cert_") == "none":
        tls = {"ssl_cert_reqs": ssl.CERT_NONE, "ssl_check_hostname": False}
    tls |= {"ssl_ca_certs": environment[CA_VARIABLE]} if environment.get(CA_VARIABLE) else {}
    tls |= {key: query[key] for key in _TLS_KEYS if key in query}
    for key in _TLS_KEYS:
        if key in tls and not os.access(tls[key], os.R_OK):
            raise SpecError(f"The broker's {key} can't be read: {tls[key]}.", todo="Name a file that is there.")
    return Broker(url=parts._replace(query="").geturl(), tls=tls)


def check(broker: Broker) -> tuple[str, ...]:
    """Ask whether the broker can be used, and return what should be otherwise, in sentences.

    Raises `LabError` (`broker`) when it doesn't answer, refuses the password, or takes no messages.
    """
    client = broker.client(seconds=5.0)
    try:
        memory: Mapping[str, Any] = client.info("memory")  # type: ignore[assignment]  # awaitable only with asyncio
        client.set("labctl.check", "", ex=60)
    except (exceptions.RedisError, OSError) as error:
        raise trouble(broker, error) from error
    finally:
        client.close()
    said = []
    policy, limit = memory.get("maxmemory_policy", "noeviction"), int(memory.get("maxmemory", 0))
    if policy != "noeviction":
        said.append(
            f"The broker's maxmemory-policy is {policy}: short of memory it drops messages, and each costs its run a minute. "
            f"Set it to noeviction."
        )
    if limit and int(memory.get("used_memory", 0)) > _FULL * limit:
        said.append(f"The broker has used {memory['used_memory'] / limit:.0%} of its memory limit; raise maxmemory.")
    return tuple(said)


def trouble(broker: Broker, error: BaseException) -> LabError:
    """What is wrong with the broker, and what to do about it, as an error to be raised."""
    cause = error.__cause__ if isinstance(error.__cause__, exceptions.RedisError) else error
    what, why, todo = _words(cause, str(cause))
    return LabError(f"The broker {broker.shown} {what}.", kind="broker", why=why, todo=todo)


def waiting(client: redis.Redis, queues: Iterable[str]) -> int:
    """How many messages wait in these queues. Also says whether the broker answers: raises what redis-py raises."""
    pipe = client.pipeline(transaction=False)
    pipe.ping()
    for queue in queues:
        pipe.llen(queue)
    return sum(int(count) for count in pipe.execute()[1:])


def waiting_among(client: redis.Redis, queues: Iterable[str], names: Mapping[str, int]) -> frozenset[int]:
    """Of messages by their names (with a number each), the numbers of those that still wait in one of these queues."""
    pipe = client.pipeline(transaction=False)
    for queue in queues:
        pipe.lrange(queue, 0, -1)
    texts = [text for found in pipe.execute() for text in found]
    return frozenset(number for name, number in names.items() if any(f'"{name}"'.encode() in text for text in texts))


def _words(error: BaseException, text: str) -> tuple[str, str, str]:
    """(what, why, what to do) for an error of redis-py."""
    lower = text.lower()
    if isinstance(error, exceptions.AuthenticationError | exceptions.AuthenticationWrongNumberOfArgsError):
        return (
            "refuses the password" if "invalid" in lower or "wrong" in lower else "wants a password",
            "",
            f"Put user and password into {VARIABLE}: redis://[USER]:PASSWORD@HOST:PORT/DB, special characters as %XX.",
        )
    if isinstance(error, exceptions.NoPermissionError):
        return "forbids a command to this user", text, "Give the user `+@all ~*` on a database of its own."
    if isinstance(error, exceptions.OutOfMemoryError) or "command not allowed when used memory" in lower:
        return "is full", text, "Raise maxmemory, or give labctl a Redis of its own; the work goes on by itself then."
    if "misconf" in lower:
        return (
            "is read-only",
            "It can't write its files: " + text,
            'Free space on the disk of Redis, or switch its snapshots off (`save ""`); the work goes on by itself then.',
        )
    if isinstance(error, exceptions.ReadOnlyError) or "read only replica" in lower:
        return "is read-only", text, "Name the primary, not a replica."
    if "certificate" in lower or "ssl" in lower or "tls" in lower:
        return (
            "can't be trusted",
            text,
            f"Name the file of its certificate authority: {CA_VARIABLE}, or ?ssl_ca_certs=PATH in the URL.",
        )
    return "does not answer", text, f"See whether Redis runs there, and whether --broker or {VARIABLE} is right."


def _database(parts: SplitResult) -> int:
    """The number of the database in a URL. Raises `ValueError` when it is none."""
    if parts.scheme == "redis+socket":
        return int(parse_qs(parts.query).get("virtual_host", ["0"])[-1])
    return int(parts.path.strip("/") or 0)
