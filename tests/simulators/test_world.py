"""The guests of simulated VMs are machines of their own as far as channels and verification look."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Interface
from pathlib import Path

import pytest

from labctl.model.lab import SecretRef, SshAccess
from labctl.model.order import VmShape
from tests.simulators.base import Guest
from tests.simulators.world import STANDING_STILL, GuestWorld, processes_in
from workers.asked import Asked
from workers.channels.ssh import SshChannel
from workers.guard import Guard
from workers.locallab import namespaces
from workers.verification import verify_vm

pytestmark = pytest.mark.services

MAC = "00:50:56:01:02:03"


@pytest.fixture(scope="module")
def world() -> Iterator[GuestWorld]:
    with GuestWorld() as world:
        yield world


@pytest.fixture
def guest(world: GuestWorld) -> Iterator[tuple[Guest, SshChannel]]:
    guest = Guest(name="vm-one", mac=MAC, nic_model="vmxnet3", address=None)
    channel = channel_to(world, world.boot(guest), guest.name)
    yield guest, channel
    channel.close()
    world.stop(guest.name)


def channel_to(world: GuestWorld, address: IPv4Interface, name: str) -> SshChannel:
    access = SshAccess(
        address=str(address.ip),
        user="root",
        key=SecretRef(scheme="file", locator=str(world.key)),
        known_hosts=str(world.known_hosts),
    )
    return SshChannel(endpoint=f"vm {name}", access=access, guard=Guard())


def said(channel: SshChannel, *argv: str) -> str:
    return channel.run(argv, timeout=20).require(argv[0]).stdout.decode().strip()


def test_a_guest_is_a_machine_of_its_own(world: GuestWorld, guest: tuple[Guest, SshChannel]) -> None:
    _, channel = guest
    assert said(channel, "hostname") == "vm-one"
    assert said(channel, "cat", "/sys/class/net/eth0/address") == MAC
    assert set(said(channel, "ls", "/sys/class/net").split()) == {"eth0", "lo"}
    assert said(channel, "ls", "/tmp") == "" or str(world.key.parent) not in said(channel, "ls", "/tmp")
    assert len(said(channel, "ps", "-e").splitlines()) < 20
    assert said(channel, "ping", "-c", "1", "-W", "2", str(world.gateway.ip))


@pytest.mark.parametrize(
    "nic_model", ["e1000", "e1000e", "vmxnet3", "vmxnet2", "pcnet32", "synthetic", "legacy", "sr-iov"]
)
def test_verification_finds_the_adapter_that_was_asked_for(world: GuestWorld, nic_model: str) -> None:
    address = world.boot(Guest(name=f"vm-{nic_model}", mac=MAC, nic_model=nic_model, address=None))
    channel = channel_to(world, address, nic_model)
    try:
        shape = VmShape(
            image="linux",
            nic_model=nic_model,
            vcpus=1,
            memory=1 << 30,
            queues=1,
            machine_type="",
            mtu=9000,
            offloads={"tso": False, "gro": True},
        )
        asked = Asked(mac=MAC, address=str(address), shape=shape, tool="iperf3")
        facts = verify_vm(channel, asked, timeout=20, guard=Guard())
    finally:
        channel.close()
        world.stop(f"vm-{nic_model}")
    assert facts["mtu"] == 9000
    assert facts["link"] == 1


def test_guests_talk_to_each_other(world: GuestWorld, guest: tuple[Guest, SshChannel]) -> None:
    _, channel = guest
    other = world.boot(Guest(name="vm-two", mac="00:50:56:01:02:04", nic_model="e1000", address=None))
    try:
        assert said(channel, "ping", "-c", "1", "-W", "2", str(other.ip))
    finally:
        world.stop("vm-two")


def test_a_guest_gets_the_address_that_it_is_given(world: GuestWorld) -> None:
    wanted = IPv4Interface(f"{world.network[17]}/{world.network.prefixlen}")
    assert world.boot(Guest(name="fixed", mac=MAC, nic_model="e1000", address=wanted)) == wanted
    with pytest.raises(ValueError, match="runs already"):
        world.boot(Guest(name="fixed", mac=MAC, nic_model="e1000", address=wanted))
    world.stop("fixed")
    world.stop("fixed")


def test_nothing_runs_in_a_guest_that_is_paused(world: GuestWorld, guest: tuple[Guest, SshChannel]) -> None:
    _, channel = guest
    job = channel.start(["sh", "-c", "while :; do date +%s%N >/tmp/now; sleep 0.01; done"], lifetime=60)
    inside = world.root("vm-one") / "tmp/now"
    while not inside.exists():
        assert not job.finished()
    world.pause("vm-one")
    frozen = processes_in(int(world.enter("vm-one")[2]))
    states = {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in frozen}
    before = inside.read_bytes()
    world.resume("vm-one")
    assert states <= set(STANDING_STILL)
    while inside.read_bytes() in (before, b""):
        pass
    job.kill()


def test_a_stunned_guest_goes_on_afterwards(world: GuestWorld, guest: tuple[Guest, SshChannel]) -> None:
    _, channel = guest
    channel.run(["true"], timeout=20)
    changes = "/sys/class/net/eth0/carrier_changes"
    before = said(channel, "cat", changes)
    world.stun("vm-one", 0.05)
    assert said(channel, "cat", changes) == before


def test_nothing_reaches_a_guest_that_is_stunned(world: GuestWorld, guest: tuple[Guest, SshChannel]) -> None:
    _, channel = guest
    address = said(channel, "ip", "-o", "-4", "addr", "show", "dev", "eth0").split()[3].partition("/")[0]
    port = Path(f"/sys/class/net/{world.bridge}/brif")
    with ThreadPoolExecutor(1) as stunner:
        stunned = stunner.submit(world.stun, "vm-one", 1.0)
        while not any((entry / "state").read_text().strip() == "0" for entry in port.iterdir()):
            assert not stunned.done()
        assert not answers(address, seconds=0.2)
        stunned.result()
        assert answers(address, seconds=10)


def answers(address: str, *, seconds: float) -> bool:
    ping = subprocess.run(["ping", "-c", "1", "-W", str(seconds), address], capture_output=True, timeout=30)
    return ping.returncode == 0


KILLED = """
import os, signal
from tests.simulators.base import Guest
from tests.simulators.world import GuestWorld
world = GuestWorld()
world.boot(Guest(name="left", mac="00:50:56:01:02:05", nic_model="e1000", address=None))
print(world.bridge, world.enter("left")[2], world.key.parent, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_left_of_a_world_whose_process_was_killed() -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=60)
    bridge, pid, directory = done.stdout.split()
    with GuestWorld() as another:
        assert another.bridge != bridge
        assert bridge not in (namespaces.look(None) or {})
        assert not Path(directory).exists()
        while Path(f"/proc/{pid}").exists():
            pass
