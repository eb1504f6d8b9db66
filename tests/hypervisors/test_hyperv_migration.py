"""Live migration between simulated Hyper-V hosts: figures, refusals, cancellation, what is left, and what others broke."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from labctl.model.lab import MigrationAuth
from labctl.model.result import MigrationSample
from tests.contracts.endpoints import until
from tests.hypervisors.guests import Guests, an_order, guests_of
from tests.hypervisors.hyperv_guests import maker
from tests.simulators.hyperv.lab import a_datacentre, a_lab
from tests.simulators.hyperv.state import Datacentre, SimulatedVm
from workers.hypervisors.hyperv import events, migration, moving


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks and waits that are right for real hosts are short here."""
    monkeypatch.setattr(migration, "BUSY_SECONDS", (0.05,))
    monkeypatch.setattr(migration, "SETTLE_SECONDS", 0.5)
    monkeypatch.setattr(moving, "WATCH_SECONDS", 0.1)
    monkeypatch.setattr(moving, "CANCEL_SECONDS", 0.5)
    monkeypatch.setattr(moving, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(events, "EVENT_SECONDS", 0.1)
    for module in (migration, moving, events):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)


@pytest.fixture
def centre() -> Datacentre:
    return a_datacentre()


@pytest.fixture
def guests(centre: Datacentre) -> Iterator[Guests]:
    with guests_of(a_lab(), make=maker(centre)) as made:
        yield made


class Once:
    """Something that happens with the first sample of a migration."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self._happens: Callable[[], object] | None = happens

    def __call__(self, _sample: MigrationSample) -> None:
        happens, self._happens = self._happens, None
        if happens is not None:
            happens()


def own_files(centre: Datacentre, host: str) -> list[str]:
    """Files on a host that are no images."""
    return [path.name for path in centre.hosts[host].files if path.parent.name != "images"]


def runs(centre: Datacentre, script: str) -> int:
    """How often a script was run."""
    return sum(one[1] == script for one in centre.scripts)


class TestFigures:
    def test_h7_the_blackout_is_from_the_event_of_this_vm_and_this_move(
        self, guests: Guests, centre: Datacentre
    ) -> None:
        """H7: by VMId and time, whatever else the log holds; and with a comma, where the language has one."""
        centre.hosts["a"].separator = ","
        vm, other = guests.create(), guests.create()
        assert guests.driver.migrate(other, "b", an_order()).completed
        outcome = guests.driver.migrate(vm, "b", an_order())
        assert (outcome.downtime_ms, outcome.no_downtime) == (200, "")
        assert "20415" in outcome.stats_source
        assert outcome.total_ms is not None
        assert outcome.ended - outcome.started < outcome.total_ms / 1000 + 0.001, "without what was asked before"
        assert (outcome.bytes_moved, outcome.iterations) == (None, None), "Hyper-V tells neither"

    def test_h7_without_an_event_the_downtime_is_unknown(self, guests: Guests, centre: Datacentre) -> None:
        """H7: unknown, with the reason; never zero."""
        centre.hosts["a"].faults.no_blackout = True
        outcome = guests.driver.migrate(guests.create(), "b", an_order())
        assert outcome.completed
        assert outcome.downtime_ms is None
        assert "event log" in outcome.no_downtime

    def test_progress_is_told_in_percent_and_grows(self, guests: Guests, centre: Datacentre) -> None:
        centre.move_seconds = 0.4
        samples: list[MigrationSample] = []
        outcome = guests.driver.migrate(guests.create(), "b", an_order(), on_sample=samples.append)
        assert outcome.samples == tuple(samples)
        percents = [sample.percent for sample in samples if sample.percent is not None]
        assert len(percents) >= 2
        assert percents == sorted(percents)
        assert {sample.memory_total for sample in samples} == {None}


class TestBeforeItBegins:
    def test_h13_compare_vm_is_asked_first(self, guests: Guests, centre: Datacentre) -> None:
        """H13: another switch or processor there: refused, and nothing is moved."""
        vm = guests.create()
        centre.hosts["b"].switches, centre.hosts["b"].processor = {"other": True}, "AuthenticAMD"
        outcome = guests.driver.migrate(vm, "b", an_order())
        assert (outcome.completed, outcome.error_kind) == (False, "refused")
        assert "switch 'data'" in outcome.error
        assert "processor-specific" in outcome.error
        assert runs(centre, "move-vm") == 0
        assert guests.driver.locate(vm) == "a"

    @pytest.mark.parametrize(
        ("auth", "words"),
        [
            (MigrationAuth.KERBEROS, ("constrained delegation", "Active Directory", "any authentication protocol")),
            (MigrationAuth.CREDSSP, ("CredSSP", "transport `credssp`", "Enable-WSManCredSSP")),
        ],
    )
    @pytest.mark.parametrize("code", ["0x8009030E", "0x8009030D", "0x80090303"])
    def test_h5_no_delegation_says_which_one_is_missing_and_where_to_set_it(
        self, centre: Datacentre, auth: MigrationAuth, words: tuple[str, ...], code: str
    ) -> None:
        """H5: the codes of the security packages, whatever the language of the text around them."""
        lab = a_lab()
        with guests_of(lab, make=maker(centre)) as guests:
            vm = guests.create()
            centre.hosts["a"].faults.no_delegation = code
            moving = migration.Migration(
                guests.driver._connections,  # type: ignore[attr-defined]
                vm,
                vm_id=next(iter(centre.hosts["a"].vms)),
                source=replace(lab.hosts["a"], migration_auth=auth),
                destination=lab.hosts["b"],
                order=an_order(),
                may_end=lambda presence: False,
                guard=guests.guard,
            )
            outcome = moving.run(None)
            assert (outcome.completed, outcome.error_kind) == (False, "refused")
            assert all(word in outcome.error for word in (*words, code))
            assert guests.driver.locate(vm) == "a"

    def test_ways_that_hyperv_doesnt_know_are_refused(self, guests: Guests) -> None:
        vm = guests.create()
        for order in (an_order(post_copy=True), an_order(auto_converge=True)):
            assert guests.driver.migrate(vm, "b", order).error_kind == "refused"

    def test_a_destination_that_doesnt_answer(self, guests: Guests, centre: Datacentre) -> None:
        vm = guests.create()
        centre.restart("b", seconds=60)
        outcome = guests.driver.migrate(vm, "b", an_order())
        assert (outcome.completed, outcome.error_kind) == (False, "unreachable")
        centre.hosts["b"].down_until = 0
        assert guests.driver.locate(vm) == "a"


class TestBusy:
    def test_h6_a_surplus_migration_waits_for_its_turn(self, guests: Guests, centre: Datacentre) -> None:
        """H6: and the wait is no part of its time."""
        vm = guests.create()
        centre.hosts["a"].moving = centre.hosts["a"].maximum

        def make_room() -> None:
            until(lambda: runs(centre, "compare-vm") >= 2, "it has waited once")
            centre.hosts["a"].moving = 0

        freeing = threading.Thread(target=make_room)
        freeing.start()
        outcome = guests.driver.migrate(vm, "b", an_order())
        freeing.join()
        assert outcome.completed, outcome
        assert outcome.queued_ms

    def test_h6_one_that_fails_for_want_of_a_slot_is_tried_again(self, guests: Guests, centre: Datacentre) -> None:
        """H6: the slot was free when it was compared, and gone when it began."""
        vm = guests.create()
        centre.hosts["a"].faults.surplus = 2
        outcome = guests.driver.migrate(vm, "b", an_order())
        assert outcome.completed, outcome
        assert runs(centre, "move-vm") == 3
        assert outcome.queued_ms == 100, "two waits of a twentieth of a second"
        assert guests.driver.locate(vm) == "b"

    def test_h6_without_a_slot_until_the_deadline_it_is_refused(self, guests: Guests, centre: Datacentre) -> None:
        """H6: with the limit's name."""
        vm = guests.create()
        centre.hosts["a"].moving = centre.hosts["a"].maximum
        outcome = guests.driver.migrate(vm, "b", an_order(deadline=0.2))
        assert not outcome.completed
        assert "MaximumVirtualMachineMigrations" in outcome.error
        assert runs(centre, "move-vm") == 0


