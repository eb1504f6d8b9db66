"""Live migration between two real libvirts: its figures, its deadline, and both sides in order whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import libvirt
import pytest

from labctl.errors import AttemptCancelled
from labctl.model.lab import Image, ImageKind
from labctl.model.order import MigrationOrder
from labctl.model.result import MigrationSample
from labctl.spec.documents import to_json
from tests.hypervisors.guests import Guests, an_order, guests_of
from tests.hypervisors.test_kvm_connection import libvirtd
from tests.hypervisors.test_kvm_vm import remove_pools_of, wait_until
from tests.values import a_lab
from workers.channels.base import Channel
from workers.hypervisors.base import MigrationOutcome, Vm
from workers.hypervisors.kvm import migration
from workers.hypervisors.kvm import vm as vms

lab = pytest.mark.lab

SLOW = 8 * 2**20
"""1 MiB/s: a migration at this rate doesn't end in a test's time."""

DIRTY = "while :; do dd if=/dev/urandom of=/tmp/dirt bs=256k count=64 conv=notrunc; done >/dev/null 2>&1 &"
"""Rewrites 16 MiB for ever."""


EVERY_ORDER = [
    an_order(auto_converge=auto_converge, post_copy=post_copy, bandwidth=bandwidth, back=back)
    for auto_converge in (False, True)
    for post_copy in (False, True)
    for bandwidth in (None, SLOW)
    for back in (False, True)
]


@pytest.mark.parametrize("order", EVERY_ORDER)
def test_l5_l8_m11_m12_what_leaves_a_second_copy_or_damages_disks_is_never_asked_for(order: MigrationOrder) -> None:
    never = (
        libvirt.VIR_MIGRATE_PEER2PEER
        | libvirt.VIR_MIGRATE_PERSIST_DEST
        | libvirt.VIR_MIGRATE_UNSAFE
        | libvirt.VIR_MIGRATE_OFFLINE
    )
    flags = migration.flags_of(order)
    assert not flags & never
    assert bool(flags & libvirt.VIR_MIGRATE_AUTO_CONVERGE) == order.auto_converge, "it slows the guest: a factor"
    assert bool(flags & libvirt.VIR_MIGRATE_POSTCOPY) == order.post_copy


def test_l3_m18_the_destinations_address_is_the_lab_files() -> None:
    destination = a_lab().hosts["b"]
    assert destination.migration_address is not None
    parameters = migration.parameters_of(an_order(bandwidth=SLOW), destination)
    assert parameters == {"migrate_uri": f"tcp://{destination.migration_address}", "bandwidth": 1}


DOWNTIME = {"downtime": 90, "time_elapsed": 2000}


@pytest.mark.parametrize(
    ("there", "told", "downtime", "source", "why"),
    [
        (DOWNTIME, None, 90, "destination", ""),
        (DOWNTIME, {"downtime": 1}, 90, "destination", ""),
        ({"type": 0}, DOWNTIME, 90, "event", ""),
        ({}, {"time_elapsed": 2000}, None, "event", "neither side"),
        ({"type": 0}, None, None, "", "no event"),
        ({"downtime": 0}, None, 0, "destination", ""),
    ],
)
def test_l7_a_downtime_that_nobody_states_is_unknown_with_the_reason(
    there: dict[str, int], told: dict[str, int] | None, downtime: int | None, source: str, why: str
) -> None:
    word = migration.last_word(there, told)
    assert word.stats.get("downtime") == downtime
    assert source in word.source
    assert bool(word.source) == bool(source)
    assert why in word.no_downtime
    assert bool(word.no_downtime) == bool(why)


@lab
def test_l7_m13_a_downtime_can_be_read_again(guests: Guests) -> None:
    """M13: without the flag that keeps them, statistics are gone once anybody has read them."""
    vm = guests.create()
    outcome = guests.driver.migrate(vm, "b", an_order())
    assert outcome.downtime_ms is not None
    assert outcome.no_downtime == ""
    connection = libvirt.open(guests.lab.hosts["b"].uri)
    flags = libvirt.VIR_DOMAIN_JOB_STATS_COMPLETED | libvirt.VIR_DOMAIN_JOB_STATS_KEEP_COMPLETED
    for _ in range(2):
        assert connection.lookupByUUIDString(vm.uuid).jobStats(flags)["downtime"] == outcome.downtime_ms
    connection.close()


@lab
def test_a_vm_moves_there_and_back_and_its_channel_follows(guests: Guests) -> None:
    vm, channel = guests.boot()
    beat = channel.start(["sleep", "1000"], lifetime=300)
    before = time.time()
    there = guests.driver.migrate(vm, "b", an_order())
    assert_moved(there)
    assert before <= there.started < there.ended <= time.time()
    assert (guests.driver.locate(vm), found_on(guests, vm)) == ("b", ["b"])
    assert not beat.finished(), "what ran before goes on"
    assert guests.driver.read_back(vm)["host"] == "b"

    assert_moved(guests.driver.migrate(vm, "a", an_order()))
    assert (guests.driver.locate(vm), found_on(guests, vm)) == ("a", ["a"])
    assert channel.run(["true"], timeout=20).exit_code == 0
    beat.kill()


@lab
def test_another_process_finds_and_ends_a_vm_that_was_moved(guests: Guests) -> None:
    """L5, M12: it is on one side only, and looked for on both."""
    vm = guests.create()
    assert guests.driver.migrate(vm, "b", an_order()).completed
    stranger = guests.another_driver()
    assert stranger.locate(vm) == "b"
    stranger.destroy(vm)
    assert found_on(guests, vm) == []
    stranger.close()


@lab
def test_progress_is_told_while_it_happens(guests: Guests) -> None:
    """L6, M14: the source is asked for its statistics, and nobody for anything else."""
    vm, _ = guests.boot()
    told: list[MigrationSample] = []
    outcome = guests.driver.migrate(vm, "b", an_order(bandwidth=200_000_000), on_sample=told.append)
    assert outcome.completed, outcome
    assert tuple(told) == outcome.samples
    assert len(told) >= 3
    assert all(sample.memory_total > 150 * 2**20 for sample in told)
    assert told[-1].memory_processed > told[0].memory_processed
    assert [sample.at for sample in told] == sorted(sample.at for sample in told)


@lab
def test_a_migration_that_never_converges_ends_at_its_deadline(guests: Guests) -> None:
    """L6, M14: it is aborted, and the VM is on its source."""
    vm, channel = guests.boot()
    channel.run(["sh", "-c", DIRTY], timeout=20)
    outcome = guests.driver.migrate(vm, "b", an_order(bandwidth=SLOW, deadline=2.0))
    assert (outcome.completed, outcome.error_kind) == (False, "deadline")
    assert outcome.total_ms is None
    assert outcome.downtime_ms is None
    assert outcome.samples
    assert_still_on_source(guests, vm, channel)


@lab
def test_a_cancelled_attempt_brings_its_vm_home(guests: Guests) -> None:
    vm, channel = guests.boot()
    threading.Timer(1.0, lambda: guests.guard.stop("Ctrl-C")).start()
    outcome = guests.driver.migrate(vm, "b", an_order(bandwidth=SLOW))
    assert (outcome.completed, outcome.error_kind) == (False, "cancelled")
    assert (guests.driver.locate(vm), found_on(guests, vm)) == ("a", ["a"])
    with pytest.raises(AttemptCancelled):
        channel.run(["true"], timeout=20)
    guests.driver.destroy(vm)


MOVE = """
import sys
from labctl.model.lab import Lab
from labctl.spec.documents import from_json
from tests.hypervisors.guests import STORE, an_order
from workers.guard import Guard
from workers.hypervisors.base import Vm
from workers.hypervisors.kvm.driver import KvmDriver

