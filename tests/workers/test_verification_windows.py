"""Verification of Windows guests: the adapter, its driver, MTU and offloads, set where they are not as asked and read back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from labctl.errors import LabError
from labctl.model.nic import NIC_MODELS
from labctl.model.order import VmShape
from labctl.model.result import Fact
from tests.simulators.windows import SimulatedAdapter, SimulatedPowerShell, SimulatedWindows
from workers import verification_windows
from workers.asked import Asked
from workers.channels.windows import WindowsChannel
from workers.guard import Guard
from workers.stack.adapters import read_system
from workers.verification import read_machine, verify_vm
from workers.verification_windows import is_model

LSO = {"*LsoV2IPv4": "1", "*LsoV2IPv6": "1"}
CHECKSUM = {"*TCPChecksumOffloadIPv4": "3", "*UDPChecksumOffloadIPv4": "0"}
JUMBO = {"*JumboPacket": "1514"}


@pytest.fixture
def machine(tmp_path: Path) -> SimulatedWindows:
    machine = SimulatedWindows(tmp_path)
    machine.adapters = [
        SimulatedAdapter(name="Ethernet 0", mac="52:54:00:00:00:01", settings=dict(LSO)),
        SimulatedAdapter(
            name="Ethernet ä$(x)",
            settings={**LSO, **CHECKSUM, **JUMBO, "*RSS": "1"},
            choices={"*JumboPacket": ["1514", "4088", "9014"], "*UDPChecksumOffloadIPv4": ["0", "1", "2", "3"]},
        ),
    ]
    machine.chimney = "automatic"
    return machine


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification_windows, "LINK_SECONDS", 0.1)
    monkeypatch.setattr(verification_windows, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr("workers.stack.windows.LOOK_SECONDS", 0.02)


def verify(machine: SimulatedWindows, *, set_up: bool = True, **changes: object) -> dict[str, Fact]:
    values: dict[str, object] = {
        "image": "server", "nic_model": "synthetic", "vcpus": 1, "memory": 2**27, "queues": 1, "machine_type": "q35",
    }  # fmt: skip
    shape = VmShape(**(values | changes))  # type: ignore[arg-type]
    asked = Asked(mac="52:54:00:12:00:10", address="198.18.0.16/24", shape=shape, tool="iperf3")
    return dict(verify_vm(channel(machine), asked, timeout=5, guard=Guard(), set_up=set_up))


def channel(machine: SimulatedWindows) -> WindowsChannel:
    return WindowsChannel(endpoint="vm labctl-x", powershell=SimulatedPowerShell(machine.run), guard=Guard())


def test_what_is_as_asked_is_only_read(machine: SimulatedWindows) -> None:
    facts = verify(machine, offloads={"lso": True, "chimney": True})
    assert "set-adapters" not in machine.scripts
    assert facts["nic.description"] == "Microsoft Hyper-V Network Adapter"
    assert (facts["driver"], facts["driver.version"], facts["driver.date"]) == ("netvsc", "10.0.17763.1", "6-21-2006")
    assert (facts["mtu"], facts["speed"], facts["link"], facts["address"]) == (1500, 10**10, 1, "198.18.0.16/24")
    assert (facts["build"], facts["integration_services"], facts["tool"]) == ("17763.1", "10.0.17763.1", "3.1.3")
    assert (facts["feature.*LsoV2IPv4"], facts["chimney"]) == ("1", "automatic")


def test_offloads_and_mtu_are_set_together_with_one_restart_of_that_adapter(machine: SimulatedWindows) -> None:
    facts = verify(machine, offloads={"lso": False, "checksum": False, "rss": True, "chimney": False}, mtu=4000)
    other, mine = machine.adapters
    assert (other.restarts, other.settings) == (0, LSO)
    assert mine.restarts == 1
    assert mine.settings == {
        "*LsoV2IPv4": "0", "*LsoV2IPv6": "0", "*TCPChecksumOffloadIPv4": "0", "*UDPChecksumOffloadIPv4": "0",
        "*RSS": "1", "*JumboPacket": "4088",
    }  # fmt: skip
    assert (facts["mtu"], machine.chimney) == (4000, "disabled")
    assert machine.scripts.count("set-adapters") == 1


def test_an_offload_that_is_switched_on_gets_the_fullest_value_that_its_driver_takes(machine: SimulatedWindows) -> None:
    machine.adapters[1].settings |= dict.fromkeys(CHECKSUM, "0")
    verify(machine, offloads={"checksum": True})
    assert {key: machine.adapters[1].settings[key] for key in CHECKSUM} == dict.fromkeys(CHECKSUM, "3")


def test_a_smaller_mtu_needs_no_jumbo_frames_and_no_restart(machine: SimulatedWindows) -> None:
    assert verify(machine, mtu=1400)["mtu"] == 1400
    assert machine.adapters[1].restarts == 0


def test_after_a_migration_nothing_is_mended(machine: SimulatedWindows) -> None:
    with pytest.raises(LabError, match=r"offload lso is on .*, though off was asked for"):
        verify(machine, set_up=False, offloads={"lso": False})
    assert "set-adapters" not in machine.scripts


def no_adapter(machine: SimulatedWindows) -> None:
    machine.adapters.pop()


def another_model(machine: SimulatedWindows) -> None:
    machine.adapters[1].pnp = "PCI\\VEN_8086&DEV_10D3&SUBSYS_07D015AD&REV_00\\1"


def fixed(machine: SimulatedWindows) -> None:
    machine.adapters[1].fixed = frozenset(LSO)


def deaf(machine: SimulatedWindows) -> None:
    machine.adapters[1].deaf = frozenset({"lso"})


def without(machine: SimulatedWindows) -> None:
    machine.adapters[1].settings = {}


def no_chimney(machine: SimulatedWindows) -> None:
    machine.chimney = None


def fixed_mtu(machine: SimulatedWindows) -> None:
    machine.adapters[1].fixed = frozenset({"mtu"})


def down(machine: SimulatedWindows) -> None:
    machine.adapters[1].up = False


def elsewhere(machine: SimulatedWindows) -> None:
    machine.adapters[1].addresses = ["169.254.3.4/16"]


def no_tool(machine: SimulatedWindows) -> None:
    machine.tool = None


LSO_OFF: dict[str, object] = {"offloads": {"lso": False}}


@pytest.mark.parametrize(
    ("spoil", "asked", "kind", "said"),
    [
        (no_adapter, {}, "nic-missing", "no network adapter with address 52:54:00:12:00:10"),
        (another_model, {}, "nic-mismatch", "DEV_10D3"),
        (fixed, LSO_OFF, "offload-mismatch", "access is denied"),
        (deaf, LSO_OFF, "offload-mismatch", "is on (*LsoV2IPv4=0"),
        (without, LSO_OFF, "offload-mismatch", "is absent"),
        (
            no_chimney,
            {"offloads": {"chimney": True}},
            "offload-mismatch",
            "Windows Server 2019 Standard (build 17763.1)",
        ),
        (fixed_mtu, {"mtu": 9000}, "mtu-mismatch", "MTU is 1500, though 9000"),
        (down, {}, "link-down", "did not come up"),
        (elsewhere, {}, "address-missing", "169.254.3.4/16"),
        (no_tool, {}, "tool-missing", "iperf3 is not there"),
    ],
)
def test_a_mismatch_is_the_same_error_as_in_a_linux_guest(
    machine: SimulatedWindows,
    spoil: Callable[[SimulatedWindows], None],
    asked: dict[str, object],
    kind: str,
    said: str,
) -> None:
    """L9, H10: what Windows and the driver really do is compared, whatever was set."""
    spoil(machine)
    with pytest.raises(LabError) as told:
        verify(machine, **asked)
    assert told.value.kind == kind
    assert said in str(told.value)


@pytest.mark.parametrize(
    ("model", "pnp", "name", "fits"),
    [
        (
            "e1000",
            "PCI\\VEN_8086&DEV_100F&SUBSYS_075015AD&REV_01\\4&1",
            "Intel(R) PRO/1000 MT Network Connection",
            True,
        ),
        (
            "e1000e",
            "PCI\\VEN_8086&DEV_100F&SUBSYS_075015AD&REV_01\\4&1",
            "Intel(R) PRO/1000 MT Network Connection",
            False,
        ),
        ("vmxnet3", "PCI\\VEN_15AD&DEV_07B0&SUBSYS_07B015AD&REV_01\\F", "vmxnet3 Ethernet Adapter", True),
        ("vmxnet3", "", "vmxnet3 Ethernet Adapter #2", True),
        ("vmxnet3", "", "Intel(R) PRO/1000 MT Network Connection", False),
        (
            "synthetic",
            "VMBUS\\{F8615163-df3e-46c5-913f-f2d2f965ed0e}\\5&1",
            "Microsoft Hyper-V Network Adapter #3",
            True,
        ),
        ("legacy", "VMBUS\\{f8615163-df3e-46c5-913f-f2d2f965ed0e}\\5&1", "Microsoft Hyper-V Network Adapter", False),
        (
            "legacy",
            "PCI\\VEN_1011&DEV_0009&SUBSYS_21140A00&REV_20\\3",
            "Intel 21140-Based PCI Fast Ethernet Adapter",
            True,
        ),
        ("vt-d", "PCI\\VEN_8086&DEV_1572\\3", "Intel(R) Ethernet Converged Network Adapter X710", True),
    ],
)
def test_adapters_are_known_by_their_plug_and_play_ids(
    machine: SimulatedWindows, model: str, pnp: str, name: str, fits: bool
) -> None:
    adapter = machine.adapters[1]
    adapter.pnp, adapter.description = pnp, name
    (found,) = read_system(SimulatedPowerShell(machine.run), mac=adapter.mac).adapters
    assert is_model(NIC_MODELS[model], found) is fits


def test_a_host_as_an_endpoint_tells_its_facts(machine: SimulatedWindows) -> None:
    facts = read_machine(channel(machine), tool="iperf3", timeout=5)
    assert (facts["build"], facts["power_plan"], facts["tool"]) == ("17763.1", "High performance", "3.1.3")
    machine.tool = None
    with pytest.raises(LabError, match="iperf3 is not there"):
        read_machine(channel(machine), tool="iperf3", timeout=5)
