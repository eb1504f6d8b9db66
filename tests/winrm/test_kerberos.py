"""Kerberos: tickets by kinit, and where a domain controller can be had (MIT's), messages that are encrypted with them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl.errors import LabError
from labctl.model.lab import Login, SecretRef, WinrmAccess, WinrmTransport
from tests.simulators.winrm import WinrmEndpoint
from tests.winrm.conftest import READS, Place, echo
from workers.winrm import WinrmPowerShell, tickets
from workers.winrm.tickets import TicketRefused, Tickets

SECONDS = 20.0

KINIT = '''#!{python}
"""Says what it was given, and ends as ordered."""
import json, os, pathlib, sys
folder = pathlib.Path(__file__).parent
told = {{"argv": sys.argv[1:], "stdin": sys.stdin.read(), "locale": os.environ["LC_ALL"]}}
with (folder / "told").open("a") as file:
    file.write(json.dumps(told) + "\\n")
says = (folder / "says").read_text() if (folder / "says").exists() else ""
sys.stderr.write(says)
sys.exit(1 if says else 0)
'''


class Kinit:
    """A program in place of kinit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "kinit").write_text(KINIT.format(python=sys.executable))
        (folder / "kinit").chmod(0o755)

    def says(self, text: str) -> None:
        (self.folder / "says").write_text(text)

    @property
    def told(self) -> list[str]:
        path = self.folder / "told"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def kinit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kinit:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("KRB5CCNAME", "unchanged")
    return Kinit(folder)


def obtain(tickets: Tickets, principal: str = "op@LAB.EXAMPLE", password: str = "secret!") -> None:
    tickets.obtain(principal, password, where="host hv1", host="hv1")


def test_the_password_goes_to_standard_input_only(kinit: Kinit) -> None:
    obtain(Tickets())
    (told,) = kinit.told
    assert '"stdin": "secret!\\n"' in told
    assert "secret!" not in told.partition('"stdin"')[0]
    assert '"locale": "C"' in told


