from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from labctl.spec.lab import parse_lab
from workers.channels.windows import WindowsChannel
from workers.check import check_lab, check_members
from workers.cli.lab import lab as command
from workers.guard import Guard
from workers.hypervisors.base import Lack
from workers.hypervisors.simulated.driver import SimulatedDriver
from workers.machines import Machines

LACKS = (
    Lack(what="User labctl lacks VirtualMachine.Provisioning.Clone on folder vm.", todo="Grant it there."),
    Lack(what="Host b has no port group data."),
)


@pytest.fixture
def lab_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lab of two hosts, of which b lacks things."""

    def lacks(_: SimulatedDriver, host: str) -> tuple[Lack, ...]:
        return LACKS if host == "b" else ()

    monkeypatch.setattr(SimulatedDriver, "lacks", lacks)
    file = tmp_path / "lab.yaml"
    file.write_text("lab: x\nsimulated: {hosts: [a, b], directory: world}\n")
    return file


def check(file: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command, ["check", str(file), *arguments])


def test_everything_that_a_host_lacks_is_told_with_what_to_do(lab_file: Path) -> None:
    said = check(lab_file)
    assert said.exit_code == 3
    lines = [" ".join(line.split()) for line in said.output.splitlines()]
    at = lines.index("b hypervisor something is missing")
    assert lines[at + 1 : at + 4] == [
        f"missing: {LACKS[0].what}",
        "what to do: Grant it there.",
        f"missing: {LACKS[1].what}",
    ]
    assert "a hypervisor ok" in lines
    assert any("=" in line for line in lines[at + 4 :]), "facts are told all the same"


def test_programs_get_the_same(lab_file: Path) -> None:
    said = check(lab_file, "--json")
    assert said.exit_code == 3
    found = {item["name"]: item for item in json.loads(said.output) if item["way"] == "hypervisor"}
    assert found["b"]["lacks"] == [{"what": lack.what, "todo": lack.todo} for lack in LACKS]
    assert (found["a"]["lacks"], found["a"]["problem"]) == ([], "")


def test_a_lab_that_lacks_something_is_not_ready(lab_file: Path, tmp_path: Path) -> None:
    lab = parse_lab(lab_file.read_text(), base=tmp_path)
    (said,) = check_lab(lab)
    assert said == f"b by hypervisor: {LACKS[0].what} {LACKS[1].what}"


def test_hosts_of_hyperv_are_endpoints_by_winrm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HV", "secret")
    lab = parse_lab(
        "lab: x\nhosts:\n  a:\n    hypervisor: hyperv\n    address: 192.0.2.1/24\n    storage: 'D:\\x'\n"
        "    winrm: {url: 'http://127.0.0.1:1/wsman', user: u, password: 'env:HV'}\n"
        "networks: {d: {bridge: d, addressing: dhcp}}\n",
        base=tmp_path,
    )
    machines = Machines(lab, store="tests", guard=Guard())
    channel = machines.channel("a")
    assert isinstance(channel, WindowsChannel)
    assert channel.endpoint == "host a"
    machines.close()
    found = {item.way: item for item in check_members(lab)}
    assert set(found) == {"hypervisor", "winrm"}
    assert found["winrm"].problem, "nobody listens on port 1"
    assert all("secret" not in f"{item.problem}{item.todo}" for item in found.values())