class TestLeftBehind:
    def test_h6_the_folder_that_a_move_leaves_on_its_source_is_removed(
        self, guests: Guests, centre: Datacentre
    ) -> None:
        """H6."""
        centre.hosts["a"].faults.leaves_folder = True
        vm = guests.create()
        assert guests.driver.migrate(vm, "b", an_order()).completed
        assert own_files(centre, "a") == []
        guests.driver.destroy(vm)
        assert own_files(centre, "b") == []

    def test_h6_the_folder_that_a_cancelled_move_leaves_is_removed(self, guests: Guests, centre: Datacentre) -> None:
        """H6."""
        centre.hosts["b"].faults.leaves_folder = centre.hosts["a"].faults.hang = True
        vm = guests.create()
        outcome = guests.driver.migrate(vm, "b", an_order(deadline=0.3))
        assert outcome.error_kind == "deadline"
        assert own_files(centre, "b") == []
        assert "disk.vhdx" in own_files(centre, "a")

    def test_files_on_a_share_stay_where_they_are(self, centre: Datacentre) -> None:
        with guests_of(a_lab(storage=r"\\files\vms\labctl"), make=maker(centre)) as guests:
            vm = guests.create()
            before = set(centre.shared)
            outcome = guests.driver.migrate(vm, "b", an_order())
            assert outcome.completed, outcome
            assert centre.shared == before, "neither moved nor taken for something left behind"
            document = next(one[2] for one in centre.scripts if one[1] == "move-vm")
            assert document["storage"] == ""
            guests.driver.destroy(vm)
            assert centre.shared == set()

    def test_a_shell_on_the_destination_is_ended_only_if_it_is_ours(self, guests: Guests, centre: Datacentre) -> None:
        centre.hosts["a"].faults.hang = True
        vm = guests.create()
        (seen,) = centre.hosts["a"].vms.values()
        folder = rf"D:\labctl\labctl-{vm.uuid}"
        shell = SimulatedVm(name=vm.name, notes=seen.notes, path=folder, id=seen.id)
        foreign = SimulatedVm(name=vm.name, notes="mine", path=r"D:\theirs")
        centre.add_vm("b", foreign)
        centre.add_vm("b", shell)
        outcome = guests.driver.migrate(vm, "b", an_order(deadline=0.2))
        assert outcome.error_kind == "deadline"
        assert list(centre.hosts["b"].vms) == [foreign.id]


