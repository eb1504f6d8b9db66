from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path

import pytest

from labctl.errors import Problem, SpecError
from labctl.model.lab import Accelerator, ChannelKind, ImageKind, QuietLimits, SecretRef
from labctl.model.nic import Hypervisor
from labctl.spec.lab import load_lab, parse_lab

CONFIGS = Path(__file__).parents[2] / "configs" / "labs"

FULL = """\
lab: rack
site: attic
hosts:
  a:
    hypervisor: kvm
    uri: qemu+ssh://root@a/system
    machine: left
    address: 192.0.2.1/24
    migration_address: 198.51.100.1
    ssh: {address: a.lan, user: root, key: "file:keys/id", known_hosts: known_hosts, port: 2222}
    accelerator: kvm
    devices: ["0000:3b:00.0"]
    virtual_functions: ["0000:3b:10.1"]
    facts: {driver: 1.10, teaming: off}
  b:
    hypervisor: kvm
    uri: qemu+ssh://root@b/system
    address: 192.0.2.2/24
    migration_address: 198.51.100.2
    ssh: {address: b.lan, user: root, key: "env:B_KEY", known_hosts: ~/.ssh/known_hosts}
machines:
  box: {address: 192.0.2.9/24, ssh: {address: box.lan, user: me, key: "keyring:ssh/me", known_hosts: /k}}
networks:
  data: {bridge: br0, mtu: 9000, guest_range: [192.0.2.100, 192.0.2.199]}
images:
  probe: {kind: kernel, kernel: /k, initrd: /i, command_line: quiet, drivers: [virtio, e1000]}
  debian: {kind: disk, disk: /d.qcow2, channel: ssh, ssh_user: me, ssh_key: "file:~/.ssh/id"}
migration: {pairs: [[a, b]]}
limits: {vms_per_host: 4}
quiet: {cpu: 20%, load: 0.5, network: 50M, other_vms: 0}
"""


def mistakes(text: str) -> tuple[Problem, ...]:
    with pytest.raises(SpecError) as caught:
        parse_lab(text, file="l.yaml")
    return caught.value.problems


def edited(old: str, new: str) -> str:
    assert FULL.count(old) == 1
    return FULL.replace(old, new)


def test_everything_that_a_lab_file_can_say() -> None:
    lab = parse_lab(FULL, base=Path("/etc/labs"))
    assert (lab.name, lab.site, list(lab.hosts), lab.test_network) == ("rack", "attic", ["a", "b"], "data")
    a = lab.hosts["a"]
    assert (a.hypervisor, a.machine, a.accelerator) == (Hypervisor.KVM, "left", Accelerator.KVM)
    assert (a.address, a.migration_address) == (IPv4Interface("192.0.2.1/24"), IPv4Address("198.51.100.1"))
    assert (a.devices, a.virtual_functions) == (("0000:3b:00.0",), ("0000:3b:10.1",))
    assert a.facts == {"driver": "1.10", "teaming": "off"}
    assert a.ssh is not None
    assert (a.ssh.key, a.ssh.known_hosts, a.ssh.port) == (
        SecretRef(scheme="file", locator="/etc/labs/keys/id"),
        "/etc/labs/known_hosts",
        2222,
    )
    b = lab.hosts["b"]
    assert b.machine == "b"
    assert b.ssh is not None
    assert (b.ssh.key, b.ssh.known_hosts) == (SecretRef(scheme="env", locator="B_KEY"), "~/.ssh/known_hosts")
    assert lab.machines["box"].ssh.key == SecretRef(scheme="keyring", locator="ssh/me")
    assert lab.network().guest_range == (IPv4Address("192.0.2.100"), IPv4Address("192.0.2.199"))
    probe, debian = lab.images["probe"], lab.images["debian"]
    assert (probe.kind, probe.channel, probe.drivers) == (
        ImageKind.KERNEL,
        ChannelKind.QEMU_AGENT,
        frozenset({"virtio", "e1000"}),
    )
    assert (debian.kind, debian.channel, debian.ssh_key) == (
        ImageKind.DISK,
        ChannelKind.SSH,
        SecretRef(scheme="file", locator="~/.ssh/id"),
    )
    assert lab.migration_pairs == {("a", "b"), ("b", "a")}
    assert lab.limits.vms_per_host == 4
    assert lab.quiet == QuietLimits(cpu=0.2, load=0.5, network=50_000_000, other_vms=0)


