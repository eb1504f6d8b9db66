"""What a vCenter holds, in a few calls, while others change it."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from pyVmomi import vim

from labctl.errors import LabError
from labctl.model.lab import Lab
from tests.hypervisors.guests import guests_of
from tests.hypervisors.vsphere_guests import clone_by_hand, done, named, somebody, vsphere_lab
from tests.simulators.vcsim import HOSTS, LINUX, Datastore, VcSim, vcsim
from workers.hypervisors.vsphere import storage
from workers.hypervisors.vsphere.connection import Connections, Session
from workers.hypervisors.vsphere.inventory import Inventory, Item, Row, choose, listing, plain, properties, related
from workers.hypervisors.vsphere.places import Places

pytestmark = pytest.mark.services

MANY = 5000


@pytest.fixture(scope="module")
def running() -> Iterator[VcSim]:
    """One vCenter with names that are there twice."""
    with vcsim(
        standalone=("alone.lab.test",),
        datastores=(
            Datastore(name="shared", hosts=HOSTS),
            Datastore(name="second", hosts=HOSTS),
            Datastore(name="local1", hosts=HOSTS[:1]),
            Datastore(name="alone", hosts=("alone.lab.test",)),
        ),
        networks=("plain",),
        portgroups=("dvpg", "twice", "twice"),
        pools=("gold", "silver"),
        folders=("labctl", "other"),
        machines=4,
    ) as vc:
        yield vc


@pytest.fixture
def vc(running: VcSim) -> Iterator[VcSim]:
    """The vCenter, whole again afterwards."""
    yield running
    running.heal()


def places(vc: VcSim, **changes: str) -> Places:
    """Host `a` with changes, and `b`."""
    lab = vsphere_lab(vc)
    hosts = {**lab.hosts, "a": replace(lab.hosts["a"], **changes)}  # type: ignore[arg-type]
    return of(replace(lab, hosts=hosts))


def of(lab: Lab) -> Places:
    """The places of a lab."""
    return Places(lab, Connections(lab))


def calls_of(vc: VcSim, before: Mapping[str, int]) -> Counter[str]:
    """The calls since then, logins aside."""
    counted = Counter(vc.calls()) - Counter(before)
    return Counter({name: count for name, count in counted.items() if name not in ("Login", "RetrieveServiceContent")})


def test_five_thousand_vms_cost_three_calls_and_their_pages() -> None:
    """V11: no call for each of them; the page is the server's to make."""
    with vcsim(machines=MANY) as vc:
        session = somebody(vc)
        session.now()
        before = vc.calls()
        rows = listing(session, session.content.rootFolder, {vim.VirtualMachine: ("name", "config.instanceUuid")})
        counted = calls_of(vc, before)
        assert len([row for row in rows if row["name"].startswith("other-")]) == MANY
        assert counted.total() <= 3 + MANY // 1000
        assert counted["CreateContainerView"] == counted["DestroyView"] == 1

        driver_places = of(vsphere_lab(vc))
        before = vc.calls()
        driver_places.vm_place("a")
        assert calls_of(vc, before).total() == 3, "no VMs are looked at"
        before = vc.calls()
        assert storage.find_template(driver_places.host("a"), vsphere_lab(vc).images["probe"]).name == LINUX.name
        assert calls_of(vc, before).total() <= 4 + MANY // 1000

        with guests_of(vsphere_lab(vc)) as guests:
            before = vc.calls()
            vm = guests.create()
            guests.driver.destroy(vm)
            assert calls_of(vc, before).total() <= 60 + 3 * MANY // 1000


def test_v11_a_vm_that_vanishes_while_it_is_looked_at_is_left_out(vc: VcSim) -> None:
    """V11: the others are told all the same, with two calls instead of one."""
    session = somebody(vc)
    ref = named(session, vim.VirtualMachine, LINUX.name)
    gone = session.object(vim.VirtualMachine, "vm-gone")
    rows = properties(session, (gone, ref), ("name",))
    assert [(row.ref, row["name"]) for row in rows] == [(ref, LINUX.name)]
    assert properties(session, (gone,), ("name",)) == []


def test_v11_listing_goes_on_while_somebody_deletes(vc: VcSim) -> None:
    """V11: VMs come and go beside a listing, which never fails and never loses one that stays."""
    session, other = somebody(vc), somebody(vc)
    host = named(other, vim.HostSystem, HOSTS[0])
    stop = threading.Event()

    def come_and_go() -> None:
        for number in itertools.takewhile(lambda _: not stop.is_set(), itertools.count(1)):
            made = done(other, clone_by_hand(other, f"passing-{number}"))
            done(other, made.Destroy_Task())

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(30):
            found = listing(session, session.content.rootFolder, {vim.VirtualMachine: ("name",)})
            assert {f"other-{number}" for number in range(4)} <= {row["name"] for row in found}
            names = [row["name"] for row in related(session, host, "vm", vim.VirtualMachine, ("name",))]
            assert len(names) == len(set(names))
    finally:
        stop.set()
        thread.join()


def test_v11_a_view_that_went_with_its_session_is_made_anew(vc: VcSim) -> None:
    """V11: once, and then it is an error."""
    session = somebody(vc)
    session.now()
    vc.fail("RetrievePropertiesEx", "ManagedObjectNotFound")
    assert listing(session, session.content.rootFolder, {vim.HostSystem: ("name",)})


