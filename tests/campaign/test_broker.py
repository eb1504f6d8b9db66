"""The broker's URL, and its troubles in words: over real Redis servers, with a password, with TLS, full, read-only."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from labctl.campaign.broker import CA_VARIABLE, LONGEST_STEP_SECONDS, VISIBILITY_SECONDS, Broker, broker_of, check
from labctl.campaign.dispatch import CeleryDispatcher, message_name, still_waiting
from labctl.campaign.queues import queue_of
from labctl.errors import LabError, SpecError
from labctl.store import AttemptHandle
from tests.certificates import make_certificates
from tests.desk import until
from tests.redis_server import RedisServer, a_redis, free_port
from tests.values import a_lab

PASSWORD = "s3cret%2Fword"
HANDLE = AttemptHandle(id=7, token="f" * 32)


def refused(broker: Broker) -> LabError:
    with pytest.raises(LabError) as caught:
        check(broker)
    assert caught.value.kind == "broker"
    for secret in ("s3cret", "hunter2"):
        assert secret not in str(caught.value)
        assert secret not in repr(broker)
    return caught.value


def send(broker: Broker) -> None:
    dispatcher = CeleryDispatcher(broker)
    try:
        dispatcher.attempt(a_lab(), HANDLE)
    finally:
        dispatcher.close()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost", "redis://localhost:6379"),
        ("redis://user:hunter2@far:1/3", "redis://far:1/3"),
        ("rediss://:hunter2@far/0?ssl_cert_reqs=none", "rediss://far:6379/0"),
        ("redis+socket:///run/redis.sock", "redis+socket:///run/redis.sock"),
        ("redis+socket://:hunter2@/run/redis.sock?virtual_host=2", "redis+socket:///run/redis.sock"),
    ],
)
def test_a_broker_is_shown_without_its_password(url: str, shown: str) -> None:
    broker = broker_of(url, {})
    assert broker.shown == shown
    assert "hunter2" not in repr(broker)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost",
        "amqp://u:hunter2@h",
        "http://h",
        "redis://:hunter2@h:notaport/",
        "redis://h/hunter2",
        "redis://[h",
    ],
)
def test_what_is_no_redis_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(SpecError) as caught:
        broker_of(url, {})
    assert "hunter2" not in str(caught.value)
    assert "redis+socket" in str(caught.value)


def test_tls_checks_certificates_unless_told_otherwise(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    asked = broker_of(f"rediss://h?ssl_ca_certs={ca}", {})
    assert asked.tls == broker_of("rediss://h", {CA_VARIABLE: str(ca)}).tls
    assert asked.tls["ssl_ca_certs"] == str(ca)
    assert asked.tls["ssl_check_hostname"] is True
    assert broker_of("rediss://h?ssl_cert_reqs=none", {}).tls["ssl_check_hostname"] is False
    with pytest.raises(SpecError, match=r"nowhere\.pem"):
        broker_of("rediss://h?ssl_ca_certs=/nowhere.pem", {})


def test_c1_the_visibility_timeout_is_the_same_in_all_three_places_and_longer_than_any_step() -> None:
    settings = broker_of("redis://h", {}).settings()
    found = {
        settings["visibility_timeout"],
        settings["broker_transport_options"]["visibility_timeout"],
        settings["result_backend_transport_options"]["visibility_timeout"],
    }
    assert found == {VISIBILITY_SECONDS}
    assert VISIBILITY_SECONDS > LONGEST_STEP_SECONDS >= 7 * 24 * 3600


def fill(client: redis.Redis, *, share: float) -> None:
    """Take memory until so much of the limit is used."""
    number = 0
    while (memory := client.info("memory"))["used_memory"] < share * memory["maxmemory"]:
        client.set(f"ballast-{number}", b"x" * 50_000)
        number += 1


@pytest.fixture
def with_password(tmp_path: Path) -> Iterator[RedisServer]:
    port = free_port()
    client = {"host": "127.0.0.1", "port": port, "password": "s3cret/word"}
    url = f"redis://:{PASSWORD}@127.0.0.1:{port}/0"
    with a_redis(
        tmp_path / "redis", "--port", f"{port}", "--requirepass", "s3cret/word", url=url, client=client
    ) as server:
        yield server


@pytest.mark.services
def test_a_wrong_or_missing_password_is_told_and_never_said(with_password: RedisServer) -> None:
    assert check(broker_of(with_password.url)) == ()
    send(broker_of(with_password.url))
    wrong = refused(broker_of(with_password.url.replace(PASSWORD, "hunter2")))
    assert "refuses the password" in wrong.what
    assert "LABCTL_BROKER" in wrong.todo
    missing = refused(broker_of(with_password.url.replace(f":{PASSWORD}@", "")))
    assert "wants a password" in missing.what
    with pytest.raises(LabError, match="refuses the password") as caught:
        send(broker_of(with_password.url.replace(PASSWORD, "hunter2")))
    assert "hunter2" not in str(caught.value)


@pytest.mark.services
def test_a_server_with_tls_is_trusted_by_its_authority_only(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    port, ca = free_port(), tmp_path / "ca.pem"
    url = f"rediss://127.0.0.1:{port}/0"
    options = ("--tls-port", f"{port}", "--port", "0", "--tls-cert-file", f"{tmp_path}/server.pem",
               "--tls-key-file", f"{tmp_path}/server.key", "--tls-ca-cert-file", f"{ca}",
               "--tls-auth-clients", "no")  # fmt: skip
    with a_redis(tmp_path / "redis", *options, url=url):
        trusted = broker_of(f"{url}?ssl_ca_certs={ca}")
        assert check(trusted) == ()
        send(trusted)
        assert still_waiting(trusted.client(), (queue_of(a_lab()),), (7, 8)) == {7}
        send(broker_of(url, {CA_VARIABLE: str(ca)}))
        error = refused(broker_of(url, {}))
        assert "can't be trusted" in error.what
        assert CA_VARIABLE in error.todo
        wrong_name = f"rediss://localhost:{port}/0"
        assert "can't be trusted" in refused(broker_of(wrong_name, {CA_VARIABLE: str(ca)})).what
        assert check(broker_of(f"{wrong_name}?ssl_cert_reqs=none", {})) == ()


@pytest.mark.services
def test_nobody_there_is_told_with_what_to_do(tmp_path: Path) -> None:
    error = refused(broker_of(f"redis://:hunter2@127.0.0.1:{free_port()}/0"))
    assert "does not answer" in error.what
    assert "--broker" in error.todo
    assert "does not answer" in refused(broker_of(f"redis+socket://{tmp_path}/nobody.sock")).what


@pytest.mark.services
def test_c9_a_policy_that_drops_messages_and_a_nearly_full_redis_are_said(tmp_path: Path) -> None:
    with a_redis(tmp_path, "--maxmemory", "5mb", "--maxmemory-policy", "allkeys-lru") as server:
        (said,) = check(broker_of(server.url))
        assert "allkeys-lru" in said
        with server.client() as client:
            client.config_set("maxmemory-policy", "noeviction")
            assert check(broker_of(server.url)) == ()
            fill(client, share=0.8)
        (said,) = check(broker_of(server.url))
        assert "of its memory limit" in said


@pytest.mark.services
def test_c9_a_full_redis_is_said_and_takes_messages_again_when_there_is_room(tmp_path: Path) -> None:
    with (
        a_redis(tmp_path, "--maxmemory", "4mb", "--maxmemory-policy", "noeviction") as server,
        server.client() as client,
    ):
        broker = broker_of(server.url)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            fill(client, share=2.0)
        assert "is full" in refused(broker).what
        with pytest.raises(LabError, match="is full"):
            send(broker)
        client.config_set("maxmemory", "0")
        assert check(broker) == ()
        send(broker)


@pytest.mark.services
def test_c9_a_redis_that_cannot_write_its_files_is_read_only_not_hung(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "labctl-test", str(disk)], check=True)
    try:
        with a_redis(tmp_path / "redis", "--enable-protected-configs", "yes") as server, server.client() as client:
            client.set("ballast", bytes(range(256)) * 1000)
            client.config_set("rdbcompression", "no")
            client.config_set("dir", str(disk))
            client.config_set("save", "1 1")
            client.bgsave()
            until("it can't write its file", lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
            broker = broker_of(server.url)
            error = refused(broker)
            assert "is read-only" in error.what
            assert "disk" in error.todo
            with pytest.raises(LabError, match="is read-only"):
                send(broker)
            client.config_set("dir", str(tmp_path / "redis"))
            client.save()
            send(broker)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.services
def test_m5_messages_are_small_and_name_no_moment_to_wait_for(tmp_path: Path) -> None:
    with a_redis(tmp_path) as server, server.client() as client:
        broker = broker_of(server.url)
        send(broker)
        (message,) = client.lrange(queue_of(a_lab()), 0, -1)
        assert len(message) < 1200
        assert b'"eta": null' in message
        assert b'"expires": null' in message
        assert message_name(7).encode() in message
        assert still_waiting(client, (queue_of(a_lab()),), (7, 70)) == {7}
        assert still_waiting(client, ("another.queue",), (7,)) == frozenset()
        client.flushall()
        send(broker)
        assert client.llen(queue_of(a_lab())) == 1, "C9: what is lost with a flush is no binding that a message needs"
