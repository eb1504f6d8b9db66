"""PowerShell Direct: scripts of a guest go through its host as data, and what goes wrong on the way is told as what it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from labctl.errors import LabError
from labctl.model.lab import ChannelKind, Image, ImageKind, Login, SecretRef
from tests.simulators.windows import SimulatedPowerShell, SimulatedWindows, answered
from tests.simulators.winrm import Context, ScriptFailure
from workers.channels.base import ChannelError
from workers.channels.powershell_direct import Place, PowerShellDirect, powershell_direct_channel
from workers.channels.windows import WindowsChannel
from workers.channels.windows_calls import BEGIN, READ_CLOCK, READ_FILE, WRITE_CHUNK
from workers.guard import Guard
from workers.powershell import envelope
from workers.powershell.base import Json, ScriptError

PASSWORD = "s3cret' \"$(x)` ä"
LOGIN = Login(user="Administrator", password=SecretRef(scheme="env", locator="LABCTL_TEST_GUEST_PASSWORD"))
IMAGE = Image(name="server", kind=ImageKind.DISK, channel=ChannelKind.POWERSHELL_DIRECT, login=LOGIN)
VM = "6b1e3a5c-0000-4000-8000-000000000001"


class SimulatedHost:
    """A Hyper-V host with one VM, which may be on another host by now."""

    def __init__(self, guest: SimulatedWindows, name: str) -> None:
        self._guest = SimulatedPowerShell(guest.run)
        self.vms = {VM}
        self.state = "Running"
        self.logins: list[tuple[str, str]] = []
        self.password = PASSWORD
        self.prints_instead = ""
        self.powershell = SimulatedPowerShell(self._run, where=f"host {name}")
        self.place = Place(host=name, powershell=self.powershell, vm_id=VM)

    def _run(self, name: str, document: Mapping[str, Json], context: Context) -> Json:
        assert name == "direct-call"
        said: Any = document
        if said["vm"] not in self.vms:
            raise ScriptFailure("no-vm", "The host has no VM.")
        if self.state != "Running":
            raise ScriptFailure("not-running", f"The VM is {self.state}.")
        self.logins.append((said["user"], said["password"]))
        if said["password"] != self.password:
            raise ScriptFailure("bad-login", "The credential is invalid.")
        assert said["arguments"] == list(envelope.arguments())
        request = "".join(f"{line}\n" for line in said["request"]).encode()
        printed = self.prints_instead or answered(request, self._guest._script).decode()
        return {"stdout": f"noise\n{printed}", "exit": 0}


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABCTL_TEST_GUEST_PASSWORD", PASSWORD)


@pytest.fixture
def guest(tmp_path: Path) -> SimulatedWindows:
    return SimulatedWindows(tmp_path)


@pytest.fixture
def host(guest: SimulatedWindows) -> SimulatedHost:
    return SimulatedHost(guest, "hv1")


def direct(host: SimulatedHost) -> PowerShellDirect:
    return PowerShellDirect(where="vm labctl-x", login=LOGIN, place=lambda: host.place)


def channel(host: SimulatedHost) -> WindowsChannel:
    return powershell_direct_channel(endpoint="vm labctl-x", image=IMAGE, place=lambda: host.place, guard=Guard())


def test_commands_run_in_the_guest_and_outlive_the_call(host: SimulatedHost) -> None:
    into = channel(host)
    assert into.run(["sh", "-c", "echo 'ä$(x)'; exit 3"], timeout=20).stdout == "ä$(x)\n".encode()
    process = into.start(["sh", "-c", "sleep 0.2; echo done"], lifetime=30)
    assert process.wait(timeout=20).stdout == b"done\n"
    into.close()
    assert host.powershell.closed == 0, "it is the driver's"


def test_files_in_pieces_fit_into_a_request_within_a_request(host: SimulatedHost, guest: SimulatedWindows) -> None:
    """H3: an inner request is base64 twice over."""
    content = bytes(range(256)) * (WRITE_CHUNK // 256) + b"end"
    into = channel(host)
    into.write_file("C:\\file", content, timeout=30)
    assert (guest.root / "file").read_bytes() == content
    assert into.read_file("C:\\file", timeout=30) == content


def test_errors_of_inner_scripts_are_theirs(host: SimulatedHost) -> None:
    with pytest.raises(ScriptError) as told:
        direct(host).call(READ_FILE, {"path": "C:\\no", "offset": 0, "length": 1, "digest": False}, timeout=5)
    assert told.value.kind == "no-file"


def test_a_vm_is_followed_to_the_host_that_it_moved_to(guest: SimulatedWindows) -> None:
    hosts = {name: SimulatedHost(guest, name) for name in ("hv1", "hv2")}
    now = ["hv1"]
    shell = PowerShellDirect(where="vm labctl-x", login=LOGIN, place=lambda: hosts[now[0]].place)
    shell.call(READ_CLOCK, {}, timeout=5)
    now[0] = "hv2"
    shell.call(READ_CLOCK, {}, timeout=5)
    assert [len(each.logins) for each in hosts.values()] == [1, 1]


@pytest.mark.parametrize(
    ("change", "kind"),
    [({"vms": set()}, "unreachable"), ({"state": "Starting"}, "unreachable"), ({"prints_instead": "no"}, "protocol")],
)
def test_what_is_in_the_way_is_told_as_what_it_is(host: SimulatedHost, change: dict[str, Any], kind: str) -> None:
    vars(host).update(change)
    with pytest.raises(LabError) as told:
        direct(host).call(READ_CLOCK, {}, timeout=5)
    assert (told.value.kind, told.value.host) == (kind, "hv1")


def test_a_wrong_password_is_tried_once_and_shows_nowhere(host: SimulatedHost) -> None:
    host.password = "another"
    into = channel(host)
    for _ in range(3):
        with pytest.raises(ChannelError, match="can't be entered") as told:
            into.wait_ready(timeout=5)
        assert told.value.kind == "channel-refused"
    assert len(host.logins) == 1
    told_of = f"{told.value} {told.value.__cause__!r} {into.powershell!r} {vars(into.powershell)}"
    assert "s3cret" not in told_of


def test_scripts_that_change_something_are_never_repeated_on_the_way(host: SimulatedHost) -> None:
    """H2: whether the outer call may be repeated is what the inner script says."""
    asked: list[bool] = []
    call = host.powershell.call

    def noting(script: Any, document: Mapping[str, Json], *, timeout: float) -> Json:
        asked.append(script.writes)
        return call(script, document, timeout=timeout)

    host.powershell.call = noting  # type: ignore[method-assign]
    direct(host).call(READ_CLOCK, {}, timeout=5)
    direct(host).call(BEGIN, {"token": "t", "port": None}, timeout=5)
    assert asked == [False, True]


def test_without_a_login_there_is_no_channel(host: SimulatedHost) -> None:
    image = Image(name="server", kind=ImageKind.DISK)
    with pytest.raises(ChannelError, match="can't be entered") as told:
        powershell_direct_channel(endpoint="vm x", image=image, place=lambda: host.place, guard=Guard())
    assert "images.server" in told.value.todo
