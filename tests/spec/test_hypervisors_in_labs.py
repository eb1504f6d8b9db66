from __future__ import annotations

from pathlib import Path

import pytest

from labctl.errors import Problem, SpecError
from labctl.model.lab import (
    ChannelKind,
    Cloning,
    Customisation,
    GuestSystem,
    ImageKind,
    Lab,
    Login,
    MigrationAuth,
    SecretRef,
    VCenter,
    WinrmTransport,
)
from labctl.model.nic import Hypervisor
from labctl.spec.documents import from_json, to_json
from labctl.spec.lab import parse_lab

THUMBPRINT = "0F:9A:" + ":".join(["0b"] * 30)

VSPHERE = f"""\
lab: rack
vcenters:
  vc:
    address: vc.example.com:8443
    user: labctl@vsphere.local
    password: env:VC
    thumbprint: "{THUMBPRINT}"
    datacenter: /Dublin
    folder: labctl
    clones_at_once: 4
    relocations_at_once: 3
    pin: yes
  other: {{address: 192.0.2.250, user: root, password: "file:esx", ca_file: ca.pem}}
hosts:
  a:
    hypervisor: vsphere
    vcenter: vc
    inventory: a.example.com
    resource_pool: lab
    datastore: shared
    devices: ["0000:3b:00.0"]
    virtual_functions: ["0000:3b:10.0"]
  b: {{hypervisor: vsphere, vcenter: vc}}
  c: {{hypervisor: vsphere, vcenter: other}}
networks: {{data: {{bridge: VM Network, guest_range: [192.0.2.100, 192.0.2.199]}}}}
images:
  probe: {{kind: template, template: debian, login: {{user: root, password: "env:GUEST"}}}}
  live:
    kind: iso
    iso: "[images] live.iso"
    guest_id: debian12_64Guest
    channel: ssh
    ssh_key: file:key
    known_hosts: hosts
  windows:
    kind: template
    template: folder/w2012r2
    system: windows
    channel: winrm
    login: {{user: me, password: "env:GUEST"}}
    winrm: {{transport: basic, ca_file: guests.pem}}
    clone: full
    customisation: guestinfo
migration: {{pairs: [[a, b]]}}
"""

HYPERV = r"""
lab: rack
hosts:
  a:
    hypervisor: hyperv
    winrm: {url: "https://a.example.com", user: 'AD\labctl', password: "env:HV", transport: credssp, ca_file: ca.pem}
    storage: D:\labctl
    migration_auth: credssp
    address: 192.0.2.1/24
    devices: ["PCIROOT(0)#PCI(0300)#PCI(0000)"]
  b: {hypervisor: hyperv, winrm: {url: "http://b:80/x", user: u, password: "env:HV"}, storage: '\\server\share\x\'}
networks: {data: {bridge: data, addressing: dhcp, vlan: 12}}
images:
  probe: {kind: disk, disk: 'D:\images\probe.vhdx', ssh_key: "file:key", known_hosts: hosts}
  windows:
    kind: disk
    disk: 'D:\images\w.VHD'
    system: windows
    generation: 1
    login: {user: me, password: "env:GUEST"}
  live: {kind: iso, iso: 'D:\images\live.iso', ssh_key: "file:key", known_hosts: hosts}
migration: all
"""


def mistakes(text: str) -> tuple[Problem, ...]:
    with pytest.raises(SpecError) as caught:
        parse_lab(text, file="l.yaml")
    return caught.value.problems


def edited(full: str, old: str, new: str) -> str:
    assert full.count(old) == 1, old
    return full.replace(old, new)


