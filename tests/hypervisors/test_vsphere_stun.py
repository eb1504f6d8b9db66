"""How long a VM stood still, read from logs of ESXi. The fixtures are composed of lines as Broadcom's articles show them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from workers.hypervisors.vsphere.stun import Stun, stun_of_migration, stuns, switch_overs

LOGS = Path(__file__).with_name("vsphere_logs")
VMOTION = datetime.fromisoformat("2026-04-14T15:38:20+00:00").timestamp()
HOUR = 3600.0


def log(name: str) -> str:
    return (LOGS / name).read_text()


@pytest.mark.parametrize(
    ("name", "microseconds", "migration"),
    [("vmware-8.0.log", 411_683, "8743996508480001077"), ("vmware-6.0.log", 253_902, "1446046703473901")],
)
def test_v6_the_stop_of_a_vmotion_is_told_from_that_of_a_snapshot(name: str, microseconds: int, migration: str) -> None:
    """V6: `Checkpoint_Unstun` by the migration that it ended, in both forms of the log."""
    told = stuns(log(name))
    assert [(stun.microseconds, stun.migration) for stun in told] == [(microseconds, migration), (188_405, "")]
    assert stun_of_migration(log(name), since=VMOTION - 60, until=VMOTION + HOUR) == told[0]
    assert told[0].at == pytest.approx(VMOTION, abs=1.0)


def test_v6_a_stop_at_another_time_is_not_this_vmotions() -> None:
    """V6: a log is kept when its VM goes on, so an earlier vMotion may be in it."""
    assert stun_of_migration(log("vmware-8.0.log"), since=VMOTION + 60, until=VMOTION + HOUR) is None


def test_v6_of_two_stops_neither_is_taken() -> None:
    """V6: unknown is None, never a guess."""
    twice = log("vmware-8.0.log") * 2
    assert len([stun for stun in stuns(twice) if stun.migration]) == 2
    assert stun_of_migration(twice, since=VMOTION - 60, until=VMOTION + HOUR) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no log at all",
        "2026-13-14T15:38:20.200Z In(05) vcpu-0 - Checkpoint_Unstun: vm stopped for 1 us",
        "2026-04-14T15:38:20.200Z In(05) vcpu-0 - Checkpoint_Unstun: vm stopped for a while",
        "2026-04-14T15:38:20.731Z In(05) vcpu-0 - Checkpoint_Unst",
    ],
)
def test_what_is_no_stop_is_none(text: str) -> None:
    assert stuns(text) == ()


def test_a_stop_outside_of_a_migration_belongs_to_none() -> None:
    line = "2026-04-14T15:38:20.731Z In(05) vcpu-0 - Checkpoint_Unstun: vm stopped for 7 us\n"
    assert stuns(line) == (Stun(at=VMOTION + 0.731, microseconds=7),)
    assert stun_of_migration(line, since=VMOTION - 60, until=VMOTION + 60) is None


def test_v6_the_last_phase_by_the_kernels_log_is_that_of_a_whole_migration() -> None:
    """V6: `vmkernel.log`, by migration id; of a migration that it tells only half nothing is said."""
    (told,) = switch_overs(log("vmkernel-source.log"))
    assert told.migration == "1446046703473901"
    assert told.milliseconds == 53
