"""Guest operations of VMware Tools, and what Tools tell of addresses: on a simulated vCenter whose guests are namespaces."""

from __future__ import annotations

import http.server
import os
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyVmomi import vim

from labctl.errors import AttemptCancelled, LabError
from labctl.model.lab import ChannelKind, Image, Login, SecretRef
from tests.certificates import make_certificates
from tests.contracts.endpoints import until
from tests.hypervisors.guests import Guests, an_order, guests_of
from tests.hypervisors.vsphere_guests import lab_of_world
from tests.simulators.vcsim import GuestNet, VcSim, vcsim
from tests.simulators.world import GuestWorld
from workers.channels.base import Channel, ChannelError
from workers.channels.vmtools import VmToolsChannel
from workers.hypervisors.base import Vm
from workers.hypervisors.vsphere import files
from workers.hypervisors.vsphere.connection import Session
from workers.hypervisors.vsphere.files import TransferError

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]


@pytest.fixture(scope="module")
def world() -> Iterator[GuestWorld]:
    with GuestWorld() as made:
        yield made


@pytest.fixture(scope="module")
def running(world: GuestWorld) -> Iterator[VcSim]:
    with vcsim(world=world) as vc:
        yield vc


@pytest.fixture
def vc(running: VcSim) -> Iterator[VcSim]:
    yield running
    running.heal()
    running.honest_tools()
    running.pace()


@pytest.fixture
def guests(vc: VcSim, world: GuestWorld, tmp_path: Path) -> Iterator[Guests]:
    lab = lab_of_world(vc, world)
    password = tmp_path / "password of the guest"
    password.write_text(f"{vc.guest_password}\n")
    login = Login(user=vc.guest_user, password=SecretRef(scheme="file", locator=str(password)))
    image = replace(lab.images["probe"], channel=ChannelKind.VMTOOLS, login=login)
    with guests_of(replace(lab, images={"probe": image})) as made:
        yield made


def image_of(guests: Guests) -> Image:
    return guests.lab.images["probe"]


def leftovers(world: GuestWorld, vm: Vm) -> list[str]:
    """What labctl has left in the guest's /tmp."""
    return sorted(path.name for path in (world.root(vm.name) / "tmp").glob("labctl-*"))


