"""How WinRM is reached: transports, encryption, certificates, and what is refused before or after it was tried."""

from __future__ import annotations

import importlib.util
from datetime import timedelta
from pathlib import Path

import pytest

from labctl.errors import LabError
from labctl.model.lab import WinrmTransport
from tests.certificates import make_certificates
from tests.simulators.winrm import WinrmEndpoint, faults
from tests.winrm.certificates import own_certificate
from tests.winrm.conftest import READS, WRITES, Place

pytestmark = pytest.mark.services

SECONDS = 10.0


@pytest.mark.parametrize("transport", [WinrmTransport.NTLM, WinrmTransport.CREDSSP])
def test_messages_over_plain_http_are_encrypted(place: Place, transport: WinrmTransport) -> None:
    endpoint = place.endpoint(transports=frozenset({transport.value}))
    shell = place.shell(endpoint, transport)
    assert shell.call(READS, {"value": "who"}, timeout=SECONDS) == {"value": [place.user, transport.value]}
    assert endpoint.unencrypted == 0


@pytest.mark.parametrize("transport", [WinrmTransport.NTLM, WinrmTransport.CREDSSP, WinrmTransport.BASIC])
def test_certificates_of_https_are_checked_against_the_named_authority(
    place: Place, tmp_path: Path, transport: WinrmTransport
) -> None:
    make_certificates(tmp_path / "tls")
    endpoint = place.endpoint(transports=frozenset({transport.value}), certificates=tmp_path / "tls")
    shell = place.shell(endpoint, transport, ca_file=str(tmp_path / "tls" / "ca.pem"))
    answer = shell.call(READS, {"value": "who"}, timeout=SECONDS)
    assert answer == {"value": [place.user, transport.value]}


def test_an_answer_larger_than_credssp_encrypts_at_once(place: Place) -> None:
    endpoint = place.endpoint(transports=frozenset({"credssp"}))
    text = "ä" * 100_000
    shell = place.shell(endpoint, WinrmTransport.CREDSSP)
    assert shell.call(READS, {"value": text}, timeout=SECONDS) == {"value": text}


def test_basic_over_plain_http_is_refused_before_anything_is_sent(place: Place) -> None:
    endpoint = place.endpoint(transports=frozenset({"basic"}))
    with pytest.raises(LabError, match="can't be used as the lab file says") as caught:
        place.shell(endpoint, WinrmTransport.BASIC).call(READS, {"value": 1}, timeout=SECONDS)
    assert caught.value.kind == "refused"
    assert "password readable" in caught.value.why
    assert endpoint.requests == {}
    assert endpoint.unencrypted == 0


def test_basic_with_letters_that_it_has_no_form_for(place: Place, tmp_path: Path) -> None:
    make_certificates(tmp_path / "tls")
    endpoint = place.endpoint(transports=frozenset({"basic"}), certificates=tmp_path / "tls")
    place.password.write_text("пароль", encoding="utf-8")
    with pytest.raises(LabError, match="can't be used") as caught:
        place.shell(endpoint, WinrmTransport.BASIC).call(READS, {"value": 1}, timeout=SECONDS)
    assert "пароль" not in str(caught.value)
    assert endpoint.logins["failed"] == 0


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"starts": timedelta(days=-9), "lasts": timedelta(days=2)}, "has expired"),
        ({"starts": timedelta(days=1)}, "is not valid yet"),
        ({"address": "127.0.0.9"}, "is for another"),
    ],
)
def test_each_fault_of_a_certificate_has_its_words(
    place: Place, tmp_path: Path, made: dict[str, object], says: str
) -> None:
    folder = own_certificate(tmp_path / "tls", **made)  # type: ignore[arg-type]
    endpoint = place.endpoint(certificates=folder)
    with pytest.raises(LabError, match=says) as caught:
        place.shell(endpoint, ca_file=str(folder / "server.pem")).call(READS, {"value": 1}, timeout=SECONDS)
    assert caught.value.kind == "refused"
    assert caught.value.todo


def test_a_certificate_of_no_known_authority(place: Place, tmp_path: Path) -> None:
    make_certificates(tmp_path / "tls")
    endpoint = place.endpoint(certificates=tmp_path / "tls")
    with pytest.raises(LabError, match="of no known authority") as caught:
        place.shell(endpoint).call(READS, {"value": 1}, timeout=SECONDS)
    assert "ca_file" in caught.value.todo


def test_variables_of_the_environment_change_nothing_about_certificates(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """requests would take its authorities and a proxy from the environment."""
    make_certificates(tmp_path / "tls")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "tls" / "ca.pem"))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    endpoint = place.endpoint(certificates=tmp_path / "tls")
    with pytest.raises(LabError, match="of no known authority"):
        place.shell(endpoint).call(READS, {"value": 1}, timeout=SECONDS)


