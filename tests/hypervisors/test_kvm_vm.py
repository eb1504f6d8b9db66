"""Real VMs on real hosts: what is asked for is what QEMU runs, and nothing is left of what ended or failed."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import libvirt
import pytest
from lxml import etree

from labctl.errors import LabError
from labctl.model.lab import Accelerator, ChannelKind, Image, ImageKind
from tests.hypervisors.guests import Guests, guests_of
from workers.channels.base import ChannelError
from workers.hypervisors.base import Vm
from workers.hypervisors.kvm import driver as driver_module
from workers.hypervisors.kvm import vm as vms
from workers.hypervisors.kvm.definition import domain_xml

pytestmark = pytest.mark.lab


@pytest.fixture
def connection(guests: Guests) -> Iterator[libvirt.virConnect]:
    """A connection of the test's own to host `a`, as somebody else would have it."""
    opened = libvirt.open(guests.lab.hosts["a"].uri)
    yield opened
    opened.close()


@pytest.fixture
def foreign(guests: Guests, connection: libvirt.virConnect) -> Iterator[Callable[[str], libvirt.virDomain]]:
    """Makes VMs of somebody else's: no mark, any name. They never boot anything."""
    made: list[libvirt.virDomain] = []

    def make(name: str, metadata: str = "", mac: str = "") -> libvirt.virDomain:
        root = etree.Element("domain", type="qemu")
        etree.SubElement(root, "name").text = name
        if metadata:
            etree.SubElement(root, "metadata").append(etree.fromstring(metadata))
        etree.SubElement(root, "memory", unit="MiB").text = "16"
        etree.SubElement(etree.SubElement(root, "os"), "type", arch="x86_64").text = "hvm"
        if mac:
            adapter = etree.SubElement(etree.SubElement(root, "devices"), "interface", type="user")
            etree.SubElement(adapter, "mac", address=mac)
        made.append(connection.createXML(etree.tostring(root, encoding="unicode"), libvirt.VIR_DOMAIN_START_PAUSED))
        return made[-1]

    yield make
    for domain in made:
        assert domain.isActive(), "somebody else's VM was ended"
        domain.destroy()


@pytest.mark.parametrize(
    ("shape", "device", "backend", "queues"),
    [
        ({"nic_model": "virtio"}, "virtio-net-pci", "qemu", 1),
        ({"nic_model": "virtio", "queues": 2, "vcpus": 2, "vhost": False}, "virtio-net-pci", "qemu", 2),
        ({"nic_model": "virtio", "machine_type": "pc"}, "virtio-net-pci", "qemu", 1),
        ({"nic_model": "e1000"}, "e1000", "qemu", 1),
        ({"nic_model": "e1000", "machine_type": "pc"}, "e1000", "qemu", 1),
        ({"nic_model": "e1000e"}, "e1000e", "qemu", 1),
        ({"nic_model": "rtl8139"}, "rtl8139", "qemu", 1),
        ({"nic_model": "vmxnet3"}, "vmxnet3", "qemu", 1),
    ],
)
def test_what_runs_is_what_was_asked_for(
    guests: Guests, shape: dict[str, object], device: str, backend: str, queues: int
) -> None:
    """L9, L13, M15: in QEMU's own words and arguments, with the machine type recorded."""
    request = guests.request(**shape)  # type: ignore[arg-type]
    vm = guests.create(request=request)
    facts = guests.driver.read_back(vm)
    expected = {
        "host": "a",
        "nic.model": request.shape.nic_model,
        "nic.device": device,
        "nic.mac": request.mac,
        "nic.backend": backend,
        "nic.queues": queues,
        "vcpus": request.shape.vcpus,
        "memory_bytes": request.shape.memory,
    }
    assert {name: facts[name] for name in expected} == expected
    assert request.shape.machine_type in str(facts["machine"])
    arguments = str(facts["qemu_arguments"])
    assert f'"driver":"{device}"' in arguments
    assert request.mac in arguments
    assert f"-accel {facts['accelerator']}" in arguments
    assert vm.name in str(facts["domain_xml"])