class TestCommands:
    def test_v3_commands_run_in_the_guest_and_leave_nothing(self, guests: Guests, world: GuestWorld) -> None:
        """V3: exit code, both outputs, input and files of any size, by StartProgramInGuest and file transfers."""
        vm, channel = guests.boot()
        assert isinstance(channel, VmToolsChannel)
        result = channel.run(["sh", "-c", "hostname; cat; echo bad >&2; exit 7"], timeout=30, stdin=b"\0in" * 1000)
        assert result.exit_code == 7
        assert result.stdout == vm.name.encode() + b"\n" + b"\0in" * 1000
        assert result.stderr == b"bad\n"
        content = os.urandom(2_000_000)
        channel.write_file("/tmp/a file", content, timeout=30)
        assert channel.read_file("/tmp/a file", timeout=30) == content
        assert leftovers(world, vm) == []

    def test_a_command_costs_vcenter_few_calls(self, guests: Guests, vc: VcSim) -> None:
        """One for each step, whatever objects of the API lie between, and one for each look."""
        _, channel = guests.boot()
        channel.run(["true"], timeout=30)
        before = vc.calls()
        channel.run(["sleep", "0.3"], timeout=30)
        made = {name: count - before.get(name, 0) for name, count in vc.calls().items() if count != before.get(name, 0)}
        looks = made.pop("InitiateFileTransferFromGuest")
        assert made == {
            "MakeDirectoryInGuest": 1,
            "InitiateFileTransferToGuest": 1,
            "StartProgramInGuest": 1,
            "DeleteDirectoryInGuest": 1,
        }
        assert looks < 10

    def test_v3_a_command_goes_on_over_a_vmotion(self, guests: Guests, vc: VcSim) -> None:
        """V3, V6: Tools may be away for a moment, and the result is there afterwards; how long the guest stood still is
        read from the log beside the VM's files."""
        vc.pace(seconds=0.5, stun=0.3)
        vm, channel = guests.boot()
        process = channel.start(["sh", "-c", "sleep 1.5; echo moved"], lifetime=60)
        outcome = guests.driver.migrate(vm, "b", an_order())
        assert outcome.completed, outcome
        assert outcome.downtime_ms is not None, outcome.no_downtime
        assert 300 <= outcome.downtime_ms < 3000
        assert process.wait(timeout=30).stdout == b"moved\n"

    def test_v3_a_command_goes_on_over_a_restart_of_vcenter(self, guests: Guests, vc: VcSim) -> None:
        """V3, V1: nobody is logged in then, and no transfer is known."""
        _, channel = guests.boot()
        before = vc.calls().get("StartProgramInGuest", 0)
        outcomes: list[Any] = []
        thread = threading.Thread(
            target=lambda: outcomes.append(channel.run(["sh", "-c", "sleep 1; echo x"], timeout=60))
        )
        thread.start()
        until(lambda: vc.calls().get("StartProgramInGuest", 0) > before, "a start")
        vc.restart(closed=0.5)
        thread.join(60)
        assert outcomes[0].stdout == b"x\n"

    def test_v3_what_is_cancelled_leaves_nothing(self, guests: Guests, world: GuestWorld) -> None:
        """V3: cleaned up on every path."""
        vm, channel = guests.boot()
        cancel = threading.Timer(0.5, guests.guard.stop, ["the user said so"])
        cancel.start()
        with pytest.raises(AttemptCancelled):
            channel.run(["sleep", "1000"], timeout=600)
        cancel.join()
        channel.close()
        until(lambda: leftovers(world, vm) == [], f"an end of {leftovers(world, vm)}")

    def test_the_clock_of_the_guest_is_known_to_within_a_moment(self, guests: Guests) -> None:
        _, channel = guests.boot()
        offset = channel.clock(timeout=30)
        assert abs(offset.seconds) <= offset.uncertainty + 0.001
        assert offset.uncertainty < 2

    @pytest.mark.parametrize("fault", ["SystemError", "GuestOperationsUnavailable", "InvalidState"])
    def test_v3_faults_of_guests_on_their_way_pass(self, guests: Guests, vc: VcSim, fault: str) -> None:
        """V3: guest operations that are not possible at the moment are tried again."""
        _, channel = guests.boot()
        for method in ("MakeDirectoryInGuest", "InitiateFileTransferToGuest", "InitiateFileTransferFromGuest"):
            vc.fail(method, fault)
        assert channel.run(["echo", "x"], timeout=30).stdout == b"x\n"


class TestReady:
    def test_v3_tools_that_run_are_waited_for_until_they_are_ready(self, guests: Guests, vc: VcSim) -> None:
        """V3: `guestOperationsReady`, not `guestToolsRunning`."""
        vc.tools(state="not-ready")
        vm = guests.create()
        channel = guests.driver.channel(vm, image_of(guests))
        until(lambda: "Tools run, but" in self.not_ready(channel), "the start of Tools")
        honest = threading.Timer(0.5, vc.honest_tools)
        honest.start()
        assert channel.wait_ready(timeout=30) > 0.3
        honest.join()
        assert channel.run(["echo", "x"], timeout=30).stdout == b"x\n"

    def test_v3_tools_not_running_is_an_error_that_says_so(self, guests: Guests, vc: VcSim) -> None:
        """V3: Tools not running."""
        vc.tools(state="not-running")
        vm = guests.create()
        assert "don't run" in self.not_ready(guests.driver.channel(vm, image_of(guests)))

    def test_a_vm_that_is_gone_is_unreachable(self, guests: Guests, vc: VcSim) -> None:
        vm, channel = guests.boot()
        vc.remove(vm.name)
        assert "no longer has the VM" in self.not_ready(channel)

    def not_ready(self, channel: Channel) -> str:
        """Why guest operations are not ready now."""
        with pytest.raises(ChannelError, match="not ready within") as caught:
            channel.wait_ready(timeout=0.1)
        assert caught.value.kind == "channel-unreachable"
        return caught.value.why


