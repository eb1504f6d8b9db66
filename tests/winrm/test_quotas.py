"""Quotas of WinRM: kept within, and named when they are reached all the same."""

from __future__ import annotations

import pytest

from labctl.errors import LabError
from tests.simulators.winrm import Quotas, WinrmEndpoint, faults
from tests.winrm.conftest import READS, WRITES, Place
from workers.winrm import WinrmPowerShell, lane, powershell
from workers.winrm.failures import QUOTAS

pytestmark = pytest.mark.services

SECONDS = 20.0


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for quotas are short."""
    monkeypatch.setattr(powershell, "PAUSES_WHEN_FULL", (0.01, 0.01))


def test_h4_many_calls_need_one_shell_at_a_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """H4: one shell, opened anew after so many commands; every command is let go of, so that no operations pile up."""
    monkeypatch.setattr(lane, "COMMANDS", 20)
    endpoint = place.endpoint(quotas=Quotas(shells_per_user=1, commands_per_shell=1, operations_per_user=1))
    shell = place.shell(endpoint)
    for number in range(300):
        assert shell.call(WRITES, {"value": number}, timeout=SECONDS) == {"value": number}
    counts = endpoint.shells.counts
    assert (counts["started"], counts["signalled"]) == (300, 300)
    assert (counts["created"], counts["shells"]) == (15, 1)
    assert endpoint.logins["done"] == 15
    shell.close()
    assert len(endpoint.shells) == 0


@pytest.mark.faults
@pytest.mark.night
def test_h4_5000_calls_with_the_quotas_of_windows(place: Place) -> None:
    """H4: as many calls as a long night makes, with the real number of commands in a shell (some minutes)."""
    endpoint = place.endpoint(quotas=Quotas(shells_per_user=5))
    shell = place.shell(endpoint)
    for number in range(5000):
        assert shell.call(WRITES, {"value": number}, timeout=SECONDS) == {"value": number}
    assert endpoint.shells.counts["created"] == 25
    assert endpoint.shells.running() == 0


@pytest.mark.parametrize(
    ("action", "code", "setting"),
    [
        ("Create", faults.MAX_SHELLS, "MaxShellsPerUser"),
        ("Create", faults.MAX_SHELLS_PLUGIN, "MaxShellsPerUser"),
        ("Create", faults.MAX_SHELL_USERS, "MaxConcurrentUsers"),
        ("Command", faults.MAX_OPERATIONS, "MaxConcurrentOperationsPerUser"),
        ("Command", faults.MAX_OPERATIONS_USER, "MaxConcurrentOperationsPerUser"),
        ("Command", faults.MAX_COMMANDS_PER_SHELL, "MaxProcessesPerShell"),
        ("Command", faults.OUT_OF_MEMORY, "MaxMemoryPerShellMB"),
    ],
)
def test_h4_each_quota_is_named_with_the_setting_to_raise(
    shell: WinrmPowerShell, endpoint: WinrmEndpoint, hasty: None, action: str, code: int, setting: str
) -> None:
    """H4: told by its code, because texts are in the language of the host."""
    endpoint.mishaps.faults += [(action, faults.quota(code, "Das Kontingent ist erschöpft."))] * 3
    with pytest.raises(LabError, match="has reached a quota") as caught:
        shell.call(WRITES, {"value": 1}, timeout=SECONDS)
    assert caught.value.kind == "quota"
    assert setting in caught.value.todo
    assert str(code) in caught.value.why
    assert endpoint.scripts["echo"] == 0


@pytest.mark.parametrize("action", ["Create", "Command"])
def test_h4_a_quota_that_frees_itself_costs_a_moment(
    shell: WinrmPowerShell, endpoint: WinrmEndpoint, hasty: None, action: str
) -> None:
    """H4: it is waited for, with another shell, and the call goes on."""
    endpoint.mishaps.faults += [(action, faults.quota(faults.MAX_OPERATIONS, "Too many."))] * 2
    assert shell.call(WRITES, {"value": 1}, timeout=SECONDS) == {"value": 1}
    assert endpoint.scripts["echo"] == 1
    assert len(endpoint.shells) == 1


def test_h4_a_quota_in_mid_script_is_no_reason_to_do_it_again(
    shell: WinrmPowerShell, endpoint: WinrmEndpoint, hasty: None
) -> None:
    """H4: memory that ends while a script runs: what changes something is not repeated, what reads is."""
    endpoint.mishaps.faults.append(("Receive", faults.quota(faults.OUT_OF_MEMORY, "Not enough storage.")))
    with pytest.raises(LabError, match="has reached a quota") as caught:
        shell.call(WRITES, {"value": 1}, timeout=SECONDS)
    assert "may have begun" in caught.value.why
    endpoint.mishaps.faults.append(("Receive", faults.quota(faults.OUT_OF_MEMORY, "Not enough storage.")))
    assert shell.call(READS, {"value": 2}, timeout=SECONDS) == {"value": 2}


def test_h4_shells_of_others_that_use_the_quota_up(place: Place, hasty: None) -> None:
    """H4: two processes of one user, and room for one shell: the second is told, and works once there is room."""
    endpoint = place.endpoint(quotas=Quotas(shells_per_user=1))
    first, second = place.shell(endpoint), place.shell(endpoint)
    assert first.call(READS, {"value": 1}, timeout=SECONDS) == {"value": 1}
    with pytest.raises(LabError, match="open shells of one user") as caught:
        second.call(READS, {"value": 2}, timeout=SECONDS)
    assert caught.value.kind == "quota"
    first.close()
    assert second.call(READS, {"value": 2}, timeout=SECONDS) == {"value": 2}


def test_quotas_know_their_setting() -> None:
    assert all(quota.setting.startswith("WSMan:\\localhost\\") for quota in QUOTAS.values())