def test_the_guest_sees_what_it_was_given(guests: Guests) -> None:
    request = guests.request(mtu=1300)
    vm, channel = guests.boot(request=request)
    assert channel.run(["hostname"], timeout=10).stdout.decode().strip() == vm.name
    assert str(request.address) in channel.run(["ip", "addr"], timeout=10).stdout.decode()
    assert channel.read_file("/sys/class/net/eth0/mtu", timeout=10).strip() == b"1300"


def test_two_vms_created_at_once_find_each_other(guests: Guests) -> None:
    (_, first), (second, _) = (guests.boot() for _ in range(2))
    assert second.address is not None
    assert first.run(["ping", "-c", "1", "-W", "5", str(second.address.ip)], timeout=20).exit_code == 0


def test_a_destroyed_vm_leaves_nothing(guests: Guests, connection: libvirt.virConnect) -> None:
    """L10: and to destroy what is gone is no error."""
    vm = guests.create()
    pid = vms.process_id(guests.lab.hosts["a"], vm.name)
    assert pid is not None
    guests.driver.destroy(vm)
    assert vm.uuid not in Path(f"/proc/{pid}/cmdline").read_text() if Path(f"/proc/{pid}").exists() else True
    assert vm.name not in [domain.name() for domain in connection.listAllDomains()]
    assert guests.driver.locate(vm) is None
    guests.driver.destroy(vm)


def test_a_vm_that_crashed_is_gone_for_everybody(guests: Guests) -> None:
    vm = guests.create()
    pid = vms.process_id(guests.lab.hosts["a"], vm.name)
    assert pid is not None
    os.kill(pid, 9)
    wait_until(lambda: guests.driver.locate(vm) is None)
    with pytest.raises(LabError) as caught:
        guests.driver.read_back(vm)
    assert caught.value.kind == "vm-gone"
    with pytest.raises(ChannelError) as unreachable:
        guests.driver.agent(vm).command('{"execute": "guest-ping"}', timeout=5)
    assert unreachable.value.kind == "channel-unreachable"
    guests.driver.destroy(vm)


def test_a_hung_qemu_is_ended(guests: Guests) -> None:
    vm = guests.create()
    pid = vms.process_id(guests.lab.hosts["a"], vm.name)
    assert pid is not None
    os.kill(pid, 19)
    guests.driver.destroy(vm)
    assert guests.driver.locate(vm) is None


def test_a_taken_name_is_refused_and_its_owner_untouched(
    guests: Guests, foreign: Callable[[str], libvirt.virDomain]
) -> None:
    request = guests.request()
    foreign(request.name)
    with pytest.raises(LabError, match="not touched") as caught:
        guests.create(request=request)
    assert (caught.value.kind, caught.value.host) == ("name-taken", "a")


def test_l12_m17_a_mac_address_that_a_vm_of_somebody_elses_has_is_refused(
    guests: Guests, foreign: Callable[..., libvirt.virDomain]
) -> None:
    request = guests.request()
    domain = foreign("somebody-elses", mac=request.mac.upper())
    with pytest.raises(LabError, match="somebody-elses") as caught:
        guests.create(request=request)
    assert (caught.value.kind, caught.value.host) == ("mac-taken", "a")
    assert domain.isActive()
    assert guests.driver.locate(guests.expect(request, "a")) is None


def test_a_vm_without_our_mark_is_never_ended(guests: Guests, foreign: Callable[[str], libvirt.virDomain]) -> None:
    domain = foreign("labctl-looks-like-ours")
    vm = Vm(name=domain.name(), uuid=domain.UUIDString(), host="a", mac="", address=None)
    with pytest.raises(LabError, match="no mark") as caught:
        guests.driver.destroy(vm)
    assert caught.value.kind == "not-ours"
    assert domain.name() not in [found.name for found in guests.driver.owned("a")]


def test_a_vm_of_another_store_or_lab_is_never_ended(guests: Guests) -> None:
    vm = guests.create()
    renamed = replace(guests.lab, name="other")
    for stranger in (guests.another_driver(store="another"), guests.another_driver(lab=renamed)):
        with pytest.raises(LabError, match="not touched") as caught:
            stranger.destroy(vm)
        assert caught.value.kind == "not-ours"
        stranger.close()
    with pytest.raises(LabError, match="not touched"):
        guests.driver.destroy(replace(vm, name="labctl-another-name"))
    assert guests.driver.locate(vm) == "a"


