"""The plan of the embedded lab's network, and what `up` asks of the machine. Nothing is started here."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.errors import LabError
from labctl.model.lab import Lab
from labctl.spec.embedded import PROBE_COMMAND_LINE, EmbeddedSpec, expand_embedded
from workers.locallab import embedded, members, system
from workers.locallab.image.build import COMMAND_LINE
from workers.locallab.topology import namespace_prefix, topology

IFNAMSIZ = 16
"""Bytes of an interface's name on Linux with the closing zero (netdevice(7))."""


def lab_of(name: str = "mine", hosts: int = 2, machines: int = 1) -> Lab:
    spec = EmbeddedSpec(
        hosts=tuple(f"host-{n}" for n in range(hosts)), machines=tuple(f"box-{n}" for n in range(machines))
    )
    return expand_embedded(name, "tests", spec)


def test_every_name_of_an_interface_fits_and_every_end_has_its_port_in_the_switch() -> None:
    plan = topology(lab_of("a-name-of-twenty-four-ch", hosts=120, machines=80))
    ports: Counter[str] = Counter({plan.uplink.peer: 1})
    for namespace in plan.members.values():
        peers = {interface.peer for interface in namespace.interfaces if interface.peer}
        assert peers == set(namespace.attachments)
        ports.update(peers)
        for interface in (*namespace.interfaces, *plan.switch.interfaces, plan.uplink):
            assert len(interface.name.encode()) < IFNAMSIZ
            assert len(interface.peer.encode()) < IFNAMSIZ
    assert set(ports.values()) == {1}
    bridges = {bridge.name for bridge in plan.switch.interfaces}
    assert all(set(namespace.attachments.values()) <= bridges for namespace in plan.members.values())


def test_hardware_addresses_are_local_unicast_never_shared_and_the_same_every_time() -> None:
    plan = topology(lab_of(hosts=30, machines=30))
    macs = [interface.mac for space in (plan.switch, *plan.members.values()) for interface in space.interfaces]
    macs.append(plan.uplink.mac)
    assert len(set(macs)) == len(macs)
    assert all(int(mac[:2], 16) & 0b11 == 0b10 for mac in macs)
    assert topology(lab_of(hosts=30, machines=30)) == plan


def test_no_labs_namespaces_can_be_taken_for_anothers() -> None:
    one, other = lab_of("t1"), lab_of("t1-a")
    names = [namespace.name for namespace in topology(other).members.values()]
    assert not any(name.startswith(namespace_prefix(one)) for name in names)


def test_the_command_line_of_the_probe_image_is_the_one_that_labs_name() -> None:
    assert COMMAND_LINE == PROBE_COMMAND_LINE


def test_a_locked_root_of_this_machine_is_not_one_in_the_lab() -> None:
    real = "root:x:0:0:root:/root:/bin/zsh\nsshd:x:101:65534::/run/sshd:/usr/sbin/nologin\n"
    assert members.passwd(real, Path("/lab/home")) == (
        "root:x:0:0:root:/lab/home:/bin/sh\nsshd:x:101:65534::/run/sshd:/usr/sbin/nologin\n"
    )


def test_without_root_it_says_so_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(LabError, match="sudo") as refused:
        embedded.up(lab_of(), say=print)
    assert refused.value.kind == "not-root"
    with pytest.raises(LabError, match="sudo"):
        embedded.down(lab_of(), say=print)
    with pytest.raises(LabError, match="sudo"):
        embedded.status(lab_of())


def test_elsewhere_than_on_linux_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(LabError, match="darwin") as refused:
        embedded.up(lab_of(), say=print)
    assert refused.value.kind == "not-linux"


def test_all_missing_programs_are_named_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(system, "PATH", str(tmp_path))
    with pytest.raises(LabError, match="make setup") as refused:
        system.require_programs()
    assert refused.value.kind == "missing-program"
    assert "libvirtd (package libvirt-daemon)" in str(refused.value)
    assert "sshd (package openssh-server)" in str(refused.value)


def test_a_lab_with_real_hosts_is_neither_brought_up_nor_down() -> None:
    with pytest.raises(LabError) as refused:
        topology(replace(lab_of(), embedded=None))
    assert refused.value.kind == "not-embedded"