def test_quiet_limits_that_are_not_named_are_not_looked_at() -> None:
    assert parse_lab(edited(", load: 0.5, network: 50M, other_vms: 0", "")).quiet == QuietLimits(cpu=0.2)
    assert parse_lab("lab: x\nembedded: {hosts: [a]}\nquiet: {load: 1}\n").quiet == QuietLimits(load=1.0)
    assert parse_lab("lab: x\nembedded: {hosts: [a]}\n").quiet is None


def test_limits_of_what_nobody_can_see_are_refused() -> None:
    line = '    ssh: {address: b.lan, user: root, key: "env:B_KEY", known_hosts: ~/.ssh/known_hosts}\n'
    found = mistakes(edited(line, ""))
    assert [problem.key for problem in found] == ["quiet.load", "quiet.network"]
    assert all("host b" in problem.message for problem in found)
    without = edited(line, "").replace(", load: 0.5, network: 50M", "")
    assert parse_lab(without).quiet == QuietLimits(cpu=0.2, other_vms=0)


def test_migration_one_way_and_all() -> None:
    one_way = parse_lab(edited("{pairs: [[a, b]]}", "{pairs: [[a, b]], one_way: on}"))
    assert one_way.migration_pairs == {("a", "b")}
    everywhere = parse_lab(edited("{pairs: [[a, b]]}", "all"))
    assert everywhere.migration_pairs == {("a", "b"), ("b", "a")}


