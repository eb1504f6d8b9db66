"""Offloads of Windows hosts: the same promises as for Linux, by what drivers are told there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any, cast

import pytest

from labctl.campaign import commands
from labctl.errors import LabError
from labctl.model.lab import ChannelKind, Image, ImageKind
from labctl.model.nic import Hypervisor
from labctl.store import WORKER_LOST, AttemptStart, ClaimedAttempt, Store, open_store
from tests.simulators.windows import SimulatedAdapter, SimulatedPowerShell, SimulatedWindows
from tests.values import a_campaign, a_lab, an_order
from workers.channels.windows import WindowsChannel
from workers.guard import Guard
from workers.machines import Machines
from workers.powershell.base import Json, Script
from workers.stack import hosts as host_stacks

CAMPAIGN = a_campaign(factors={"nic_model": ("synthetic",)}, repeats=9)
VMQ = {"*VMQ": "1"}
LSO = {"*LsoV2IPv4": "1", "*LsoV2IPv6": "0"}


class HostMachines:
    """The machines of a lab of one Windows host."""

    def __init__(self, machine: SimulatedWindows) -> None:
        base = a_lab()
        host = replace(base.hosts["a"], hypervisor=Hypervisor.HYPERV, uri="", address=IPv4Interface("198.18.0.1/24"))
        image = Image(name="probe", kind=ImageKind.DISK, channel=ChannelKind.POWERSHELL_DIRECT, disk="D:\\server.vhdx")
        self.lab = replace(base, hosts={"a": host}, images={"probe": image}, migration_pairs=frozenset())
        self.powershell = SimulatedPowerShell(machine.run, where="host a")
        self._channel = WindowsChannel(endpoint="host a", powershell=self.powershell, guard=Guard())

    def channel(self, name: str) -> WindowsChannel:
        assert name == "a"
        return self._channel


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedWindows:
    monkeypatch.setattr("workers.stack.windows.LOOK_SECONDS", 0.02)
    machine = SimulatedWindows(tmp_path / "windows")
    machine.adapters = [
        SimulatedAdapter(name="NIC 1", switch="br0", addresses=[], settings={**VMQ, **LSO}),
        SimulatedAdapter(name="vEthernet (lab)", addresses=["198.18.0.1/24"], settings=dict(LSO)),
        SimulatedAdapter(name="Management", switch="other", addresses=["192.0.2.1/24"], settings={**VMQ, **LSO}),
    ]
    machine.chimney = "automatic"
    return machine


@pytest.fixture
def machines(machine: SimulatedWindows) -> Machines:
    return cast(Machines, HostMachines(machine))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path)
    yield opened
    opened.close()


def claimed(store: Store, machines: Machines, **offloads: bool) -> ClaimedAttempt:
    known = store.campaigns()
    campaign = known[0].id if known else commands.submit(store, CAMPAIGN, machines.lab, campaign_text="c", lab_text="l")
    run = store.pending_runs(campaign, limit=1)[0]
    order = replace(an_order(), host_offloads=offloads)
    (handle,) = store.start_attempts(
        "lab", [AttemptStart(run_id=run.id, order=order, resources=frozenset({f"host:{run.id}"}))]
    )
    assert handle is not None
    attempt = store.claim(handle, worker="w:1")
    assert attempt is not None
    return attempt


def settings(machine: SimulatedWindows) -> list[dict[str, str]]:
    return [dict(adapter.settings) for adapter in machine.adapters]


def test_adapters_under_the_switch_and_with_the_hosts_address_are_set_and_restored_to_every_keyword(
    store: Store, machines: Machines, machine: SimulatedWindows
) -> None:
    before, attempt = settings(machine), claimed(store, machines, lso=False, vmq=False, chimney=False)
    facts = host_stacks.set_up(attempt, machines, store, Guard())
    assert facts == {
        "a": {
            "test_adapters": "NIC 1, vEthernet (lab)",
            "offload.NIC 1.lso": "off",
            "offload.vEthernet (lab).lso": "off",
            "offload.NIC 1.vmq": "off",
            "offload.chimney": "off",
        }
    }
    assert settings(machine)[2] == before[2], "another network's adapter"
    assert (machine.chimney, [each.restarts for each in machine.adapters]) == ("disabled", [1, 1, 0])
    assert host_stacks.verify(attempt, machines) == facts
    assert host_stacks.release(attempt, machines, store, Guard()) == ()
    assert (settings(machine), machine.chimney) == (before, "automatic")
    assert store.open_adjustments() == ()


def test_what_was_before_is_in_the_store_before_anything_is_changed(
    store: Store, machines: Machines, machine: SimulatedWindows
) -> None:
    attempt, seen = claimed(store, machines, vmq=False), []
    machine.before["set-adapters"] = lambda: seen.extend(store.adjustments_of(attempt.id))
    host_stacks.set_up(attempt, machines, store, Guard())
    assert [(item.adapter, item.name, item.before, item.asked) for item in seen] == [("NIC 1", "*VMQ", "1", "0")]


def test_a_worker_that_died_at_any_line_leaves_what_others_restore(
    store: Store, machines: Machines, machine: SimulatedWindows
) -> None:
    """It died after the record: nothing was changed, or all, or a part. Restoring is the same for all three."""
    before = settings(machine)

    class Died(BaseException):
        """As if by SIGKILL."""

    for changed in ({}, {"*LsoV2IPv4": "0"}, {"*LsoV2IPv4": "0", "*VMQ": "0"}):
        attempt = claimed(store, machines, lso=False, vmq=False)
        powershell = cast(Any, machines).powershell
        powershell.fails["job-start"] = Died()
        with pytest.raises(Died):
            host_stacks.set_up(attempt, machines, store, Guard())
        powershell.fails.clear()
        machine.adapters[0].settings |= changed
        store.lose_attempts([attempt.id], WORKER_LOST)
        assert host_stacks.restore_left(store.adjustments_of(attempt.id), machines, store) == {}
        assert settings(machine) == before
        assert store.open_adjustments() == ()
        store.cleaned(attempt.id, again=True)


def test_a_second_attempt_never_takes_the_first_ones_change_for_what_was_before(
    store: Store, machines: Machines, machine: SimulatedWindows
) -> None:
    before, first = settings(machine), claimed(store, machines, vmq=False)
    host_stacks.set_up(first, machines, store, Guard())
    left = store.adjustments_of(first.id)
    store.lose_attempts([first.id], WORKER_LOST)
    second = claimed(store, machines, vmq=False)
    host_stacks.set_up(second, machines, store, Guard())
    assert settings(machine)[0]["*VMQ"] == "0"
    assert host_stacks.restore_left(left, machines, store) == {}, "who cleans late after the first changes nothing"
    assert settings(machine)[0]["*VMQ"] == "0"
    assert host_stacks.release(second, machines, store, Guard()) == ()
    assert settings(machine) == before


def test_two_who_restore_at_once_do_it_once(store: Store, machines: Machines, machine: SimulatedWindows) -> None:
    attempt = claimed(store, machines, vmq=False)
    host_stacks.set_up(attempt, machines, store, Guard())
    store.lose_attempts([attempt.id], WORKER_LOST)
    left = store.adjustments_of(attempt.id)
    others: list[dict[str, LabError]] = []
    machine.before["set-adapters"] = lambda: others.append(host_stacks.restore_left(left, machines, store))
    assert host_stacks.restore_left(left, machines, store) == {}
    assert [error.kind for error in others[0].values()] == [host_stacks.BUSY]
    assert machine.adapters[0].restarts == 2, "changed once, restored once"


def test_what_windows_refuses_is_told_and_restored(store: Store, machines: Machines, machine: SimulatedWindows) -> None:
    machine.adapters[0].fixed = frozenset({"*VMQ"})
    attempt = claimed(store, machines, vmq=False)
    with pytest.raises(LabError, match="offload vmq of adapter NIC 1 is on") as told:
        host_stacks.set_up(attempt, machines, store, Guard())
    assert (told.value.kind, told.value.host) == ("offload-mismatch", "a")
    assert "access is denied" in told.value.why
    assert host_stacks.release(attempt, machines, store, Guard()) == ()


def test_what_can_not_be_restored_stays_recorded_with_the_reason(
    store: Store, machines: Machines, machine: SimulatedWindows
) -> None:
    attempt = claimed(store, machines, vmq=False)
    host_stacks.set_up(attempt, machines, store, Guard())
    machine.adapters[0].fixed = frozenset({"*VMQ"})
    (said,) = host_stacks.release(attempt, machines, store, Guard())
    assert "NIC 1 *VMQ 1" in said
    (left,) = store.open_adjustments()
    assert "access is denied" in left.why
    machine.adapters.pop(0)
    host_stacks.release(attempt, machines, store, Guard())
    (left,) = store.open_adjustments()
    assert "it is not there" in left.why


def test_chimney_where_windows_has_none_is_told(store: Store, machines: Machines, machine: SimulatedWindows) -> None:
    machine.chimney = None
    with pytest.raises(LabError) as told:
        host_stacks.set_up(claimed(store, machines, chimney=False), machines, store, Guard())
    assert told.value.kind == "offload-missing"


def test_the_answer_is_waited_for_through_the_cut_that_the_restart_makes(
    store: Store, machines: Machines, machine: SimulatedWindows
) -> None:
    powershell = cast(Any, machines).powershell
    call, cuts = powershell.call, 3

    def cut(script: Script, document: Mapping[str, Json], *, timeout: float) -> Json:
        nonlocal cuts
        if script.name == "job-poll" and cuts:
            cuts -= 1
            raise LabError("It does not answer.", kind="unreachable")
        return cast(Json, call(script, document, timeout=timeout))

    powershell.call = cut
    host_stacks.set_up(claimed(store, machines, vmq=False), machines, store, Guard())
    assert cuts == 0
    assert settings(machine)[0]["*VMQ"] == "0"
    assert machine.scripts.count("set-adapters") == 1
