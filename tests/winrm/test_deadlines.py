"""Nothing waits for ever, nothing is done twice, and nothing is left running."""

from __future__ import annotations

import threading
import time

import pytest

from labctl.errors import LabError
from tests.simulators.winrm import WinrmEndpoint
from tests.winrm.conftest import HELD, READS, WRITES, Place
from workers.winrm import WinrmPowerShell, session

pytestmark = pytest.mark.services

SECONDS = 20.0


def test_h2_a_script_that_hangs_is_ended_at_its_deadline(shell: WinrmPowerShell, endpoint: WinrmEndpoint) -> None:
    """H2: operation timeouts go on as long as the script does; the deadline ends it, there too."""
    start = time.monotonic()
    with pytest.raises(LabError, match="did not end in time") as caught:
        shell.call(WRITES, {"value": "hang"}, timeout=2.0)
    assert time.monotonic() - start < 10
    assert caught.value.kind == "timeout"
    assert "not known" in caught.value.why
    assert endpoint.shells.running() == 0
    assert shell.call(WRITES, {"value": 1}, timeout=SECONDS) == {"value": 1}


def test_h2_a_socket_that_says_nothing(shell: WinrmPowerShell, endpoint: WinrmEndpoint) -> None:
    """H2: the answer to Receive never comes; the command is ended through another connection."""
    endpoint.mishaps.silent = 1
    start = time.monotonic()
    with pytest.raises(LabError) as caught:
        shell.call(READS, {"value": 1}, timeout=2.0)
    assert time.monotonic() - start < 10
    assert caught.value.kind == "timeout"
    assert endpoint.shells.running() == 0
    assert len(endpoint.shells) == 0


def test_h2_500_operation_timeouts_before_the_answer(shell: WinrmPowerShell, endpoint: WinrmEndpoint) -> None:
    """H2: each of them only says that there is nothing to say yet."""
    endpoint.mishaps.timeouts = 500
    assert shell.call(WRITES, {"value": 1}, timeout=60.0) == {"value": 1}
    assert endpoint.requests["Receive"] == 501


@pytest.mark.parametrize("place_of_cut", ["cut_send", "cut_receive"])
def test_h2_what_changes_something_is_not_sent_again_when_its_answer_was_lost(
    shell: WinrmPowerShell, endpoint: WinrmEndpoint, place_of_cut: str
) -> None:
    """H2: a connection that is cut after the start: the script has run, once, and the error says that it may have."""
    assert shell.call(READS, {"value": 0}, timeout=SECONDS) == {"value": 0}
    setattr(endpoint.mishaps, place_of_cut, 1)
    with pytest.raises(LabError) as caught:
        shell.call(WRITES, {"value": 1}, timeout=SECONDS)
    assert caught.value.kind == "unreachable"
    assert "may have begun" in caught.value.why
    assert endpoint.scripts["echo"] == 2
    assert shell.call(WRITES, {"value": 2}, timeout=SECONDS) == {"value": 2}


@pytest.mark.parametrize("place_of_cut", ["cut_command", "cut_send", "cut_receive"])
def test_h2_what_only_reads_is_sent_again(shell: WinrmPowerShell, endpoint: WinrmEndpoint, place_of_cut: str) -> None:
    """H2: whatever was lost, asking again is right."""
    assert shell.call(READS, {"value": 0}, timeout=SECONDS) == {"value": 0}
    setattr(endpoint.mishaps, place_of_cut, 1)
    assert shell.call(READS, {"value": 1}, timeout=SECONDS) == {"value": 1}


def test_what_changes_something_is_sent_again_when_it_can_not_have_begun(
    shell: WinrmPowerShell, endpoint: WinrmEndpoint
) -> None:
    """A command without its input does nothing."""
    assert shell.call(WRITES, {"value": 0}, timeout=SECONDS) == {"value": 0}
    endpoint.mishaps.cut_command = 1
    assert shell.call(WRITES, {"value": 1}, timeout=SECONDS) == {"value": 1}
    assert endpoint.scripts["echo"] == 2


def test_a_connection_that_was_closed_meanwhile_is_replaced(shell: WinrmPowerShell, endpoint: WinrmEndpoint) -> None:
    """A message that is sealed for the old connection means nothing on a new one."""
    for value in range(3):
        assert shell.call(WRITES, {"value": value}, timeout=SECONDS) == {"value": value}
        endpoint.cut_connections()
    assert endpoint.scripts["echo"] == 3
    assert endpoint.unencrypted == 0


def test_401_for_a_message_of_an_old_session_is_no_refusal(shell: WinrmPowerShell, endpoint: WinrmEndpoint) -> None:
    """The password is good: it would be locked out of its own host by mistake for the rest of the night."""
    for value in range(2):
        assert shell.call(WRITES, {"value": value}, timeout=SECONDS) == {"value": value}
        endpoint.mishaps.foreign_seals = 1
        endpoint.cut_connections()
    assert shell.call(WRITES, {"value": 2}, timeout=SECONDS) == {"value": 2}
    assert endpoint.mishaps.foreign_seals == 0


def test_a_session_that_was_idle_for_long_is_not_trusted(
    shell: WinrmPowerShell, endpoint: WinrmEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows closes idle connections after two minutes; another login before is better than a message that fails."""
    assert shell.call(WRITES, {"value": 1}, timeout=SECONDS) == {"value": 1}
    assert endpoint.logins["done"] == 1
    monkeypatch.setattr(session, "IDLE_SECONDS", -1.0)
    assert shell.call(WRITES, {"value": 2}, timeout=SECONDS) == {"value": 2}
    assert endpoint.logins["done"] > 1
    assert endpoint.shells.counts["created"] == 1


def test_a_host_that_restarts_between_two_calls(shell: WinrmPowerShell, endpoint: WinrmEndpoint) -> None:
    """Its shells are gone; a new one is opened."""
    assert shell.call(WRITES, {"value": 1}, timeout=SECONDS) == {"value": 1}
    endpoint.restart()
    assert shell.call(WRITES, {"value": 2}, timeout=SECONDS) == {"value": 2}


def test_a_shell_that_timed_out_is_replaced(shell: WinrmPowerShell, endpoint: WinrmEndpoint) -> None:
    assert shell.call(WRITES, {"value": 1}, timeout=SECONDS) == {"value": 1}
    endpoint.shells.clear()
    assert shell.call(WRITES, {"value": 2}, timeout=SECONDS) == {"value": 2}
    assert endpoint.scripts["echo"] == 2


def test_a_proxy_that_answers_instead(shell: WinrmPowerShell, endpoint: WinrmEndpoint) -> None:
    endpoint.mishaps.http.append(("Create", 404, b"<html>no such page</html>"))
    with pytest.raises(LabError, match="HTTP status 404") as caught:
        shell.call(READS, {"value": 1}, timeout=SECONDS)
    assert "/wsman" in caught.value.todo


def test_too_many_calls_at_once_wait_no_longer_than_their_deadline(place: Place, endpoint: WinrmEndpoint) -> None:
    HELD.clear()
    shell = place.shell(endpoint)
    busy = [
        threading.Thread(target=shell.call, args=(READS, {"value": "hold"}), kwargs={"timeout": SECONDS})
        for _ in range(3)
    ]
    for thread in busy:
        thread.start()
    while endpoint.scripts["echo"] < 3:
        time.sleep(0.01)
    with pytest.raises(LabError, match="busy with other calls") as caught:
        shell.call(READS, {"value": 1}, timeout=0.5)
    assert caught.value.kind == "timeout"
    HELD.set()
    for thread in busy:
        thread.join()
