"""VMs on simulated Hyper-V hosts: what is made, whose it is, where its address is from, and what is left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import PureWindowsPath

import pytest

from labctl.errors import LabError
from labctl.model.lab import Customisation, Lab
from tests.hypervisors.guests import Guests, an_order, guests_of
from tests.hypervisors.hyperv_guests import maker
from tests.simulators.hyperv.lab import a_datacentre, a_lab
from tests.simulators.hyperv.operations import Caller, run
from tests.simulators.hyperv.state import OFF, RUNNING, Adapter, Datacentre, Event, Refusal, SimulatedVm
from workers.hypervisors.base import Vm
from workers.hypervisors.hyperv.definition import notes_text

AWKWARD = [
    "it's",
    'say "x"',
    "$(Stop-Computer)",
    "`$x",
    "a;b|c&d",
    "line\nbreak",
    "zürich-東京",
    "%TEMP%",
    "{0}",
    "C:\\",
]


@pytest.fixture
def centre() -> Datacentre:
    return a_datacentre()


@pytest.fixture
def lab() -> Lab:
    return a_lab()


@pytest.fixture
def guests(lab: Lab, centre: Datacentre) -> Iterator[Guests]:
    with guests_of(lab, make=maker(centre)) as made:
        yield made


def files(centre: Datacentre) -> list[str]:
    """Paths of everything on the hosts that is no image."""
    return [str(path) for host in centre.hosts.values() for path in host.files if path.parent.name != "images"]


def dhcp_guests(centre: Datacentre) -> Guests:
    return Guests(a_lab(addressing="dhcp"), make=maker(centre))


class TestAdapters:
    @pytest.mark.parametrize(("model", "image"), [("synthetic", "probe"), ("legacy", "gen1"), ("sr-iov", "probe")])
    def test_h10_the_adapter_that_was_asked_for_is_read_back(self, guests: Guests, model: str, image: str) -> None:
        """H10: with its kind, its address and its VLAN, as Hyper-V has them."""
        network = replace(guests.lab.network(), vlan=7)
        request = replace(guests.request(image=guests.lab.images[image], nic_model=model), network=network)
        facts = guests.driver.read_back(guests.create(request=request))
        assert (facts["nic.model"], facts["nic.legacy"], facts["nic.mac"]) == (model, model == "legacy", request.mac)
        assert (facts["nic.vlan"], facts["nic.backend"]) == (7, "virtual switch data")
        assert str(facts["machine"]).startswith(f"generation {guests.lab.images[image].generation}")

    def test_h10_legacy_on_generation_2_reaches_no_host(self, guests: Guests, centre: Datacentre) -> None:
        """H10."""
        with pytest.raises(LabError) as caught:
            guests.create(nic_model="legacy")
        assert caught.value.kind == "nic-unsupported"
        assert centre.scripts == []

    def test_h13_an_adapter_that_fell_back_to_the_synthetic_path_is_called_so(
        self, guests: Guests, centre: Datacentre
    ) -> None:
        """H13: what carries the traffic is read back, not what was asked for."""
        centre.hosts["a"].faults.no_functions = True
        facts = guests.driver.read_back(guests.create(nic_model="sr-iov"))
        assert (facts["nic.model"], facts["nic.sriov_wanted"], facts["nic.sriov_used"]) == ("synthetic", True, False)

    def test_a_switch_without_sr_iov_is_refused(self, guests: Guests, centre: Datacentre) -> None:
        centre.hosts["a"].switches["data"] = False
        with pytest.raises(LabError) as caught:
            guests.create(nic_model="sr-iov")
        assert caught.value.kind == "nic-unsupported"

    def test_an_assigned_device_goes_back_to_its_host(self, guests: Guests, centre: Datacentre) -> None:
        device = "PCIROOT(0)#PCI(0300)#PCI(0000)"
        centre.hosts["a"].devices = {device}
        image = replace(guests.lab.images["probe"], customisation=Customisation.NONE)
        vm = guests.create(request=guests.request(image=image, nic_model="vt-d", passthrough=device))
        assert centre.hosts["a"].devices == set()
        facts = guests.driver.read_back(vm)
        assert (facts["nic.model"], facts["nic.backend"]) == ("vt-d", device)
        assert vm.mac == "00:1b:21:00:00:01", "the device's own"
        guests.driver.destroy(vm)
        assert centre.hosts["a"].devices == {device}


class TestCreation:
    @pytest.mark.parametrize("odd", AWKWARD)
    def test_h12_odd_characters_are_data_in_every_field(self, odd: str, centre: Datacentre) -> None:
        """H12: name, notes, switch, disk and storage arrive as they are, and the VM is found and removed by them."""
        lab = a_lab(storage=f"D:\\{odd}")
        lab = replace(lab, name=odd, networks={"data": replace(lab.network(), bridge=odd)})
        centre.hosts["a"].switches = {odd: True}
        disk = f"D:\\images\\{odd}.vhdx"
        centre.hosts["a"].files.add(PureWindowsPath(disk))
        with guests_of(lab, make=maker(centre)) as guests:
            request = guests.request(image=replace(lab.images["probe"], disk=disk))
            vm = guests.create(request=replace(request, name=f"labctl-{odd}"))
            (seen,) = centre.hosts["a"].vms.values()
            assert (seen.name, seen.adapters[0].switch, seen.disk) == (
                f"labctl-{odd}",
                odd,
                (str(PureWindowsPath(f"D:\\{odd}\\labctl-{vm.uuid}\\disk.vhdx")), disk),
            )
            assert [found.mark.lab for found in guests.driver.owned("a")] == [odd]
            guests.driver.destroy(vm)
            assert centre.hosts["a"].vms == {}

    def test_a_vm_that_doesnt_start_leaves_nothing(self, guests: Guests, centre: Datacentre) -> None:
        centre.hosts["a"].faults.start_fails = "Not enough memory in the system to start the virtual machine."
        with pytest.raises(LabError) as caught:
            guests.create()
        assert (caught.value.kind, caught.value.host) == ("create-failed", "a")
        assert "memory" in caught.value.why
        assert centre.hosts["a"].vms == {}
        assert files(centre) == []

    def test_a_guest_that_never_takes_its_address_leaves_nothing(self, guests: Guests, centre: Datacentre) -> None:
        """H9: what is missing in the image is said."""
        centre.hosts["a"].faults.no_exchange = True
        with pytest.raises(LabError) as caught:
            guests.driver.create("a", guests.request(), timeout=0.1)
        assert caught.value.kind == "create-failed"
        assert "hv_kvp_daemon" in caught.value.why
        assert centre.hosts["a"].vms == {}
        assert files(centre) == []

    @pytest.mark.parametrize(
        ("change", "word"), [({"bridge": "elsewhere"}, "elsewhere"), ({"bridge": ""}, "virtual switch")]
    )
    def test_a_switch_that_is_not_there(self, guests: Guests, change: dict[str, str], word: str) -> None:
        request = guests.request()
        with pytest.raises(LabError) as caught:
            guests.create(request=replace(request, network=replace(request.network, **change)))
        assert caught.value.kind == "create-failed"
        assert word in caught.value.why
        assert "bridge" in caught.value.todo

    def test_somebody_elses_mac_address_is_refused(self, guests: Guests, centre: Datacentre) -> None:
        request = guests.request()
        plain = request.mac.replace(":", "").upper()
        other = centre.add_vm("a", SimulatedVm(name="billing", state=OFF, adapters=[Adapter(mac=plain, switch="data")]))
        with pytest.raises(LabError) as caught:
            guests.create(request=request)
        assert caught.value.kind == "mac-taken"
        assert "billing" in caught.value.why
        assert list(centre.hosts["a"].vms.values()) == [other]


class TestOwnership:
    def test_h8_a_foreign_vm_with_our_name_is_never_touched(self, guests: Guests, centre: Datacentre) -> None:
        """H8: not when a VM is made, and not when one is removed."""
        request = guests.request()
        foreign = centre.add_vm("a", SimulatedVm(name=request.name, state=RUNNING, notes="mine"))
        with pytest.raises(LabError) as caught:
            guests.create(request=request)
        assert caught.value.kind == "name-taken"
        assert "no mark" in caught.value.why
        guests.driver.destroy(guests.expect(request, "a"))
        assert centre.hosts["a"].vms == {foreign.id: foreign}
        assert foreign.state == RUNNING

    def test_h8_of_two_vms_with_one_name_only_ours_is_ended(self, guests: Guests, centre: Datacentre) -> None:
        """H8: the VM is addressed by its VMId, whoever takes its name later."""
        vm = guests.create()
        twin = centre.add_vm("a", SimulatedVm(name=vm.name, state=RUNNING))
        guests.driver.pause(vm)
        guests.driver.unpause(vm)
        assert twin.state == RUNNING
        assert guests.driver.migrate(vm, "b", an_order()).completed
        assert twin.id in centre.hosts["a"].vms
        guests.driver.destroy(vm)
        assert [list(host.vms) for host in centre.hosts.values()] == [[twin.id], []]

    def test_h8_a_vm_that_has_lost_its_mark_or_its_name_is_not_ended(self, guests: Guests, centre: Datacentre) -> None:
        """H8: both and the UUID are needed."""
        vm = guests.create()
        (seen,) = centre.hosts["a"].vms.values()
        notes, name = seen.notes, seen.name
        for change in ({"notes": "edited by hand"}, {"name": "labctl-renamed"}, {"notes": notes.replace(vm.uuid, "0")}):
            seen.notes, seen.name = notes, name
            for key, value in change.items():
                setattr(seen, key, value)
            with pytest.raises(LabError) as caught:
                guests.driver.destroy(vm)
            assert caught.value.kind == "not-ours"
            assert list(centre.hosts["a"].vms) == [seen.id]
        seen.notes, seen.name = notes, name

    def test_h8_the_script_looks_at_the_mark_again(self, guests: Guests, centre: Datacentre) -> None:
        """H8: it may have changed since it was read."""
        vm = guests.create()
        (seen,) = centre.hosts["a"].vms.values()
        folder = rf"D:\labctl\labctl-{vm.uuid}"
        for document in (
            {"id": seen.id, "uuid": vm.uuid, "name": "labctl-other", "folder": folder},
            {"id": "", "uuid": vm.uuid, "name": "", "folder": "D:\\"},
            {"id": "", "uuid": vm.uuid, "name": "", "folder": folder},
        ):
            with pytest.raises(Refusal):
                run(centre, "a", "remove-vm", document, Caller())
        assert list(centre.hosts["a"].vms) == [seen.id]

    def test_another_process_finds_and_ends_a_vm_by_its_mark(self, guests: Guests, centre: Datacentre) -> None:
        vm = guests.create()
        other = guests.another_driver()
        assert guests.driver.migrate(vm, "b", an_order()).completed
        assert other.locate(vm) == "b"
        other.destroy(vm)
        assert centre.hosts["b"].vms == {}
        assert files(centre) == []

    def test_what_a_crash_left_of_a_creation_is_removed(self, guests: Guests, centre: Datacentre) -> None:
        request = guests.request()
        vm = guests.expect(request, "a")
        centre.make(centre.hosts["a"], rf"D:\labctl\labctl-{request.uuid}\disk.vhdx")
        notes = notes_text(request)
        centre.add_vm("a", SimulatedVm(name=request.name, notes=notes, path=rf"D:\labctl\labctl-{request.uuid}"))
        assert [(found.uuid, found.active) for found in guests.driver.owned("a")] == [(request.uuid, False)]
        guests.driver.destroy(vm)
        assert centre.hosts["a"].vms == {}
        assert files(centre) == []

    def test_one_that_was_given_up_before_its_mark_is_known_by_its_folder(
        self, guests: Guests, centre: Datacentre
    ) -> None:
        request = guests.request()
        vm = guests.expect(request, "a")
        folder = rf"D:\labctl\labctl-{request.uuid}"
        centre.make(centre.hosts["a"], rf"{folder}\{request.name}\half.vmcx")
        centre.add_vm("a", SimulatedVm(name=request.name, path=rf"{folder}\{request.name}"))
        elsewhere = centre.add_vm("a", SimulatedVm(name=request.name, path=r"D:\theirs"))
        guests.driver.destroy(vm)
        assert list(centre.hosts["a"].vms) == [elsewhere.id]
        assert files(centre) == []


class TestAddresses:
    def address(self, guests: Guests, vm: Vm) -> IPv4Address:
        return guests.driver.address(vm, timeout=0.05)

    def made(self, centre: Datacentre) -> tuple[Guests, Vm]:
        guests = dhcp_guests(centre)
        return guests, guests.create(request=replace(guests.request(), address=None))

    def test_with_dhcp_the_guest_tells_it(self, centre: Datacentre) -> None:
        guests, vm = self.made(centre)
        assert self.address(guests, vm) == IPv4Address("192.0.2.99")

    def test_h9_without_the_exchange_the_host_has_seen_it(self, centre: Datacentre) -> None:
        """H9."""
        guests, vm = self.made(centre)
        centre.hosts["a"].faults.no_exchange = True
        assert self.address(guests, vm) == IPv4Address("192.0.2.99")

    def test_h9_no_address_says_what_is_missing(self, centre: Datacentre) -> None:
        """H9: the daemon of the guest, and the neighbours."""
        guests, vm = self.made(centre)
        centre.hosts["a"].faults.no_exchange = centre.hosts["a"].faults.no_neighbours = True
        with pytest.raises(LabError) as caught:
            self.address(guests, vm)
        assert caught.value.kind == "no-guest-address"
        assert "hv_kvp_daemon" in caught.value.why
        assert "neighbours" in caught.value.why

    def test_h9_a_link_local_address_is_none(self, centre: Datacentre) -> None:
        """H9: it is what a guest takes when no DHCP server answers."""
        guests, vm = self.made(centre)
        centre.hosts["a"].faults.link_local = True
        with pytest.raises(LabError, match="no address") as caught:
            self.address(guests, vm)
        assert "DHCP" in caught.value.why

    def test_a_static_one_is_told_to_the_guest(self, guests: Guests, centre: Datacentre) -> None:
        request = guests.request()
        vm = guests.create(request=request)
        (seen,) = centre.hosts["a"].vms.values()
        assert seen.address == request.address
        assert self.address(guests, vm) == request.address.ip  # type: ignore[union-attr]


class TestAfterTrouble:
    def test_a_host_that_restarts_is_unreachable_and_then_has_no_vm(self, guests: Guests, centre: Datacentre) -> None:
        vm = guests.create()
        centre.restart("a", seconds=60)
        with pytest.raises(LabError) as caught:
            guests.driver.locate(vm)
        assert (caught.value.kind, caught.value.host) == ("host-unreachable", "a")
        centre.hosts["a"].down_until = 0
        assert guests.driver.locate(vm) is None
        with pytest.raises(LabError) as caught:
            guests.driver.read_back(vm)
        assert caught.value.kind == "vm-gone"
        guests.driver.destroy(vm)
        assert files(centre) == []

    def test_others_that_touch_a_vm_are_told_of(self, guests: Guests, centre: Datacentre) -> None:
        vm = guests.create()
        assert guests.driver.incidents(vm, since=0) == ()
        assert guests.driver.migrate(vm, "b", an_order()).completed
        assert guests.driver.incidents(vm, since=0) == (), "its own moves are nobody else's"
        (seen,) = centre.hosts["b"].vms.values()
        now = centre.hosts["a"].events[0].at
        centre.hosts["b"].events += [
            Event(18514, (seen.name, seen.id.upper()), now),
            Event(18514, ("another", "ANOTHER-ID"), now),
            Event(20415, (seen.name, seen.id.upper(), "0.3"), now - 100),
        ]
        assert guests.driver.incidents(vm, since=0) == (
            "Host b: It was reset by its guest.",
            "Host b: It was moved to another host.",
        )
