"""What others did to a VM, told from what labctl did, by the history of vCenter."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from workers.hypervisors.vsphere.events import VmEvent, judge, same_account

US = "VSPHERE.LOCAL\\labctl"
NOON = 1_796_040_000.0


def event(kind: str, *, user: str = "VSPHERE.LOCAL\\admin", at: float = NOON, host: str = "esx2") -> VmEvent:
    return VmEvent(kind=kind, at=at, user=user, host=host, message=f"{kind} happened")


def told(*events: VmEvent, own: Sequence[tuple[float, float]] = ()) -> tuple[str, ...]:
    return judge(events, us=US, own=own)


@pytest.mark.parametrize(
    ("kind", "user", "words"),
    [
        ("DrsVmMigratedEvent", "", "DRS moved it (host esx2), by vCenter itself"),
        ("VmMigratedEvent", "VSPHERE.LOCAL\\admin", "it was moved (host esx2), by VSPHERE.LOCAL\\admin"),
        ("VmRelocatedEvent", "admin@vsphere.local", "it was relocated"),
        ("VmRestartedOnAlternateHostEvent", "", "HA restarted it on another host"),
        ("com.vmware.vc.ha.VmRestartedByHAEvent", "", "HA restarted it"),
        ("VmReconfiguredEvent", "backup", "it was reconfigured"),
        ("VmRenamedEvent", "backup", "it was renamed"),
        ("VmPoweredOffEvent", "", "it was powered off"),
        ("VmFailedMigrateEvent", "backup", "somebody tried to move it"),
    ],
)
def test_v10_what_others_did_is_told_with_when_who_and_where(kind: str, user: str, words: str) -> None:
    """V10: DRS, HA and people."""
    (sentence,) = told(event(kind, user=user))
    assert sentence.startswith("At ")
    assert words in sentence
    assert f"{kind} happened" in sentence


def test_v10_what_labctl_did_is_no_incident() -> None:
    """V10: by the account of its session, however vCenter spells it."""
    for user in (US, "labctl@vsphere.local", "LABCTL@VSPHERE.LOCAL"):
        assert told(event("VmReconfiguredEvent", user=user), event("VmPoweredOffEvent", user=user)) == ()
    own = [(NOON - 10, NOON + 10)]
    assert told(event("VmMigratedEvent", user=US), event("VmFailedMigrateEvent", user=US), own=own) == ()


def test_v10_a_move_with_labctls_account_that_labctl_did_not_make_is_an_incident() -> None:
    """V10: accounts are shared. Moved by somebody else."""
    (sentence,) = told(event("VmMigratedEvent", user=US), own=[(NOON - 100, NOON - 50)])
    assert "labctl's own account, but not by labctl" in sentence


def test_v10_a_move_by_drs_while_labctl_moves_is_an_incident_all_the_same() -> None:
    """V10: only moves by labctl's account are labctl's."""
    assert told(event("DrsVmMigratedEvent", user=""), own=[(NOON - 10, NOON + 10)])


def test_events_that_change_nothing_are_no_incidents() -> None:
    assert told(event("VmMessageEvent"), event("VmAcquiredTicketEvent"), event("VmPoweredOnEvent", user="")) == ()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("VSPHERE.LOCAL\\Administrator", "administrator@vsphere.local", True),
        ("root", "root", True),
        ("VSPHERE.LOCAL\\labctl", "OTHER\\labctl", False),
        ("labctl", "labctl2", False),
        ("", "labctl", False),
    ],
)
def test_names_of_accounts(one: str, other: str, same: bool) -> None:
    assert same_account(one, other) is same