def test_a_wrong_password_is_tried_once(place: Place) -> None:
    """No lock-out storm: later calls fail without trying, until there is another password."""
    endpoint = place.endpoint()
    place.password.write_text("wrong")
    for _ in range(5):
        with pytest.raises(LabError, match="refuses the user") as caught:
            place.shell(endpoint).call(READS, {"value": 1}, timeout=SECONDS)
        assert caught.value.kind == "refused"
        assert "wrong\n" not in str(caught.value)
    assert endpoint.logins["failed"] == 1
    place.password.write_text("pässword!1", encoding="utf-8")
    assert place.shell(endpoint).call(READS, {"value": 1}, timeout=SECONDS) == {"value": 1}


@pytest.mark.parametrize("transport", [WinrmTransport.NTLM, WinrmTransport.CREDSSP, WinrmTransport.BASIC])
def test_a_wrong_password_is_tried_once_over_https_too(place: Place, tmp_path: Path, transport: WinrmTransport) -> None:
    make_certificates(tmp_path / "tls")
    endpoint = place.endpoint(transports=frozenset({transport.value}), certificates=tmp_path / "tls")
    place.password.write_text("wrong")
    shell = place.shell(endpoint, transport, ca_file=str(tmp_path / "tls" / "ca.pem"))
    for _ in range(3):
        with pytest.raises(LabError, match="refuses the user"):
            shell.call(READS, {"value": 1}, timeout=SECONDS)
    assert endpoint.logins["failed"] == 1


def test_a_password_that_changes_meanwhile_is_looked_up_again(place: Place) -> None:
    endpoint = place.endpoint()
    shell = place.shell(endpoint)
    assert shell.call(READS, {"value": 1}, timeout=SECONDS) == {"value": 1}
    endpoint.set_password(place.user, "another")
    place.password.write_text("another")
    endpoint.cut_connections()
    assert shell.call(READS, {"value": 2}, timeout=SECONDS) == {"value": 2}


def test_no_message_goes_out_in_clear_after_a_login_that_broke(place: Place) -> None:
    """pywinrm keeps a session whose login failed and would send the next message through it without encryption."""
    endpoint = place.endpoint()
    shell = place.shell(endpoint)
    endpoint.mishaps.busy_logins = 2
    for _ in range(2):
        with pytest.raises(LabError) as caught:
            shell.call(READS, {"value": "secret"}, timeout=SECONDS)
        assert caught.value.kind == "unreachable"
    assert shell.call(READS, {"value": "secret"}, timeout=SECONDS) == {"value": "secret"}
    assert endpoint.unencrypted == 0


def test_a_user_without_rights_is_told_which(place: Place, endpoint: WinrmEndpoint) -> None:
    endpoint.mishaps.faults.append(("Create", faults.Fault(faults.ACCESS_DENIED, "Access is denied.")))
    with pytest.raises(LabError, match="doesn't let it work") as caught:
        place.shell(endpoint).call(READS, {"value": 1}, timeout=SECONDS)
    assert caught.value.kind == "refused"
    assert "Administrators" in caught.value.todo


@pytest.mark.parametrize("transport", [WinrmTransport.NTLM, WinrmTransport.CREDSSP])
def test_a_way_of_logging_in_that_is_not_offered(place: Place, transport: WinrmTransport) -> None:
    other = {"ntlm": "credssp", "credssp": "ntlm"}[transport.value]
    endpoint = place.endpoint(transports=frozenset({other}))
    with pytest.raises(LabError) as caught:
        place.shell(endpoint, transport).call(READS, {"value": 1}, timeout=SECONDS)
    assert caught.value.kind == "refused"
    assert endpoint.logins["failed"] == 0


@pytest.mark.skipif(importlib.util.find_spec("kerberos") is not None, reason="Kerberos is installed here")
def test_kerberos_without_its_module_says_what_to_install(place: Place, endpoint: WinrmEndpoint) -> None:
    place.user = "op@lab.example"
    with pytest.raises(LabError) as caught:
        place.shell(endpoint, WinrmTransport.KERBEROS).call(READS, {"value": 1}, timeout=SECONDS)
    assert caught.value.kind == "refused"
    assert "labctl[kerberos]" in caught.value.todo


def test_nobody_listens(place: Place, endpoint: WinrmEndpoint) -> None:
    shell = place.shell(endpoint, url="http://127.0.0.1:9/wsman")
    with pytest.raises(LabError, match="can't be reached") as caught:
        shell.call(WRITES, {"value": 1}, timeout=SECONDS)
    assert caught.value.kind == "unreachable"
    assert "may have begun" not in caught.value.why


def test_secrets_are_in_no_error_and_no_representation(place: Place, endpoint: WinrmEndpoint) -> None:
    from workers.winrm import access

    shell = place.shell(endpoint)
    login = access.login(shell._access, where="host hv1", host="hv1")
    assert "pässword" not in repr(login)
    assert "pässword" not in repr(login.credentials)