class TestRefusals:
    def refused(self, channel: Channel) -> ChannelError:
        with pytest.raises(ChannelError) as caught:
            channel.run(["true"], timeout=10)
        assert caught.value.kind == "channel-refused"
        return caught.value

    def test_a_wrong_password_is_told_and_never_shown(self, guests: Guests, tmp_path: Path) -> None:
        vm, _ = guests.boot()
        wrong = tmp_path / "wrong"
        wrong.write_text("swordfish")
        login = Login(user="root", password=SecretRef(scheme="file", locator=str(wrong)))
        channel = guests.driver.channel(vm, replace(image_of(guests), login=login))
        error = self.refused(channel)
        assert "InvalidGuestLogin" in error.why
        assert str(wrong) in error.todo
        assert "swordfish" not in f"{error} {error!r} {error.__cause__!r} {vars(channel)}"

    def test_a_missing_right_is_named(self, guests: Guests, vc: VcSim) -> None:
        _, channel = guests.boot()
        vc.lack({"VirtualMachine.GuestOperations.Execute": ["*"]})
        try:
            assert "VirtualMachine.GuestOperations.Execute" in self.refused(channel).todo
        finally:
            vc.lack({})

    def test_a_guest_that_allows_no_operations_is_told_where_to_allow_them(self, guests: Guests, vc: VcSim) -> None:
        _, channel = guests.boot()
        vc.fail("MakeDirectoryInGuest", "OperationDisabledByGuest")
        assert "tools.conf" in self.refused(channel).todo


class TestAddress:
    @pytest.fixture
    def dhcp(self, guests: Guests) -> Iterator[Guests]:
        """The same lab with addresses from the world's DHCP."""
        network = replace(guests.lab.network(), addressing="dhcp")
        lab = replace(guests.lab, networks={network.name: network})
        with guests_of(lab) as made:
            yield made

    def create(self, dhcp: Guests) -> Vm:
        return dhcp.create(request=replace(dhcp.request(), address=None))

    def test_v4_the_address_of_the_test_adapter_is_found(self, dhcp: Guests, world: GuestWorld) -> None:
        """V4: as Tools tell it."""
        vm = self.create(dhcp)
        address = dhcp.driver.address(vm, timeout=30)
        assert address in world.network

    def test_v4_it_is_waited_for_past_all_others(self, dhcp: Guests, vc: VcSim, world: GuestWorld) -> None:
        """V4: docker's bridge first, link-local until DHCP answers."""
        docker = GuestNet(addresses=("172.17.0.1/16",), mac="02:42:ac:11:00:01")
        early = (docker, GuestNet(addresses=("fe80::1/64", "169.254.7.8/16")))
        vc.tools(nets=early, address="172.17.0.1")
        vm = self.create(dhcp)
        honest = threading.Timer(0.5, vc.honest_tools)
        honest.start()
        began = time.monotonic()
        assert dhcp.driver.address(vm, timeout=30) in world.network
        assert time.monotonic() - began > 0.3
        honest.join()

    def test_v4_a_guest_without_an_address_is_an_error_that_says_what_was_seen(self, dhcp: Guests, vc: VcSim) -> None:
        """V4: bounded. Guest without an address."""
        vc.tools(nets=(GuestNet(addresses=("169.254.7.8/16", "fe80::1/64")),), address="169.254.7.8")
        vm = self.create(dhcp)
        until(lambda: "169.254.7.8 (link-local" in self.why_none(dhcp, vm), "the start of Tools")
        assert vm.mac in self.why_none(dhcp, vm)
        assert "fe80::1 (no IPv4" in self.why_none(dhcp, vm)

    def test_v4_a_guest_whose_tools_do_not_run_is_said_to_be_so(self, dhcp: Guests, vc: VcSim) -> None:
        """V4: guest without an address."""
        vc.tools(state="not-running")
        assert "guestToolsNotRunning" in self.why_none(dhcp, self.create(dhcp))

    def why_none(self, dhcp: Guests, vm: Vm) -> str:
        """Why a VM has no address now."""
        with pytest.raises(LabError, match=r"no address on the test network within 0\.1 s") as caught:
            dhcp.driver.address(vm, timeout=0.1)
        assert caught.value.kind == "no-guest-address"
        return caught.value.why

    def test_waiting_for_an_address_sees_a_cancel(self, dhcp: Guests, vc: VcSim) -> None:
        vc.tools(nets=())
        vm = self.create(dhcp)
        cancel = threading.Timer(0.3, dhcp.guard.stop, ["enough"])
        cancel.start()
        with pytest.raises(AttemptCancelled):
            dhcp.driver.address(vm, timeout=600)
        cancel.join()