def test_hosts_are_meant_by_name_or_path(vc: VcSim) -> None:
    by_name = places(vc).host("a")
    by_path = places(vc, inventory=f"/dc1/host/cluster1/{HOSTS[0]}").host("a")
    assert by_name.host == by_path.host
    assert by_name.path == f"/dc1/host/cluster1/{HOSTS[0]}"
    alone = places(vc, inventory="alone.lab.test", datastore="alone").vm_place("a")
    assert (alone.datastore_name, alone.folder_path) == ("alone", "/dc1/vm")
    assert alone.at.compute != by_name.compute
    assert alone.pool != places(vc).vm_place("a").pool


def test_a_host_that_was_taken_out_and_put_in_again_is_found(vc: VcSim) -> None:
    """It is another object then, of the same name."""
    known = places(vc)
    before = known.host("a")
    kept = known._inventories[before.session]
    rows = [row for row in kept._rows.values() if row.ref != before.host]
    gone = vim.HostSystem("host-gone", before.host._stub)
    known._inventories[before.session] = Inventory([*rows, Row(gone, kept._rows[before.host].values)])
    assert known.host("a").host == gone
    place, row = known.look("a", ("name",))
    assert (place.host, row["name"]) == (before.host, HOSTS[0])


def test_a_host_that_is_not_there_is_told_with_the_nearest(vc: VcSim) -> None:
    with pytest.raises(LabError) as caught:
        places(vc, inventory="esx1.lab.tst").host("a")
    assert caught.value.kind == "host-unreachable"
    assert HOSTS[0] in caught.value.why
    assert "hosts.a.inventory" in caught.value.todo


def test_a_pool_is_one_of_the_hosts_own_cluster(vc: VcSim) -> None:
    """V7: never one of another cluster."""
    session = somebody(vc)
    assert places(vc, resource_pool="gold").vm_place("a").pool == named(session, vim.ResourcePool, "gold")
    with pytest.raises(LabError) as caught:
        places(vc, inventory="alone.lab.test", datastore="alone", resource_pool="gold").vm_place("a")
    assert caught.value.kind == "create-failed"
    assert "resource pool gold" in caught.value.what


def test_without_a_name_the_datastore_is_the_only_one_that_is_shared(vc: VcSim) -> None:
    with pytest.raises(LabError) as caught:
        places(vc, datastore="").vm_place("a")
    assert "several datastores" in caught.value.what
    assert "/dc1/datastore/shared" in caught.value.why
    assert "/dc1/datastore/second" in caught.value.why
    assert "local1" not in caught.value.why, "host b doesn't have it"
    assert places(vc, inventory="alone.lab.test", datastore="alone").vm_place("a").datastore_name == "alone"
    with pytest.raises(LabError) as caught:
        places(vc, datastore="alone").vm_place("a")
    assert "no datastore alone" in caught.value.what


def test_folders_are_meant_by_name_or_path(vc: VcSim) -> None:
    lab = vsphere_lab(vc)
    for folder in ("labctl", "/dc1/vm/labctl", "vm/labctl"):
        changed = replace(lab, vcenters={"vc": replace(lab.vcenters["vc"], folder=folder)})
        assert of(changed).vm_place("a").folder_path == "/dc1/vm/labctl"
    with pytest.raises(LabError) as caught:
        of(replace(lab, vcenters={"vc": replace(lab.vcenters["vc"], folder="labtcl")})).vm_place("a")
    assert "labctl" in caught.value.why


def test_two_networks_of_one_name_are_refused_with_their_paths(vc: VcSim) -> None:
    """Of two switches, say."""
    lab = vsphere_lab(vc)
    with pytest.raises(LabError) as caught:
        of(lab).network("a", replace(lab.network(), bridge="twice"))
    assert caught.value.kind == "create-failed"
    assert "several networks" in caught.value.what
    assert caught.value.why.count("/twice") == 2
    assert "networks.data.bridge" in caught.value.todo
    identity = caught.value.why.partition("(")[2].partition(")")[0]
    assert of(lab).network("a", replace(lab.network(), bridge=identity)).ref._GetMoId() == identity


def test_a_network_that_is_not_there_is_told_with_the_nearest(vc: VcSim) -> None:
    lab = vsphere_lab(vc)
    with pytest.raises(LabError) as caught:
        of(lab).network("a", replace(lab.network(), bridge="plian"))
    assert "plain" in caught.value.why


def test_a_datacenter_that_is_not_there_is_told(vc: VcSim) -> None:
    lab = vsphere_lab(vc)
    with pytest.raises(LabError) as caught:
        of(replace(lab, vcenters={"vc": replace(lab.vcenters["vc"], datacenter="dc2")})).host("a")
    assert "dc1" in caught.value.why
    assert of(replace(lab, vcenters={"vc": replace(lab.vcenters["vc"], datacenter="dc1")})).host("a")


def test_names_are_plain() -> None:
    row = Row(vim.Folder("group-1"), {"name": "a%2fb 100%25"})
    item = Inventory([row]).item(row.ref)
    assert (plain("a%2fb"), item.name, item.path) == ("a/b", "a/b 100%", "/a/b 100%")


def test_a_part_of_a_path_is_no_other_name() -> None:
    items = [
        Item(ref=path, name=path.rsplit("/", 1)[-1], path=path, row=Row(path, {})) for path in ("/d/x/net", "/d/y/net")
    ]
    assert choose(items, "y/net", what="network", where="It", key="k").ref == "/d/y/net"
    with pytest.raises(LabError):
        choose(items, "/net", what="network", where="It", key="k")
    with pytest.raises(LabError):
        choose(items, "x/ne", what="network", where="It", key="k")


def test_a_session_that_ends_between_two_pages_costs_nothing(vc: VcSim) -> None:
    session: Session = somebody(vc)
    vc.forget_sessions()
    assert Inventory.read(session).path(session.content.rootFolder)