def test_everything_that_a_vsphere_lab_can_say() -> None:
    lab = parse_lab(VSPHERE, base=Path("/etc/labs"))
    assert lab.vcenters["vc"] == VCenter(
        name="vc",
        address="vc.example.com:8443",
        login=Login(user="labctl@vsphere.local", password=SecretRef(scheme="env", locator="VC")),
        thumbprint=THUMBPRINT.replace(":", "").lower(),
        datacenter="/Dublin",
        folder="labctl",
        clones_at_once=4,
        relocations_at_once=3,
        pin=True,
    )
    other = lab.vcenters["other"]
    assert (other.ca_file, other.thumbprint) == ("/etc/labs/ca.pem", "")
    assert other.login.password == SecretRef(scheme="file", locator="/etc/labs/esx")
    assert (other.clones_at_once, other.relocations_at_once, other.pin) == (2, 1, False)
    a = lab.hosts["a"]
    assert (a.vcenter, a.inventory, a.resource_pool, a.datastore) == ("vc", "a.example.com", "lab", "shared")
    assert (a.uri, a.devices, a.virtual_functions) == ("", ("0000:3b:00.0",), ("0000:3b:10.0",))
    assert (lab.hosts["b"].inventory, lab.hosts["b"].datastore) == ("", "")
    probe, live, windows = lab.images["probe"], lab.images["live"], lab.images["windows"]
    assert (probe.template, probe.channel, probe.clone) == ("debian", ChannelKind.VMTOOLS, Cloning.LINKED)
    assert probe.login == Login(user="root", password=SecretRef(scheme="env", locator="GUEST"))
    assert (live.kind, live.iso, live.guest_id) == (ImageKind.ISO, "[images] live.iso", "debian12_64Guest")
    assert (live.ssh_key, live.known_hosts) == (
        SecretRef(scheme="file", locator="/etc/labs/key"),
        "/etc/labs/hosts",
    )
    assert (windows.system, windows.channel, windows.clone) == (
        GuestSystem.WINDOWS,
        ChannelKind.WINRM,
        Cloning.FULL,
    )
    assert (windows.winrm_transport, windows.winrm_ca_file, windows.winrm_https) == (
        WinrmTransport.BASIC,
        "/etc/labs/guests.pem",
        True,
    )
    assert [image.customisation for image in (probe, live, windows)] == [
        Customisation.GUEST_OS,
        Customisation.GUESTINFO,
        Customisation.GUESTINFO,
    ]
    assert {hypervisor for image in lab.images.values() for hypervisor in image.hypervisors} == {Hypervisor.VSPHERE}
    assert from_json(Lab, to_json(lab)) == lab


def test_everything_that_a_hyperv_lab_can_say() -> None:
    lab = parse_lab(HYPERV, base=Path("/etc/labs"))
    a, b = lab.hosts["a"], lab.hosts["b"]
    assert a.winrm is not None
    assert (a.winrm.url, a.winrm.login.user) == ("https://a.example.com:5986/wsman", "AD\\labctl")
    assert (a.winrm.transport, a.winrm.ca_file) == (WinrmTransport.CREDSSP, "/etc/labs/ca.pem")
    assert (a.storage, a.migration_auth, a.can_be_endpoint) == ("D:\\labctl", MigrationAuth.CREDSSP, True)
    assert a.devices == ("PCIROOT(0)#PCI(0300)#PCI(0000)",)
    assert b.winrm is not None
    assert (b.winrm.url, b.winrm.transport) == ("http://b:80/x", WinrmTransport.NTLM)
    assert (b.storage, b.migration_auth, b.can_be_endpoint) == (
        "\\\\server\\share\\x",
        MigrationAuth.KERBEROS,
        False,
    )
    assert (lab.network().vlan, lab.network().is_static) == (12, False)
    probe, windows, live = lab.images["probe"], lab.images["windows"], lab.images["live"]
    assert (probe.channel, windows.channel, live.channel) == (
        ChannelKind.SSH,
        ChannelKind.POWERSHELL_DIRECT,
        ChannelKind.SSH,
    )
    assert (probe.generation, windows.generation) == (2, 1)
    assert probe.customisation is Customisation.NONE, "with DHCP"
    assert {hypervisor for image in lab.images.values() for hypervisor in image.hypervisors} == {Hypervisor.HYPERV}
    assert lab.migration_pairs == {("a", "b"), ("b", "a")}
    assert from_json(Lab, to_json(lab)) == lab