class TestTransfersByHosts:
    """Guest files that vCenter has the ESXi host itself serve, whose certificate is another one."""

    @pytest.fixture
    def host(self, tmp_path: Path) -> Iterator[tuple[str, Path]]:
        """A server of HTTPS that answers every question with its path, and its certificate."""
        make_certificates(tmp_path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"https://localhost:{server.server_address[1]}", tmp_path / "server.pem"
        server.shutdown()
        server.server_close()
        thread.join()

    def fetch(self, vc: VcSim, guests: Guests, url: str) -> bytes:
        session = Session(guests.lab.vcenters["vc"])
        return files.fetch_guest_file(session, vim.VirtualMachine("vm-1"), url, timeout=10)

    def stated(self, monkeypatch: pytest.MonkeyPatch, certificate: bytes) -> None:
        """Have vCenter state this certificate of the VM's host."""

        def properties(_: Any, refs: Any, names: Any) -> list[Any]:
            return [{name: refs[0] if name == "runtime.host" else certificate for name in names}]

        monkeypatch.setattr(files, "properties", properties)

    def test_v14_a_host_is_known_by_the_certificate_that_vcenter_states(
        self, vc: VcSim, guests: Guests, host: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """V14: as PEM or as DER."""
        url, certificate = host
        pem = certificate.read_bytes()
        for form in (pem, ssl.PEM_cert_to_DER_cert(pem.decode())):
            self.stated(monkeypatch, form)
            assert self.fetch(vc, guests, f"{url}/guestFile?id=1&token=x") == b"/guestFile?id=1&token=x"

    def test_v14_another_certificate_is_not_trusted(
        self, vc: VcSim, guests: Guests, host: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """V14: never by nobody."""
        url, _ = host
        for form in (vc.ca_file.with_name("server.pem").read_bytes(), b""):
            self.stated(monkeypatch, form)
            with pytest.raises(LabError) as caught:
                self.fetch(vc, guests, f"{url}/guestFile?token=x")
            assert caught.value.kind == "tls-untrusted"

    def test_what_the_host_refuses_is_an_error_with_its_words(
        self, vc: VcSim, guests: Guests, host: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url, certificate = host
        self.stated(monkeypatch, certificate.read_bytes())
        with pytest.raises(TransferError, match="404 Not Found"):
            self.fetch(vc, guests, f"{url}/missing")

    def test_a_file_that_comes_in_part_is_no_file(
        self, vc: VcSim, guests: Guests, host: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url, certificate = host
        self.stated(monkeypatch, certificate.read_bytes())
        with pytest.raises(TransferError, match="1 bytes came of 1000"):
            self.fetch(vc, guests, f"{url}/cut")

    def test_v3_a_server_that_goes_silent_is_given_up_at_the_deadline(
        self, vc: VcSim, guests: Guests, host: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """V3: bounded, also when a byte comes every now and then."""
        url, certificate = host
        self.stated(monkeypatch, certificate.read_bytes())
        session = Session(guests.lab.vcenters["vc"])
        began = time.monotonic()
        with pytest.raises(TransferError, match=r"time"):
            files.fetch_guest_file(session, vim.VirtualMachine("vm-1"), f"{url}/slow", timeout=0.5)
        assert time.monotonic() - began < 10


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with the path that was asked for; `/missing` is not there, `/slow` comes byte by byte, and
    of `/cut` only one."""

    def do_GET(self) -> None:
        if self.path == "/missing":
            self.send_error(404, "Not Found")
            return
        self.send_response(200)
        bytes_to_come = {"/slow": 1000, "/cut": 1}.get(self.path, 0)
        self.send_header("Content-Length", "1000" if bytes_to_come else str(len(self.path)))
        self.end_headers()
        if not bytes_to_come:
            self.wfile.write(self.path.encode())
            return
        with suppress(OSError):
            for _ in range(bytes_to_come):
                self.wfile.write(b".")
                self.wfile.flush()
                time.sleep(0.05)

    def log_message(self, *_: object) -> None:
        """Nothing."""