name, uuid, mac, bandwidth = sys.argv[1:]
driver = KvmDriver(from_json(Lab, sys.stdin.read()), store=STORE, guard=Guard())
driver.migrate(Vm(name=name, uuid=uuid, host="a", mac=mac, address=None), "b", an_order(bandwidth=int(bandwidth)))
"""


@lab
@pytest.mark.faults
def test_l5_m10_a_worker_that_is_killed_on_the_way_leaves_its_vm_on_the_source(guests: Guests) -> None:
    vm, channel = guests.boot()
    worker = subprocess.Popen(
        [sys.executable, "-c", MOVE, vm.name, vm.uuid, vm.mac, str(SLOW)], stdin=subprocess.PIPE, text=True
    )
    assert worker.stdin is not None
    with when_under_way(guests, vm, worker.kill):
        worker.stdin.write(to_json(guests.lab))
        worker.stdin.close()
        assert worker.wait(60) == -signal.SIGKILL
    wait_until(lambda: found_on(guests, vm) == ["a"])
    assert_still_on_source(guests, vm, channel)


@lab
@pytest.mark.faults
def test_a_destination_whose_libvirt_is_down(guests: Guests) -> None:
    vm, channel = guests.boot()
    hosts = dict(guests.lab.hosts)
    hosts["b"] = replace(hosts["b"], uri="qemu+unix:///system?socket=/nowhere/b")
    driver = guests.another_driver(lab=replace(guests.lab, hosts=hosts))
    outcome = driver.migrate(vm, "b", an_order())
    driver.close()
    assert (outcome.completed, outcome.error_kind) == (False, "unreachable")
    assert "doesn't answer" in outcome.error
    assert_still_on_source(guests, vm, channel)


@lab
@pytest.mark.faults
def test_a_migration_address_where_nobody_is(guests: Guests) -> None:
    """L3: the lab file's address is used and no other."""
    hosts = dict(guests.lab.hosts)
    hosts["b"] = replace(hosts["b"], migration_address=IPv4Address("127.0.0.1"))
    vm, channel = guests.boot()
    driver = guests.another_driver(lab=replace(guests.lab, hosts=hosts))
    outcome = driver.migrate(vm, "b", an_order())
    driver.close()
    assert (outcome.completed, outcome.error_kind) == (False, "unreachable"), outcome
    assert_still_on_source(guests, vm, channel)