def test_a_ticket_is_got_once_and_anew_when_it_is_old_or_the_password_is_another(
    kinit: Kinit, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Tickets()
    obtain(own)
    obtain(own)
    assert len(kinit.told) == 1
    obtain(own, password="another")
    obtain(own, principal="other@LAB.EXAMPLE")
    assert len(kinit.told) == 3
    assert os.environ["KRB5CCNAME"].startswith("DIR:")
    monkeypatch.setattr(tickets, "RENEW_SECONDS", 0.0)
    obtain(own, principal="other@LAB.EXAMPLE")
    assert len(kinit.told) == 4


@pytest.mark.parametrize(
    "says",
    [
        "kinit: Password incorrect while getting initial credentials",
        "kinit: Preauthentication failed while getting initial credentials",
        "kinit: Client's credentials have been revoked while getting initial credentials",
    ],
)
def test_a_user_or_password_that_is_no_good(kinit: Kinit, says: str) -> None:
    kinit.says(says)
    with pytest.raises(TicketRefused):
        obtain(Tickets())


@pytest.mark.parametrize(
    ("says", "kind", "todo"),
    [
        ("kinit: Cannot find KDC for realm", "unreachable", "krb5.conf"),
        ("kinit: Clock skew too great", "refused", "clock"),
    ],
)
def test_what_else_keeps_tickets_from_coming(kinit: Kinit, says: str, kind: str, todo: str) -> None:
    kinit.says(says)
    with pytest.raises(LabError, match="no Kerberos ticket") as caught:
        obtain(Tickets())
    assert caught.value.kind == kind
    assert todo in caught.value.todo


def test_no_kinit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("KRB5CCNAME", "unchanged")
    with pytest.raises(LabError, match="no Kerberos ticket") as caught:
        obtain(Tickets())
    assert "krb5-user" in caught.value.todo


def test_a_user_without_its_realm_is_refused(place: Place, endpoint: WinrmEndpoint) -> None:
    with pytest.raises(LabError) as caught:
        place.shell(endpoint, WinrmTransport.KERBEROS).call(READS, {"value": 1}, timeout=SECONDS)
    assert caught.value.kind == "refused"
    assert "NAME@DOMAIN" in caught.value.todo


# --- with a domain of the test's own ----------------------------------------------------------------------------------

MODULES = ("kerberos", "gssapi", "krb5")
lacking = [name for name in MODULES if importlib.util.find_spec(name) is None]
lacking += [name for name in ("krb5kdc", "kadmin.local", "kinit") if shutil.which(name) is None]
with_a_domain = pytest.mark.skipif(bool(lacking), reason=f"no {', '.join(lacking)}")

CONFIGURATION = """[libdefaults]
 default_realm = LAB.EXAMPLE
 dns_lookup_kdc = false
 dns_canonicalize_hostname = false
 rdns = false
[realms]
 LAB.EXAMPLE = {{
  kdc = 127.0.0.1:{port}
 }}
"""
CONTROLLER = """[kdcdefaults]
 kdc_listen = 127.0.0.1:{port}
 kdc_tcp_listen = 127.0.0.1:{port}
[realms]
 LAB.EXAMPLE = {{
  database_name = {folder}/principal
  key_stash_file = {folder}/stash
  acl_file = {folder}/acl
 }}
"""
PLUGINS = "[dbmodules]\n db_module_dir = {}\n"


@pytest.fixture
def domain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A domain with the user op and the host localhost."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    controller = CONTROLLER.format(port=port, folder=tmp_path)
    if "LABCTL_TEST_KDB_PLUGINS" in os.environ:
        controller += PLUGINS.format(os.environ["LABCTL_TEST_KDB_PLUGINS"])
    (tmp_path / "krb5.conf").write_text(CONFIGURATION.format(port=port))
    (tmp_path / "kdc.conf").write_text(controller)
    monkeypatch.setenv("KRB5_CONFIG", str(tmp_path / "krb5.conf"))
    monkeypatch.setenv("KRB5_KDC_PROFILE", str(tmp_path / "kdc.conf"))
    monkeypatch.setenv("KRB5_KTNAME", str(tmp_path / "keytab"))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/nothing")
    monkeypatch.setattr("workers.winrm.session.TICKETS", Tickets())
    for command in (
        ["kdb5_util", "create", "-s", "-P", "master", "-r", "LAB.EXAMPLE"],
        ["kadmin.local", "-q", "addprinc -pw secret! op@LAB.EXAMPLE"],
        ["kadmin.local", "-q", "addprinc -randkey HTTP/localhost@LAB.EXAMPLE"],
        ["kadmin.local", "-q", f"ktadd -k {tmp_path}/keytab HTTP/localhost@LAB.EXAMPLE"],
    ):
        subprocess.run(command, check=True, capture_output=True)
    process = subprocess.Popen(["krb5kdc", "-n"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 10
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.02)
    yield
    process.kill()
    process.wait()


def kerberos_shell(endpoint: WinrmEndpoint, secret: Path, name: str = "localhost") -> WinrmPowerShell:
    access = WinrmAccess(
        url=endpoint.url.replace("127.0.0.1", name),
        login=Login(user="op@lab.example", password=SecretRef(scheme="file", locator=str(secret))),
        transport=WinrmTransport.KERBEROS,
    )
    return WinrmPowerShell(where="host hv1", access=access, host="hv1")


@with_a_domain
@pytest.mark.services
@pytest.mark.usefixtures("domain")
def test_messages_over_plain_http_are_encrypted_by_kerberos(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    with WinrmEndpoint(echo, users={}, transports=frozenset({"kerberos"})) as endpoint:
        secret.write_text("wrong")
        shell = kerberos_shell(endpoint, secret)
        for _ in range(3):
            with pytest.raises(LabError, match="refuses the user"):
                shell.call(READS, {"value": 1}, timeout=SECONDS)
        assert endpoint.requests == {}
        secret.write_text("secret!")
        for _ in range(2):
            answer = shell.call(READS, {"value": "who"}, timeout=SECONDS)
            assert answer == {"value": ["op@LAB.EXAMPLE", "kerberos"]}
            endpoint.cut_connections()
        assert endpoint.unencrypted == 0
        shell.close()


@with_a_domain
@pytest.mark.services
@pytest.mark.usefixtures("domain")
def test_a_name_that_the_domain_does_not_know(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("secret!")
    with WinrmEndpoint(echo, users={}, transports=frozenset({"kerberos"})) as endpoint:
        with pytest.raises(LabError, match="brings no login") as caught:
            kerberos_shell(endpoint, secret, "127.0.0.1").call(READS, {"value": 1}, timeout=SECONDS)
        assert caught.value.kind == "refused"
        assert "setspn" in caught.value.todo