def test_somebody_elses_vms_are_counted_but_not_listed(
    guests: Guests, foreign: Callable[[str], libvirt.virDomain]
) -> None:
    before = guests.driver.host_facts("a")
    vm = guests.create()
    foreign("nothing-of-ours")
    after = guests.driver.host_facts("a")
    assert after["vms.ours"] == int(str(before["vms.ours"])) + 1
    assert after["vms.foreign"] == int(str(before["vms.foreign"])) + 1
    found = next(owned for owned in guests.driver.owned("a") if owned.uuid == vm.uuid)
    assert (found.name, found.host, found.active) == (vm.name, "a", True)
    assert (found.mark.campaign, found.mark.run, found.mark.attempt, found.mark.role) == (3, 5, 7, "sender")


def test_facts_of_a_host_have_values(guests: Guests) -> None:
    facts = guests.driver.host_facts("b")
    assert all(value not in (None, "") for value in facts.values()), facts
    assert facts["host.uuid"] != guests.driver.host_facts("a")["host.uuid"]
    assert facts["kernel.version"] == os.uname().release


def test_a_model_that_this_qemu_lacks_is_said_to_be_so(guests: Guests) -> None:
    if "igb" in subprocess.run(["qemu-system-x86_64", "-device", "help"], capture_output=True, text=True).stdout:
        pytest.skip("this QEMU has igb")
    with pytest.raises(LabError) as caught:
        guests.create(nic_model="igb")
    assert caught.value.kind == "nic-unsupported"
    assert "igb" in caught.value.why


@pytest.mark.parametrize("model", ["vt-d", "sr-iov"])
def test_a_device_that_the_host_lacks_is_said_to_be_so(guests: Guests, model: str) -> None:
    request = guests.request(nic_model=model, passthrough="0000:3b:02.1")
    with pytest.raises(LabError) as caught:
        guests.create(request=request)
    assert caught.value.kind == "nic-unsupported", caught.value


def test_a_failed_creation_leaves_nothing(guests: Guests, connection: libvirt.virConnect) -> None:
    broken = replace(guests.lab.images["probe"], kernel="/nowhere/kernel")
    request = guests.request(image=broken)
    with pytest.raises(LabError, match="/nowhere/kernel") as caught:
        guests.create(request=request)
    assert caught.value.kind == "create-failed"
    assert request.name not in [domain.name() for domain in connection.listAllDomains()]


def test_a_bridge_that_is_not_there_is_named(guests: Guests) -> None:
    request = guests.request()
    request = replace(request, network=replace(request.network, bridge="br-nowhere"))
    with pytest.raises(LabError, match="br-nowhere") as caught:
        guests.create(request=request)
    assert caught.value.kind == "create-failed"


def test_a_guest_that_never_boots_shows_why_on_its_console(guests: Guests) -> None:
    image = guests.lab.images["probe"]
    broken = replace(image, initrd="", command_line="panic=0")
    vm = guests.create(request=guests.request(image=broken))
    wait_until(lambda: "Kernel panic" in str(guests.driver.read_back(vm)["console_tail"]), seconds=90)


def test_a_paused_vm_costs_nothing_and_goes_on(guests: Guests) -> None:
    vm, channel = guests.boot()
    guests.driver.pause(vm)
    guests.driver.pause(vm)
    assert guests.driver.locate(vm) == "a"
    before = processor_ticks(guests, vm)
    time.sleep(0.5)
    assert processor_ticks(guests, vm) - before <= 2
    guests.driver.unpause(vm)
    guests.driver.unpause(vm)
    assert channel.run(["true"], timeout=20).exit_code == 0