def test_migrations_stay_within_one_vcenter() -> None:
    everywhere = parse_lab(edited(VSPHERE, "{pairs: [[a, b]]}", "all"))
    assert everywhere.migration_pairs == {("a", "b"), ("b", "a")}
    (problem,) = mistakes(edited(VSPHERE, "[[a, b]]", "[[a, c]]"))
    assert (problem.key, problem.value) == ("migration.pairs[0]", "[a, c]")
    assert "two vCenters (vc and other)" in problem.message


GUEST_LOGIN = ', login: {user: root, password: "env:GUEST"}}'


@pytest.mark.parametrize(
    ("old", "new", "key", "words"),
    [
        ("vc.example.com:8443", "¦https://vc.example.com/sdk", "vcenters.vc.address", "no host name"),
        ("vc.example.com:8443", "¦vc.example.com:x", "vcenters.vc.address", "no host name"),
        ("192.0.2.250", "¦'vc example'", "vcenters.other.address", "no host name"),
        (THUMBPRINT, "no", "vcenters.vc.thumbprint", "no fingerprint"),
        (f'"{THUMBPRINT}"', '¦"' + ":".join(["0b"] * 20) + '"', "vcenters.vc.thumbprint", "SHA-1"),
        ("ca_file: ca.pem}", f'ca_file: ca.pem, ¦thumbprint: "{THUMBPRINT}"}}', "vcenters.other.thumbprint", "not by both"),
        ("    clones_at_once: 4", "    clones_at_once: ¦0", "vcenters.vc.clones_at_once", "too small"),
        ("    folder: labctl", "    ¦foldr: labctl", "vcenters.vc.foldr", "unknown key"),
        ("vcenter: vc}", "vcenter: ¦cv}", "hosts.b.vcenter", "none of the `vcenters`"),
        ("vcenter: vc}", "¦uri: qemu:///system, vcenter: vc}", "hosts.b.uri", "a host of vsphere is reached by `vcenter`"),
        ("vcenter: vc}", "vcenter: vc, ¦accelerator: kvm}", "hosts.b.accelerator", "has no such thing"),
        ("vcenter: vc}", "vcenter: vc, ¦migration_address: 192.0.2.9}", "hosts.b.migration_address", "vMotion"),
        ("vcenter: vc}", "vcenter: vc, ¦storage: 'D:\\x'}", "hosts.b.storage", "is of hyperv"),
        ("  b: {hypervisor: vsphere, vcenter: vc}", "  ¦b: {hypervisor: vsphere}", "hosts.b", "needs `vcenter`"),
        ('["0000:3b:00.0"]', '[¦"PCIROOT(0)#PCI(0300)"]', "hosts.a.devices[0]", "no name of a PCI device on vsphere"),
        ("199]}", "199], ¦vlan: 12}", "networks.data.vlan", "give a port group"),
        ("  probe: {kind: template, template: debian", "  ¦probe: {kind: template", "images.probe", "needs `template`"),
        ("  probe: {kind: template, template: debian" + GUEST_LOGIN, "  probe: {kind: ¦kernel, kernel: /k, initrd: /i}",
         "images.probe.kind", "takes kvm"),
        ("  probe: {kind: template, template: debian" + GUEST_LOGIN, "  probe: {kind: ¦disk, disk: /d.vhdx, ssh_key: "
         '"env:X", known_hosts: h}', "images.probe.kind", "(/d.vhdx) takes hyperv"),
        (GUEST_LOGIN, "}", "images.probe", "needs `login`"),
        ("    channel: ssh", "    channel: ¦qemu-agent", "images.live.channel", "reaches no guest of vsphere"),
        ("    channel: winrm", "    channel: ¦ssh", "images.windows.channel", "is not for windows"),
        ("    channel: winrm", "    channel: ¦qemu-agent", "images.windows.channel", "reaches no guest of vsphere"),
        ("    channel: ssh\n", "    ¦login: {user: u, password: 'env:X'}\n    channel: ssh\n", "images.live.login", "no use"),
        ("    known_hosts: hosts\n", "", "images.live", "needs `known_hosts`"),
        ("    guest_id: debian12_64Guest\n", "", "images.live", "`guest_id`"),
        ("    guest_id: debian12_64Guest\n", "    guest_id: x\n    ¦clone: full\n", "images.live.clone", "no disk"),
        ("    guest_id: debian12_64Guest\n", "    guest_id: x\n    customisation: ¦guest-os\n", "images.live.customisation",
         "clones of templates only"),
        ("    clone: full\n", "    clone: full\n    ¦generation: 1\n", "images.windows.generation", "is of Hyper-V"),
        ("    clone: full\n", "    clone: full\n    ¦guest_id: x\n", "images.windows.guest_id", "of kind iso"),
        ("customisation: guestinfo", "customisation: ¦none", "images.windows.customisation", "never learn"),
        ("{transport: basic, ca_file: guests.pem}", "{transport: ¦basic, https: no}", "images.windows.winrm.transport",
         "plain HTTP"),
        ("{transport: basic, ca_file: guests.pem}", "{¦ca_file: guests.pem, https: no}", "images.windows.winrm.ca_file",
         "no certificates"),
        ("    ssh_key: file:key\n", "    ssh_key: file:key\n    ¦winrm: {}\n", "images.live.winrm", "no use"),
    ],
)  # fmt: skip
def test_one_mistake_in_a_vsphere_lab_is_told_with_its_place(old: str, new: str, key: str, words: str) -> None:
    _one_mistake(edited(VSPHERE, old, new), key, words)