@lab
@pytest.mark.faults
def test_a_destination_qemu_that_dies_on_the_way(guests: Guests) -> None:
    vm, channel = guests.boot()
    with when_under_way(guests, vm, lambda: os.kill(the_pid(guests, vm, "b"), signal.SIGKILL)):
        outcome = guests.driver.migrate(vm, "b", an_order(bandwidth=SLOW, deadline=30.0))
    assert (outcome.completed, outcome.error_kind) == (False, "failed"), outcome
    assert_still_on_source(guests, vm, channel)


@lab
@pytest.mark.faults
def test_a_destination_libvirt_that_hangs_on_the_way(guests: Guests) -> None:
    vm, channel = guests.boot()
    pid = libvirtd(guests.lab, "b")
    resume = threading.Timer(6.0, os.kill, (pid, signal.SIGCONT))
    with when_under_way(guests, vm, lambda: os.kill(pid, signal.SIGSTOP)):
        resume.start()
        outcome = guests.driver.migrate(vm, "b", an_order(bandwidth=SLOW, deadline=3.0))
    resume.join()
    assert (outcome.completed, outcome.error_kind) == (False, "deadline"), outcome
    assert_still_on_source(guests, vm, channel)


@lab
def test_post_copy_under_software_emulation_is_refused_for_it_damages_guests(guests: Guests) -> None:
    """L6: nor could it be aborted."""
    vm, channel = guests.boot()
    if guests.driver.read_back(vm)["accelerator"] != "tcg":
        pytest.skip("this host has KVM")
    outcome = guests.driver.migrate(vm, "b", an_order(post_copy=True))
    assert (outcome.completed, outcome.error_kind) == (False, "refused")
    assert "software emulation" in outcome.error
    assert_still_on_source(guests, vm, channel)


