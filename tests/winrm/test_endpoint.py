"""The endpoint for tests is as strict as Windows: pywinrm, as it is, gets from it what it would get there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import requests
from winrm.exceptions import InvalidCredentialsError, WinRMOperationTimeoutError, WinRMTransportError, WSManFaultError
from winrm.protocol import Protocol

from tests.certificates import make_certificates
from tests.simulators.winrm import Quotas, WinrmEndpoint, faults
from tests.winrm.conftest import READS, Place
from workers.powershell import envelope

pytestmark = pytest.mark.services


@pytest.fixture
def protocol(place: Place, endpoint: WinrmEndpoint) -> Protocol:
    return pywinrm(place, endpoint)


def pywinrm(place: Place, endpoint: WinrmEndpoint, *, encryption: str = "always", password: str = "") -> Protocol:
    return Protocol(
        endpoint.url,
        transport="ntlm",
        username=place.user,
        password=password or place.password.read_text(encoding="utf-8").strip(),
        message_encryption=encryption,  # type: ignore[arg-type]
        operation_timeout_sec=1,
        read_timeout_sec=10,
        ca_trust_path=None,  # type: ignore[arg-type]
        proxy=None,
    )


def code_of(call: Callable[[], object]) -> int:
    with pytest.raises(WSManFaultError) as caught:
        call()
    return int(caught.value.wsman_fault_code or 0)


def run(protocol: Protocol, shell: str, value: str) -> str:
    """A command that has its input."""
    command = protocol.run_command(shell, envelope.command_line(), console_mode_stdin=False)
    protocol.send_command_input(shell, command, envelope.request_for(READS, {"value": value}).encode(), end=True)
    return command


def test_pywinrm_runs_a_command_to_its_end(protocol: Protocol) -> None:
    shell = protocol.open_shell()
    request = envelope.request_for(READS, {"value": "ä"})
    command = protocol.run_command(shell, envelope.command_line(), console_mode_stdin=False)
    protocol.send_command_input(shell, command, request.encode(), end=True)
    stdout, stderr, code = protocol.get_command_output(shell, command)
    protocol.cleanup_command(shell, command)
    protocol.close_shell(shell)
    output = envelope.Output(stdout=stdout, stderr=stderr, exit_code=code)
    assert envelope.read_answer(request, output, where="there") == {"value": "ä"}


def test_h3_8191_characters_are_a_command_line_and_one_more_is_none(protocol: Protocol) -> None:
    """H3: as cmd.exe has it."""
    shell = protocol.open_shell()
    assert protocol.run_command(shell, "x" * 8191)
    assert code_of(lambda: protocol.run_command(shell, "x" * 8192)) == faults.COMMAND_LINE_TOO_LONG


def test_h4_shells_and_commands_are_counted(place: Place) -> None:
    """H4: each quota has its code."""
    endpoint = place.endpoint(quotas=Quotas(shells_per_user=2, commands_per_shell=2, operations_per_user=3))
    protocol = pywinrm(place, endpoint)
    one, two = protocol.open_shell(), protocol.open_shell()
    assert code_of(protocol.open_shell) == faults.MAX_SHELLS
    for _ in range(2):
        protocol.run_command(one, "a")
    assert code_of(lambda: protocol.run_command(one, "a")) == faults.MAX_COMMANDS_PER_SHELL
    last = protocol.run_command(two, "a")
    assert code_of(lambda: protocol.run_command(two, "a")) == faults.MAX_OPERATIONS
    protocol.cleanup_command(two, last)
    assert protocol.run_command(two, "a")
    protocol.close_shell(one, close_session=False)
    assert protocol.open_shell()


def test_h2_a_receive_that_has_nothing_ends_with_the_operation_timeout(protocol: Protocol) -> None:
    """H2: after as many seconds as the header of the message says."""
    shell = protocol.open_shell()
    command = run(protocol, shell, "hang")
    with pytest.raises(WinRMOperationTimeoutError):
        protocol.get_command_output_raw(shell, command)
    protocol.cleanup_command(shell, command)


def test_a_shell_belongs_to_its_user_and_is_gone_when_it_was_closed(place: Place, endpoint: WinrmEndpoint) -> None:
    protocol = pywinrm(place, endpoint)
    shell = protocol.open_shell()
    other = place.another_user(endpoint)
    assert code_of(lambda: pywinrm(other, endpoint).run_command(shell, "a")) == faults.UNEXPECTED_SELECTORS
    protocol.close_shell(shell, close_session=False)
    assert code_of(lambda: protocol.run_command(shell, "a")) == faults.UNEXPECTED_SELECTORS


def test_messages_in_clear_over_plain_http_are_refused(place: Place, endpoint: WinrmEndpoint) -> None:
    with pytest.raises(WinRMTransportError):
        pywinrm(place, endpoint, encryption="never").open_shell()
    assert endpoint.unencrypted == 1
    assert endpoint.requests == {}


def test_a_message_that_was_sealed_for_another_connection_is_not_read(place: Place, endpoint: WinrmEndpoint) -> None:
    protocol = pywinrm(place, endpoint)
    protocol.open_shell()
    endpoint.cut_connections()
    with pytest.raises((WinRMTransportError, requests.ConnectionError)):
        protocol.open_shell()
    assert endpoint.requests["Create"] == 1


def test_a_wrong_password(place: Place, endpoint: WinrmEndpoint) -> None:
    with pytest.raises(InvalidCredentialsError):
        pywinrm(place, endpoint, password="wrong").open_shell()
    assert endpoint.logins["failed"] == 1


def test_an_envelope_that_is_too_large(protocol: Protocol) -> None:
    shell = protocol.open_shell()
    command = protocol.run_command(shell, "a")
    assert code_of(lambda: protocol.send_command_input(shell, command, b"x" * 500_000)) == faults.ENVELOPE_TOO_LARGE


def test_basic_is_not_offered_over_plain_http(place: Place, tmp_path: Path) -> None:
    both = frozenset({"basic", "ntlm"})
    plain = place.endpoint(transports=both)
    assert "Basic" not in offers(plain, verify=True)
    make_certificates(tmp_path / "tls")
    secure = place.endpoint(transports=both, certificates=tmp_path / "tls")
    assert "Basic" in offers(secure, verify=str(tmp_path / "tls" / "ca.pem"))


def offers(endpoint: WinrmEndpoint, *, verify: bool | str) -> str:
    return requests.post(endpoint.url, timeout=10, verify=verify).headers["WWW-Authenticate"]