@pytest.mark.parametrize(
    ("old", "new", "key", "words"),
    [
        ("https://a.example.com", "ftp://a", "hosts.a.winrm.url", "no URL of WinRM"),
        ("https://a.example.com", "https://me@a", "hosts.a.winrm.url", "holds a user"),
        ('{url: "http://b:80/x", user: u, password: "env:HV"}', '{url: "http://b", user: u, password: "env:HV", '
         "transport: ¦basic}", "hosts.b.winrm.transport", "plain HTTP"),
        ('{url: "http://b:80/x", user: u', '{¦ca_file: x, url: "http://b", user: u', "hosts.b.winrm.ca_file",
         "no certificates"),
        (", transport: credssp", "", "hosts.a.migration_auth", "delegated only by the WinRM transport credssp"),
        ("    storage: D:\\labctl", "    storage: ¦labctl", "hosts.a.storage", "no whole path"),
        ("    storage: D:\\labctl\n", "", "hosts.a", "needs `storage`"),
        ("    storage: D:\\labctl", "    storage: D:\\labctl\n    ¦vcenter: vc", "hosts.a.vcenter", "is of vsphere"),
        ("    storage: D:\\labctl", "    storage: D:\\labctl\n    ¦ssh: {address: a, user: u, key: 'env:K', known_hosts: k}",
         "hosts.a.ssh", "reached by `winrm`, as an endpoint too"),
        ("    storage: D:\\labctl", "    storage: D:\\labctl\n    ¦virtual_functions: ['0000:3b:10.0']",
         "hosts.a.virtual_functions", "needs no list"),
        ('["PCIROOT(0)#PCI(0300)#PCI(0000)"]', '[¦"0000:3b:00.0"]', "hosts.a.devices[0]", "on hyperv"),
        ("    generation: 1", "    generation: ¦3", "images.windows.generation", "is not one of"),
        ("    generation: 1", "    channel: ¦vmtools", "images.windows.channel", "reaches no guest of hyperv"),
        ("    generation: 1", "    channel: ¦qemu-agent", "images.windows.channel", "reaches no guest of hyperv"),
        ("vhdx', ssh_key", "vhdx', channel: ¦powershell-direct, ssh_key", "images.probe.channel", "is not for linux"),
        ("vhdx', ssh_key", "vhdx', customisation: ¦guestinfo, ssh_key", "images.probe.customisation", "VMware Tools"),
        ("vlan: 12", "vlan: ¦5000", "networks.data.vlan", "too large"),
        ("migration: all", "migration: all\nquiet: {¦load: 0.5}", "quiet.load", "hyperv knows no load average"),
    ],
)  # fmt: skip
def test_one_mistake_in_a_hyperv_lab_is_told_with_its_place(old: str, new: str, key: str, words: str) -> None:
    _one_mistake(edited(HYPERV, old, new), key, words)