@lab
def test_auto_converge_is_asked_for(guests: Guests) -> None:
    """L6: only when the campaign says so, since it slows the guest."""
    vm, channel = guests.boot()
    channel.run(["sh", "-c", DIRTY], timeout=20)
    outcome = guests.driver.migrate(vm, "b", an_order(auto_converge=True))
    assert outcome.completed, outcome
    assert found_on(guests, vm) == ["b"]


@lab
def test_a_vm_on_a_local_disk_is_refused_and_stays(guests: Guests, tmp_path: Path) -> None:
    """L8, M18: libvirt's refusal is never overridden."""
    base = tmp_path / "base.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", str(base), "64M"], check=True)
    image = Image(name="disk", kind=ImageKind.DISK, disk=str(base))
    lab = replace(guests.lab, images={**guests.lab.images, "disk": image})
    with guests_of(lab) as with_disk:
        vm = with_disk.create(request=with_disk.request(image=image))
        outcome = with_disk.driver.migrate(vm, "b", an_order())
        assert (outcome.completed, outcome.error_kind) == (False, "refused")
        assert "unsafe" in outcome.error.lower()
        assert (with_disk.driver.locate(vm), found_on(with_disk, vm)) == ("a", ["a"])
    remove_pools_of(lab.hosts["a"].uri, tmp_path)


@lab
def test_a_pair_without_a_path_is_refused(guests: Guests) -> None:
    vm = guests.create()
    driver = guests.another_driver(lab=replace(guests.lab, migration_pairs=frozenset({("b", "a")})))
    outcome = driver.migrate(vm, "b", an_order())
    driver.close()
    assert (outcome.completed, outcome.error_kind) == (False, "refused")
    assert "no migration path" in outcome.error
    assert found_on(guests, vm) == ["a"]


def assert_moved(outcome: MigrationOutcome) -> None:
    assert outcome.completed, outcome
    assert outcome.error_kind == ""
    assert outcome.total_ms is not None
    assert outcome.total_ms > 0
    assert outcome.downtime_ms is not None
    assert 0 < outcome.downtime_ms <= outcome.total_ms
    assert outcome.bytes_moved is not None
    assert outcome.bytes_moved > 2**20
    assert outcome.iterations is not None
    assert outcome.iterations >= 1
    assert outcome.stats_source


def assert_still_on_source(guests: Guests, vm: Vm, channel: Channel) -> None:
    assert (guests.driver.locate(vm), found_on(guests, vm)) == ("a", ["a"])
    assert channel.run(["true"], timeout=30).exit_code == 0


def found_on(guests: Guests, vm: Vm) -> list[str]:
    """The hosts that have any domain of this UUID, by a connection of the test's own."""
    hosts = []
    for name, host in guests.lab.hosts.items():
        connection = libvirt.open(host.uri)
        hosts += [name for domain in connection.listAllDomains() if domain.UUIDString() == vm.uuid]
        connection.close()
    return hosts


def the_pid(guests: Guests, vm: Vm, host: str) -> int:
    pid = vms.process_id(guests.lab.hosts[host], vm.name)
    assert pid is not None
    return pid


@contextmanager
def when_under_way(guests: Guests, vm: Vm, act: Callable[[], None]) -> Iterator[None]:
    """Do something as soon as memory of the VM is on its way to host `b`."""
    done = threading.Event()

    def watch() -> None:
        connection = libvirt.open(guests.lab.hosts["a"].uri)
        domain = connection.lookupByUUIDString(vm.uuid)
        while not domain.jobStats().get("memory_processed"):
            time.sleep(0.05)
        act()
        done.set()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield
    thread.join(30)
    assert done.is_set(), "the migration was never under way"