@pytest.mark.parametrize(
    ("old", "new", "key", "value", "near"),
    [
        ("kvm\n    uri: qemu+ssh://root@a", "¦kvn\n    uri: qemu+ssh://root@a", "hosts.a.hypervisor", "kvn", "kvm"),
        ("    accelerator: kvm", "    ¦acelerator: kvm", "hosts.a.acelerator", "", "accelerator"),
        ("address: 192.0.2.1/24", "address: ¦192.0.2.1", "hosts.a.address", "192.0.2.1", ""),
        ("address: 192.0.2.1/24", "address: ¦192.0.2.1/240", "hosts.a.address", "192.0.2.1/240", ""),
        ("address: 192.0.2.2/24", "address: ¦192.0.2.1/24", "hosts.b.address", "192.0.2.1/24", ""),
        ("address: 192.0.2.1/24", "address: ¦192.0.3.1/24", "hosts.a.address", "192.0.3.1/24", ""),
        ("address: 192.0.2.1/24", "address: ¦192.0.2.101/24", "hosts.a.address", "192.0.2.101/24", ""),
        ("port: 2222", "port: ¦70000", "hosts.a.ssh.port", "70000", ""),
        ("port: 2222", "port: ¦ssh", "hosts.a.ssh.port", "ssh", ""),
        ('["0000:3b:00.0"]', '[¦"3b:00.0"]', "hosts.a.devices[0]", "3b:00.0", ""),
        ("{driver: 1.10, teaming: off}", "{driver: ¦[1.10]}", "hosts.a.facts.driver", "[1.10]", ""),
        ("  box: {", "  ¦b: {", "machines.b", "", ""),
        ("  box: {", "  ¦own-host: {", "machines.own-host", "", ""),
        ("[192.0.2.100, 192.0.2.199]", "¦[192.0.2.100]", "networks.data.guest_range", "[192.0.2.100]", ""),
        ("192.0.2.199]", "192.0.2.20]", "networks.data.guest_range", "[192.0.2.100, 192.0.2.20]", ""),
        ("[192.0.2.100, 192.0.2.199]", "[192.0.2.100, ¦host]", "networks.data.guest_range[1]", "host", ""),
        ("mtu: 9000", "mtu: ¦90000", "networks.data.mtu", "90000", ""),
        ("kind: kernel, kernel: /k", "kind: ¦kernal, kernel: /k", "images.probe.kind", "kernal", "kernel"),
        ("  probe: {kind: kernel, kernel: /k,", "  ¦probe: {kind: kernel,", "images.probe", "", ""),
        ("disk: /d.qcow2,", "disk: /d.qcow2, ¦kernel: /k,", "images.debian.kernel", "", ""),
        (', ssh_user: me, ssh_key: "file:~/.ssh/id"}', "}", "images.debian", "", ""),
        ("{pairs: [[a, b]]}", "{pairs: [[a, ¦bb]]}", "migration.pairs[0][1]", "bb", "b"),
        ("{pairs: [[a, b]]}", "{pairs: [¦[a, a]]}", "migration.pairs[0]", "[a, a]", ""),
        ("{pairs: [[a, b]]}", "{pairs: [¦[a]]}", "migration.pairs[0]", "[a]", ""),
        ("{pairs: [[a, b]]}", "¦some", "migration", "some", ""),
        ("    migration_address: 198.51.100.2\n", "", "hosts.b", "", ""),
        ("limits: {vms_per_host: 4}", "test_network: ¦dta", "test_network", "dta", "data"),
        ("cpu: 20%", "cpu: ¦20", "quiet.cpu", "20", ""),
        ("cpu: 20%", "¦cup: 20%", "quiet.cup", "", "cpu"),
        ("load: 0.5", "load: ¦0", "quiet.load", "0", ""),
        ("load: 0.5", "load: ¦.nan", "quiet.load", ".nan", ""),
        ("load: 0.5", "load: ¦'0.5'", "quiet.load", "0.5", ""),
        ("network: 50M", "network: ¦50MB", "quiet.network", "50MB", ""),
        ("other_vms: 0", "other_vms: ¦-1", "quiet.other_vms", "-1", ""),
    ],
)  # fmt: skip
def test_one_mistake_is_told_with_its_place(old: str, new: str, key: str, value: str, near: str) -> None:
    """The bar in the new text marks the place that the message must name."""
    marked = edited(old, new)
    found = mistakes(marked.replace("¦", ""))
    (problem,) = [problem for problem in found if problem.key == key]
    assert (problem.key, problem.value, problem.nearest) == (key, value, near)
    if "¦" in marked:
        before = marked[: marked.index("¦")]
        assert (problem.line, problem.column) == (before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
        assert len(found) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('key: "file:keys/id"', "key: hunter2"),
        ('key: "file:keys/id"', "key: [hunter2]"),
        ('key: "file:keys/id"', 'key: "vault:hunter2"'),
        ('key: "file:keys/id"', 'key: "env:hunter2 hunter2"'),
        ("qemu+ssh://root@a/system", "qemu+ssh://root:hunter2@a/system"),
        ("port: 2222", "password: hunter2"),
    ],
)
def test_literal_secrets_are_refused_and_never_shown(old: str, new: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_lab(edited(old, new), file="l.yaml")
    assert "hunter2" not in str(caught.value)
    assert caught.value.problems


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("lab: x\n", "", "no hosts"),
        ("lab: x\nembedded: {hosts: []}\n", "embedded.hosts", "0 entries"),
        ("lab: x\nembedded: {hosts: [a, a]}\n", "embedded", "one name"),
        ("lab: x\nembedded: {hosts: [A]}\n", "embedded", "can't be the name"),
        ("lab: x\nembedded: {hosts: [a]}\nhosts: {}\n", "hosts", "embedded"),
        ("lab: x\nembedded: {hosts: [a], accelerator: kmv}\n", "embedded.accelerator", "not one of"),
        ("lab: x\nembedded: {hosts: [a], subnet: 10.0.0.0}\n", "embedded", "too small"),
        ("lab: x\nembedded: {hosts: [a], subnet: 10.0.0.1/22}\n", "embedded.subnet", "no such address"),
    ],
)
def test_what_is_no_lab(text: str, key: str, words: str) -> None:
    problem = next(problem for problem in mistakes(text) if problem.key == key)
    assert words in problem.message


def test_the_embedded_lab_is_a_whole_lab() -> None:
    lab = parse_lab(
        "lab: local\nembedded:\n  hosts: [a, b]\n  machines: [box]\n  accelerator: tcg\n"
        "  host_facts: {a: {rack: 010}}\n  limits: {vms_per_host: 3}\n"
    )
    assert list(lab.hosts) == ["a", "b"]
    assert list(lab.machines) == ["box"]
    assert lab.embedded is not None
    assert lab.hosts["a"].facts == {"rack": "010"}
    assert lab.hosts["b"].accelerator is Accelerator.TCG
    assert lab.limits.vms_per_host == 3
    assert lab.migration_pairs == {("a", "b"), ("b", "a")}
    assert "probe" in lab.images


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_labs_that_come_along_are_right(path: Path) -> None:
    assert load_lab(path).name == path.stem