def _one_mistake(marked: str, key: str, words: str) -> None:
    """The bar in the text marks the place that the message must name."""
    (problem,) = mistakes(marked.replace("¦", ""))
    assert problem.key == key
    assert words in problem.message
    if "¦" in marked:
        before = marked[: marked.index("¦")]
        assert (problem.line, problem.column) == (before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)


@pytest.mark.parametrize(
    ("full", "old", "new"),
    [
        (VSPHERE, "password: env:VC", "password: hunter2"),
        (VSPHERE, "vc.example.com:8443", "me:hunter2@vc.example.com"),
        (VSPHERE, 'password: "file:esx"', "password: hunter2"),
        (HYPERV, "https://a.example.com", "https://me:hunter2@a.example.com"),
        (HYPERV, "https://a.example.com", "https://me:hunter2@a.example.com:x"),
    ],
)
def test_passwords_in_a_lab_file_are_refused_and_never_shown(full: str, old: str, new: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_lab(edited(full, old, new), file="l.yaml")
    assert "hunter2" not in str(caught.value)
    assert caught.value.problems


def test_kvm_hosts_have_a_uri_and_nothing_of_the_others() -> None:
    kvm = "lab: x\nhosts: {{a: {{hypervisor: kvm{}}}}}\nnetworks: {{d: {{bridge: b, guest_range: [192.0.2.100, 192.0.2.199]}}}}\n"
    assert parse_lab(kvm.format(', uri: "qemu:///system"')).hosts["a"].uri == "qemu:///system"
    (problem,) = mistakes(kvm.format(""))
    assert problem.message == "a host of kvm needs `uri`"
    (problem,) = mistakes(kvm.format(', uri: "qemu:///system", datastore: x'))
    assert (problem.key, problem.message) == ("hosts.a.datastore", "is of vsphere: a host of kvm has no such thing")


@pytest.mark.parametrize(
    ("image", "key", "words"),
    [
        ("{kind: disk, disk: /d, customisation: guest-os}", "images.i.customisation", "kernel command line"),
        ("{kind: disk, disk: /d, clone: full}", "images.i.clone", "overlay"),
        ("{kind: disk, disk: /d, system: windows}", "images.i.system", "is not for windows"),
        ("{kind: disk, disk: /d, system: windows, channel: qemu-agent}", "images.i.channel", "is not for windows"),
        ("{kind: disk, disk: /d, channel: vmtools}", "images.i.channel", "reaches no guest of kvm"),
        ("{kind: disk, disk: /d, channel: powershell-direct}", "images.i.channel", "reaches no guest of kvm"),
        ("{kind: template, template: t, login: {user: u, password: 'env:P'}}", "images.i.kind", "takes vsphere"),
    ],
)
def test_images_that_no_kvm_host_can_use(image: str, key: str, words: str) -> None:
    (problem,) = mistakes(
        "lab: x\nhosts: {a: {hypervisor: kvm, uri: 'qemu:///system'}}\n"
        f"networks: {{d: {{bridge: b, guest_range: [192.0.2.100, 192.0.2.199]}}}}\nimages: {{i: {image}}}\n"
    )
    assert problem.key == key
    assert words in problem.message
