"""What every driver of VMs promises (`workers.hypervisors.base.VmDriver`), on real hypervisors and on a simulated one.

A driver joins by a fixture that gives it `Guests`: its own hosts `a` and `b`, between which VMs can be migrated.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from labctl.errors import AttemptCancelled, LabError
from labctl.model.lab import Lab
from labctl.model.result import MigrationSample
from labctl.spec.simulated import SimulatedSpec, expand_simulated
from tests.hypervisors.guests import STORE, Guests, an_order, guests_of
from tests.hypervisors.hyperv_guests import hyperv_guests
from tests.hypervisors.vsphere_guests import vsphere_guests
from tests.simulators.vcsim import VcSim, vcsim
from tests.simulators.world import GuestWorld
from workers.hypervisors.base import VmDriver
from workers.hypervisors.simulated.figures import Figures, write_figures


@pytest.fixture(
    params=[
        pytest.param("kvm", marks=pytest.mark.lab),
        pytest.param("hyperv", marks=pytest.mark.services),
        pytest.param("vsphere", marks=pytest.mark.services),
        "simulated",
    ]
)
def guests(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Guests]:
    """VMs on the hosts of one hypervisor kind."""
    if request.param == "hyperv":
        with hyperv_guests(request.getfixturevalue("guest_world")) as made:
            yield made
        return
    if request.param == "vsphere":
        with vsphere_guests(request.getfixturevalue("guest_vcenter"), request.getfixturevalue("guest_world")) as made:
            yield made
        return
    lab: Lab = request.getfixturevalue("embedded_lab") if request.param == "kvm" else _simulated_lab(tmp_path)
    with guests_of(lab) as made:
        yield made


@pytest.fixture(scope="session")
def guest_world() -> Iterator[GuestWorld]:
    """The guests of simulated VMs."""
    with GuestWorld() as world:
        yield world


@pytest.fixture(scope="session")
def guest_vcenter(guest_world: GuestWorld) -> Iterator[VcSim]:
    """A vCenter whose VMs have guests."""
    with vcsim(world=guest_world) as vc:
        yield vc


def _simulated_lab(directory: Path) -> Lab:
    write_figures(directory, replace(Figures.instant(), boot=0.02, migration=1e11))
    spec = SimulatedSpec(hosts=("a", "b"), machines=("box",), directory=PurePosixPath(directory))
    return expand_simulated("simulated", "tests", spec)


def test_it_is_a_driver(guests: Guests) -> None:
    driver: VmDriver = guests.driver
    assert driver.owned("a") is not None


def test_a_created_vm_is_what_was_asked_for(guests: Guests) -> None:
    request = guests.request(nic_model=guests.habits.another_nic_model, vcpus=2)
    vm = guests.create(request=request)
    assert (vm.name, vm.uuid, vm.host, vm.mac, vm.address) == (
        request.name,
        request.uuid,
        "a",
        request.mac,
        request.address,
    )
    facts = guests.driver.read_back(vm)
    assert (facts["nic.model"], facts["nic.mac"], facts["vcpus"]) == (request.shape.nic_model, request.mac, 2)
    assert facts["memory_bytes"] == request.shape.memory
    assert {"machine", "accelerator", "nic.backend", "nic.queues"} <= set(facts)


def test_its_mark_is_found_by_everybody(guests: Guests) -> None:
    request = guests.request()
    vm = guests.create(request=request)
    stranger = guests.another_driver(store="another")
    assert [found.mark for found in stranger.owned("a") if found.uuid == vm.uuid] == [request.mark]
    assert request.mark.store == STORE
    assert [found for found in stranger.owned("b") if found.uuid == vm.uuid] == []
    stranger.close()


def test_its_inside_is_reached_by_its_channel(guests: Guests) -> None:
    vm, channel = guests.boot()
    assert vm.name in channel.endpoint
    assert channel.run(["hostname"], timeout=20).stdout.decode().strip() == vm.name


def test_two_are_created_at_once(guests: Guests) -> None:
    with ThreadPoolExecutor(2) as pool:
        booted = list(pool.map(lambda _: guests.boot(), range(2)))
    (first, channel), (second, _) = booted
    assert first.uuid != second.uuid
    assert second.address is not None
    assert channel.run(["ping", "-c", "1", "-W", "5", str(second.address.ip)], timeout=30).exit_code == 0


def test_a_name_is_given_once(guests: Guests) -> None:
    first = guests.request()
    vm = guests.create(request=first)
    second = replace(guests.request(), name=first.name)
    with pytest.raises(LabError) as caught:
        guests.create(request=second)
    assert (caught.value.kind, caught.value.host) == ("name-taken", "a")
    assert guests.driver.locate(vm) == "a"


def test_a_nic_that_it_cannot_give_is_refused(guests: Guests) -> None:
    with pytest.raises(LabError) as caught:
        guests.create(nic_model="no-such-adapter")
    assert (caught.value.kind, caught.value.host) == ("nic-unsupported", "a")


def test_an_image_that_is_not_there_leaves_nothing(guests: Guests) -> None:
    image = replace(guests.lab.images["probe"], kernel="/nowhere/kernel", disk="/nowhere/disk", template="nowhere")
    request = guests.request(image=image)
    with pytest.raises(LabError) as caught:
        guests.create(request=request)
    assert caught.value.kind == "create-failed"
    assert caught.value.todo
    assert [vm for vm in guests.driver.owned("a") if vm.uuid == request.uuid] == []


def test_a_host_that_the_lab_lacks_is_unreachable(guests: Guests) -> None:
    for call in (guests.driver.host_facts, guests.driver.owned, guests.driver.load):
        with pytest.raises(LabError) as caught:
            call("no-such-host")
        assert caught.value.kind == "host-unreachable"


def test_destroy_ends_it_and_may_be_called_again(guests: Guests) -> None:
    vm = guests.create()
    guests.driver.destroy(vm)
    assert guests.driver.locate(vm) is None
    assert [found for found in guests.driver.owned("a") if found.uuid == vm.uuid] == []
    guests.driver.destroy(vm)


def test_destroy_works_for_an_attempt_that_was_asked_to_end(guests: Guests) -> None:
    vm = guests.create()
    guests.guard.stop("cancelled")
    with pytest.raises(AttemptCancelled):
        guests.driver.create("a", guests.request(), timeout=30)
    assert guests.driver.locate(vm) == "a"
    guests.driver.destroy(vm)
    assert guests.driver.locate(vm) is None


def test_a_vm_of_another_store_is_not_ended(guests: Guests) -> None:
    vm = guests.create()
    stranger = guests.another_driver(store="another")
    with pytest.raises(LabError) as caught:
        stranger.destroy(vm)
    stranger.close()
    assert caught.value.kind == "not-ours"
    assert guests.driver.locate(vm) == "a"


def test_a_paused_vm_goes_on_where_it_was(guests: Guests) -> None:
    vm, channel = guests.boot()
    guests.driver.pause(vm)
    assert guests.driver.locate(vm) == "a"
    guests.driver.unpause(vm)
    assert channel.run(["true"], timeout=30).exit_code == 0


def test_a_migrated_vm_goes_on_elsewhere(guests: Guests) -> None:
    assert guests.driver.check_migration("a", "b") == ""
    vm, channel = guests.boot()
    samples: list[MigrationSample] = []
    before = time.time()
    outcome = guests.driver.migrate(vm, "b", an_order(), on_sample=samples.append)
    assert outcome.completed, outcome
    assert before <= outcome.started <= outcome.ended <= time.time()
    assert outcome.error == outcome.error_kind == ""
    assert 0 not in (outcome.total_ms, outcome.bytes_moved, outcome.iterations), "unknown is None, never 0"
    assert tuple(samples) == outcome.samples
    assert guests.driver.locate(vm) == "b"
    assert channel.run(["hostname"], timeout=30).stdout.decode().strip() == vm.name
    guests.driver.destroy(vm)
    assert [found for host in ("a", "b") for found in guests.driver.owned(host) if found.uuid == vm.uuid] == []


def test_a_migration_past_its_deadline_is_taken_back(guests: Guests) -> None:
    vm, channel = guests.boot()
    outcome = guests.driver.migrate(vm, "b", guests.a_slow_order())
    assert (outcome.completed, outcome.error_kind) == (False, "deadline")
    assert outcome.error
    assert guests.driver.locate(vm) == "a"
    assert [found for found in guests.driver.owned("b") if found.uuid == vm.uuid] == []
    assert channel.run(["true"], timeout=30).exit_code == 0


def test_an_impossible_migration_says_why(guests: Guests) -> None:
    assert guests.driver.check_migration("a", "a")
    vm = guests.create()
    outcome = guests.driver.migrate(vm, "a", an_order())
    assert (outcome.completed, outcome.error_kind) == (False, "refused")
    assert guests.driver.locate(vm) == "a"


def test_a_channel_into_a_vm_that_never_boots_ends_with_an_error(guests: Guests) -> None:
    image = guests.habits.never_boots(guests.lab.images["probe"])
    vm = guests.create(request=guests.request(image=image))
    with pytest.raises(LabError) as caught:
        guests.driver.channel(vm, image).wait_ready(timeout=2)
    assert caught.value.kind == "channel-unreachable"


def test_facts_of_a_host_are_flat_and_say_who_else_is_there(guests: Guests) -> None:
    facts = guests.driver.host_facts("a")
    assert all(value is None or isinstance(value, str | int | float | bool) for value in facts.values())
    assert {"hostname", "vms.running", "vms.ours", "vms.foreign", "memory.bytes", "cpu.count"} <= set(facts)


def test_the_load_of_a_host_names_the_vms_that_run_there(guests: Guests) -> None:
    vm, _ = guests.boot()
    load = guests.driver.load("a")
    assert 0 <= load.cpu <= 1
    assert load.load is None or load.load >= 0
    assert load.network is not None
    assert load.network >= 0
    assert vm.uuid in load.running
    assert vm.uuid not in guests.driver.load("b").running
    guests.driver.pause(vm)
    assert vm.uuid not in guests.driver.load("a").running, "a paused VM does nothing"


def test_a_closed_driver_can_be_used_again(guests: Guests) -> None:
    vm = guests.create()
    guests.driver.close()
    assert guests.driver.locate(vm) == "a"