def test_a_disk_image_gets_an_overlay_that_goes_with_its_vm(guests: Guests, tmp_path: Path) -> None:
    base = tmp_path / "base.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", str(base), "64M"], check=True)
    content = base.read_bytes()
    image = Image(name="disk", kind=ImageKind.DISK, disk=str(base))
    lab = replace(guests.lab, images={**guests.lab.images, "disk": image})
    with guests_of(lab) as with_disk:
        vm = with_disk.create(request=with_disk.request(image=image))
        overlay = tmp_path / f"labctl-{vm.uuid}.qcow2"
        information = subprocess.run(["qemu-img", "info", "-U", str(overlay)], capture_output=True, text=True).stdout
        assert f"backing file: {base}" in information
        assert str(overlay) in str(with_disk.driver.read_back(vm)["qemu_arguments"])
        with_disk.driver.destroy(vm)
        assert [path.name for path in tmp_path.iterdir()] == ["base.qcow2"]
        assert base.read_bytes() == content

        request = with_disk.request(image=image, nic_model="igb")
        with pytest.raises(LabError):
            with_disk.create(request=request)
        assert [path.name for path in tmp_path.iterdir()] == ["base.qcow2"]
    remove_pools_of(lab.hosts["a"].uri, tmp_path)


def test_the_accelerator_is_tried_out_where_nothing_says_it(guests: Guests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "PROBE_SECONDS", 10.0)
    hosts = {name: replace(host, accelerator=Accelerator.AUTO) for name, host in guests.lab.hosts.items()}
    known = guests.driver.read_back(guests.create())["accelerator"]
    with guests_of(replace(guests.lab, hosts=hosts, embedded=None)) as remote:
        assert remote.driver.read_back(remote.create())["accelerator"] == known
        assert not [vm for vm in remote.driver.owned("a") if vm.mark.role == "probe"]
        silent = replace(remote.lab.images["probe"], channel=ChannelKind.SSH)
        monkeypatch.setattr(driver_module, "_probed", {})
        if Path("/dev/kvm").exists():
            with pytest.raises(LabError) as caught:
                remote.create(request=remote.request(image=silent))
            assert caught.value.kind == "accelerator-unknown"


def test_a_domain_of_ours_that_somebody_made_persistent_is_removed_whole(
    guests: Guests, connection: libvirt.virConnect
) -> None:
    """L10: destroyed and undefined."""
    request = guests.request()
    vm = guests.expect(request, "a")
    connection.defineXML(domain_xml(request, guests.lab.hosts["a"], Accelerator.TCG)).create()
    guests.another_driver().destroy(vm)
    assert vm.name not in [domain.name() for domain in connection.listAllDomains()]


def test_l10_a_domain_of_ours_that_somebody_saved_is_removed_whole(
    guests: Guests, connection: libvirt.virConnect
) -> None:
    request = guests.request()
    vm = guests.expect(request, "a")
    domain = connection.defineXML(domain_xml(request, guests.lab.hosts["a"], Accelerator.TCG))
    domain.create()
    domain.managedSave()
    guests.another_driver().destroy(vm)
    assert vm.name not in [domain.name() for domain in connection.listAllDomains()]
    guests.another_driver().destroy(vm)


def test_an_agent_that_stops_answering_is_late_not_gone(guests: Guests) -> None:
    """L1: libvirt would wait for its answer for ever."""
    vm, channel = guests.boot()
    script = "(sleep 1; kill -STOP $(pidof qemu-ga)) >/dev/null 2>&1 &"
    assert channel.run(["sh", "-c", script], timeout=20).exit_code == 0
    time.sleep(2)
    with pytest.raises(ChannelError) as caught:
        guests.driver.agent(vm).command('{"execute": "guest-ping"}', timeout=1)
    assert caught.value.kind == "channel-timeout"


def processor_ticks(guests: Guests, vm: Vm) -> int:
    """What the QEMU process has used so far, in ticks of 10 ms."""
    pid = vms.process_id(guests.lab.hosts["a"], vm.name)
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def remove_pools_of(uri: str, directory: Path) -> None:
    opened = libvirt.open(uri)
    for pool in opened.listAllStoragePools():
        if str(directory) in pool.XMLDesc():
            pool.destroy()
    opened.close()


def wait_until(holds: Callable[[], bool], *, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.1)