class TestTrouble:
    def test_h2_a_move_that_hangs_is_cancelled_at_the_deadline(self, guests: Guests, centre: Datacentre) -> None:
        """H2: and the VM is on its source again."""
        centre.hosts["a"].faults.hang = True
        vm = guests.create()
        outcome = guests.driver.migrate(vm, "b", an_order(deadline=1.0))
        assert (outcome.completed, outcome.error_kind) == (False, "deadline")
        assert outcome.samples
        assert guests.driver.locate(vm) == "a"
        assert centre.hosts["a"].moving == 0
        centre.hosts["a"].faults.hang = False
        assert guests.driver.migrate(vm, "b", an_order()).completed

    def test_one_that_cant_even_be_cancelled_is_said_to_go_on(self, guests: Guests, centre: Datacentre) -> None:
        centre.hosts["a"].faults.hang = centre.hosts["a"].faults.deaf = True
        vm = guests.create()
        outcome = guests.driver.migrate(vm, "b", an_order(deadline=0.2))
        assert (outcome.completed, outcome.error_kind) == (False, "deadline")
        assert "still goes on" in outcome.error
        centre.hosts["a"].faults.deaf = False
        guests.driver.destroy(vm)

    def test_an_attempt_that_is_cancelled_has_its_vm_on_the_source(self, guests: Guests, centre: Datacentre) -> None:
        centre.hosts["a"].faults.hang = True
        vm = guests.create()
        threading.Timer(0.2, guests.guard.stop, ("enough",)).start()
        outcome = guests.driver.migrate(vm, "b", an_order())
        assert (outcome.completed, outcome.error_kind) == (False, "cancelled")
        assert guests.driver.locate(vm) == "a"

    def test_h2_a_move_whose_watcher_lost_its_host_is_found_where_it_arrived(
        self, guests: Guests, centre: Datacentre, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """H2: the connection is gone for longer than anybody waits, the migration goes on: one VM, moved once."""
        monkeypatch.setattr(moving, "SILENT_SECONDS", 0.0)
        monkeypatch.setattr(moving, "CANCEL_SECONDS", 10.0)
        monkeypatch.setattr(migration, "SETTLE_SECONDS", 10.0)
        centre.move_seconds = 0.3
        vm = guests.create()
        host = centre.hosts["a"]

        def come_back() -> None:
            until(lambda: bool(centre.hosts["b"].vms), "it has arrived")
            host.unheard = False

        def lose(_sample: MigrationSample) -> None:
            host.unheard = True

        waiting = threading.Thread(target=come_back)
        waiting.start()
        outcome = guests.driver.migrate(vm, "b", an_order(), on_sample=lose)
        waiting.join()
        assert outcome.completed, outcome
        assert guests.driver.locate(vm) == "b"
        assert runs(centre, "move-vm") == 1

    def test_a_source_that_restarts_in_mid_move(self, guests: Guests, centre: Datacentre) -> None:
        """Its VMs are off afterwards; the outcome says so, and nothing of the VM is left once it is destroyed."""
        centre.hosts["a"].faults.hang = True
        vm = guests.create()
        crash = Once(lambda: centre.restart("a", seconds=0.4))
        outcome = guests.driver.migrate(vm, "b", an_order(deadline=20), on_sample=crash)
        assert not outcome.completed
        assert outcome.error_kind in ("unreachable", "failed")
        assert "doesn't run" in outcome.error
        assert guests.driver.locate(vm) is None
        guests.driver.destroy(vm)
        assert own_files(centre, "a") == own_files(centre, "b") == []

    def test_h13_sr_iov_that_is_lost_by_the_move_is_told(self, guests: Guests, centre: Datacentre) -> None:
        """H13: silently for Hyper-V, not for us."""
        vm = guests.create(nic_model="sr-iov")
        centre.hosts["b"].faults.no_functions = True
        began = time.time()
        assert guests.driver.migrate(vm, "b", an_order()).completed
        (told,) = guests.driver.incidents(vm, since=began)
        assert "fallen back to the synthetic path" in told
        assert guests.driver.incidents(vm, since=time.time()) == ()
        assert guests.driver.read_back(vm)["nic.model"] == "synthetic"

    def test_h13_sr_iov_that_comes_back_after_the_move_is_no_incident(self, guests: Guests) -> None:
        """H13."""
        vm = guests.create(nic_model="sr-iov")
        assert guests.driver.migrate(vm, "b", an_order()).completed
        assert guests.driver.incidents(vm, since=0) == ()
        assert guests.driver.read_back(vm)["nic.model"] == "sr-iov"
