"""The embedded lab for real: up, down, status, and every kind of half-made lab."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from labctl.errors import LabError
from labctl.model.lab import Accelerator, Lab, SshAccess
from labctl.spec.documents import to_json
from labctl.spec.embedded import EmbeddedSpec, expand_embedded
from workers.cli.lab import lab as lab_command
from workers.locallab import accelerator, directory, embedded, namespaces
from workers.locallab.image import ProbeImage
from workers.locallab.topology import namespace_prefix, topology

pytestmark = [pytest.mark.lab, pytest.mark.xdist_group("labs")]

MakeLab = Callable[..., Lab]


def up(lab: Lab) -> list[str]:
    """Bring it up; what was done."""
    said: list[str] = []
    embedded.up(lab, say=said.append)
    return said


def down(lab: Lab) -> None:
    embedded.down(lab, say=lambda _: None)


def root_of(lab: Lab) -> Path:
    assert lab.embedded is not None
    return Path(lab.embedded.directory)


def traces(lab: Lab) -> list[str]:
    """Everything on this machine that has the lab's name, found without the code under test."""
    prefix, root, uplink = namespace_prefix(lab), str(root_of(lab)), topology(lab).uplink.name
    found = [f"netns {name}" for name in output("ip", "netns").split() if name.startswith(prefix)]
    found += [line for line in output("ip", "-o", "link").splitlines() if f"{uplink}@" in line]
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if root in line or prefix in line]
    found += [root] if Path(root).exists() else []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            text = (process / "cmdline").read_bytes() + (process / "mountinfo").read_bytes()
        except OSError:
            continue
        if int(process.name) != os.getpid() and (prefix.encode() in text or root.encode() + b"/" in text):
            found.append(f"process {process.name}: {text[:80]!r}")
    return found


def output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, check=True, text=True).stdout


def pid_of(lab: Lab, member: str, program: str) -> int:
    return int((root_of(lab) / "members" / member / f"{program}.pid").read_text())


def accesses(lab: Lab) -> dict[str, SshAccess]:
    members = {name: host.ssh for name, host in lab.hosts.items()}
    members |= {name: machine.ssh for name, machine in lab.machines.items()}
    return {name: access for name, access in members.items() if access is not None}


def ssh(access: SshAccess, *command: str, **other: str) -> subprocess.CompletedProcess[str]:
    options = {"key": access.key.locator, "known_hosts": access.known_hosts} | other
    return subprocess.run(
        [
            *("ssh", "-F", "none", "-i", options["key"], "-o", f"UserKnownHostsFile={options['known_hosts']}"),
            *("-o", "GlobalKnownHostsFile=/dev/null", "-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes"),
            *("-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none", f"{access.user}@{access.address}", *command),
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def start_vm(lab: Lab, host: str, name: str) -> str:
    """A real guest, started by virsh."""
    image = lab.images["probe"]
    xml = (
        f"<domain type='qemu'><name>{name}</name><memory unit='MiB'>192</memory><os><type machine='pc'>hvm</type>"
        f"<kernel>{image.kernel}</kernel><initrd>{image.initrd}</initrd><cmdline>{image.command_line}</cmdline></os>"
        f"<devices><interface type='bridge'><source bridge='{lab.network().bridge}'/></interface></devices></domain>"
    )
    uri = lab.hosts[host].uri
    subprocess.run(["virsh", "-c", uri, "create", "/dev/stdin"], input=xml, text=True, check=True, capture_output=True)
    return uri


def test_up_and_down_in_a_clean_room_leave_exactly_what_was_there(probe_image: ProbeImage) -> None:
    script = Path(__file__).with_name("clean_room.py")
    room = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc"]
    argv = [*room, "sh", "-c", 'mount -t tmpfs none /run && exec "$@"', "sh", sys.executable, str(script)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])

    assert seen["is_up"]
    assert seen["second_up_did"] == []
    assert seen["again"] == seen["up"]
    assert seen["up"]["processes"].count("libvirtd") == 2
    assert seen["up"]["processes"].count("sshd") == 3
    assert len(seen["up"]["interfaces"]) == len(seen["before"]["interfaces"]) + 1
    added = [line for line in seen["up"]["mounts"] if line not in seen["before"]["mounts"]]
    assert added
    assert all(line.split()[1].startswith("/run/netns") for line in added)
    assert seen["after"] == seen["before"]
    assert seen["finally"] == seen["before"]


def test_every_member_is_reached_by_ssh_with_the_labs_key_only(embedded_lab: Lab, tmp_path: Path) -> None:
    for name, access in accesses(embedded_lab).items():
        done = ssh(access, "hostname")
        assert (done.returncode, done.stdout.strip()) == (0, f"labctl-{embedded_lab.name}-{name}"), done.stderr

    box = embedded_lab.machines["box"].ssh
    output("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other"))
    refused = ssh(box, "true", key=str(tmp_path / "other"))
    assert refused.returncode == 255
    assert "Permission denied (publickey)" in refused.stderr

    host = embedded_lab.hosts["a"].ssh
    assert host is not None
    swapped = Path(box.known_hosts).read_text().replace(box.address, "swapped").replace(host.address, box.address)
    (tmp_path / "known_hosts").write_text(swapped)
    mistaken = ssh(box, "true", known_hosts=str(tmp_path / "known_hosts"))
    assert mistaken.returncode == 255
    assert "Host key verification failed" in mistaken.stderr


def test_members_reach_each_other_on_the_networks_that_are_theirs(embedded_lab: Lab) -> None:
    a, b = embedded_lab.hosts["a"], embedded_lab.hosts["b"]
    box = embedded_lab.machines["box"]
    assert a.ssh is not None
    assert b.address is not None
    for target in (str(b.address.ip), str(box.address.ip), "b", "box", str(b.migration_address)):
        done = ssh(a.ssh, "ping", "-c", "1", "-W", "2", target)
        assert done.returncode == 0, (target, done.stdout, done.stderr)
    assert ssh(box.ssh, "ping", "-c", "1", "-W", "1", str(b.migration_address)).returncode != 0
    own = output("ip", "route", "get", str(b.address.ip))
    assert topology(embedded_lab).uplink.name not in own


def test_status_tells_what_is_there_and_what_is_not(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab("status", hosts=("a",))
    path = tmp_path / "lab.yaml"
    assert lab.embedded is not None
    subnet = lab.embedded.uplink.network.supernet(new_prefix=22)
    path.write_text(f"lab: {lab.name}\nembedded: {{hosts: [a], machines: [box], subnet: {subnet}}}\n")
    runner = CliRunner()

    before = runner.invoke(lab_command, ["status", str(path), "--json"])
    assert before.exit_code == 3
    assert json.loads(before.output)["up"] is False
    assert not root_of(lab).exists()

    assert runner.invoke(lab_command, ["up", str(path)], catch_exceptions=False).exit_code == 0
    assert "was up already" in runner.invoke(lab_command, ["up", str(path)], catch_exceptions=False).output
    start_vm(lab, "a", "labctl-counted")
    whole = runner.invoke(lab_command, ["status", str(path), "--json"])
    assert whole.exit_code == 0
    facts = json.loads(whole.output)
    assert facts["accelerator"] == accelerator.read(lab).value
    assert facts["members"][0] | {"name": "a"} == {
        "name": "a",
        "kind": "host",
        "up": True,
        "namespace": True,
        "sshd": True,
        "libvirtd": True,
        "vms": 1,
    }
    assert facts["members"][1]["libvirtd"] is None
    assert "VMs 1" in runner.invoke(lab_command, ["status", str(path)]).output

    os.kill(pid_of(lab, "a", "libvirtd"), signal.SIGKILL)
    partly = runner.invoke(lab_command, ["status", str(path), "--json"])
    assert partly.exit_code == 3
    assert json.loads(partly.output)["members"][0]["libvirtd"] is False

    assert runner.invoke(lab_command, ["down", str(path)], catch_exceptions=False).exit_code == 0
    assert traces(lab) == []
    assert "nothing of the lab" in runner.invoke(lab_command, ["down", str(path)], catch_exceptions=False).output


def _kill_libvirtd(lab: Lab) -> None:
    os.kill(pid_of(lab, "a", "libvirtd"), signal.SIGKILL)


def _stop_libvirtd(lab: Lab) -> None:
    os.kill(pid_of(lab, "a", "libvirtd"), signal.SIGSTOP)


def _kill_sshd(lab: Lab) -> None:
    os.kill(pid_of(lab, "box", "sshd"), signal.SIGKILL)


def _lose_pid_files(lab: Lab) -> None:
    (root_of(lab) / "members" / "a" / "libvirtd.pid").unlink()
    (root_of(lab) / "members" / "a" / "sshd.pid").unlink()


def _foreign_pid_files(lab: Lab) -> None:
    for member in ("a", "b"):
        (root_of(lab) / "members" / member / "sshd.pid").write_text(f"{os.getpid()}\n")


def _lose_namespace(lab: Lab) -> None:
    output("ip", "netns", "delete", topology(lab).members["b"].name)


def _lose_namespace_name(lab: Lab) -> None:
    name = topology(lab).members["b"].name
    output("ip", "netns", "delete", name)
    (namespaces.FOLDER / name).touch()


def _lose_switch(lab: Lab) -> None:
    output("ip", "netns", "delete", topology(lab).switch.name)


def _lose_uplink(lab: Lab) -> None:
    output("ip", "link", "delete", topology(lab).uplink.name)


def _lose_address(lab: Lab) -> None:
    output("ip", "-n", topology(lab).members["a"].name, "address", "flush", "dev", "migration0")


def _take_bridge_down(lab: Lab) -> None:
    output("ip", "-n", topology(lab).members["a"].name, "link", "set", "labctl0", "down")


def _lose_keys(lab: Lab) -> None:
    (root_of(lab) / "ssh" / "key.pub").unlink()
    (root_of(lab) / "members" / "b" / "ssh" / "host_key").unlink()


def _lose_image(lab: Lab) -> None:
    shutil.rmtree(root_of(lab) / "images")


def _lose_settings(lab: Lab) -> None:
    (root_of(lab) / "members" / "a" / "libvirt" / "etc" / "qemu.conf").write_text('user = "nobody"\n')


def _lose_directory(lab: Lab) -> None:
    shutil.rmtree(root_of(lab))


DAMAGES = (
    _kill_libvirtd,
    _stop_libvirtd,
    _kill_sshd,
    _lose_pid_files,
    _foreign_pid_files,
    _lose_namespace,
    _lose_namespace_name,
    _lose_switch,
    _lose_uplink,
    _lose_address,
    _take_bridge_down,
    _lose_keys,
    _lose_image,
    _lose_settings,
    _lose_directory,
)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
def test_up_makes_a_damaged_lab_whole_and_down_removes_one(damage: Callable[[Lab], None], make_lab: MakeLab) -> None:
    lab = make_lab("damaged")
    up(lab)
    damage(lab)
    assert up(lab) != []
    assert embedded.status(lab).up
    for access in accesses(lab).values():
        assert ssh(access, "true").returncode == 0
    assert lab.hosts["b"].migration_address is not None
    assert lab.hosts["a"].ssh is not None
    assert ssh(lab.hosts["a"].ssh, "ping", "-c", "1", "-W", "2", str(lab.hosts["b"].migration_address)).returncode == 0
    assert up(lab) == []

    damage(lab)
    down(lab)
    assert traces(lab) == []


KILLED_UP = """
import os, signal, sys
from labctl.model.lab import Lab
from labctl.spec.documents import from_json
from workers.locallab import embedded
lab, steps = from_json(Lab, sys.argv[1]), int(sys.argv[2])
def say(line):
    global steps
    steps -= 1
    if steps == 0:
        os.kill(os.getpid(), signal.SIGKILL)
embedded.up(lab, say=say)
"""


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12])
def test_up_killed_after_any_step_is_finished_by_the_next(
    steps: int, make_lab: MakeLab, probe_image: ProbeImage
) -> None:
    lab = make_lab("killed")
    for then in (up, down):
        killed = subprocess.run([sys.executable, "-c", KILLED_UP, to_json(lab), str(steps)], timeout=120, check=False)
        assert killed.returncode == -signal.SIGKILL
        then(lab)
        if then is up:
            assert embedded.status(lab).up
            down(lab)
    assert traces(lab) == []


def test_up_killed_at_any_moment_is_finished_by_the_next(make_lab: MakeLab, probe_image: ProbeImage) -> None:
    lab = make_lab("moments")
    for milliseconds in range(350, 950, 75):
        process = subprocess.Popen([sys.executable, "-c", KILLED_UP, to_json(lab), "0"])
        time.sleep(milliseconds / 1000)
        process.kill()
        process.wait()
        up(lab)
        assert embedded.status(lab).up
        down(lab)
        assert traces(lab) == []


def test_vms_outlive_their_libvirtd_and_end_with_the_lab(make_lab: MakeLab) -> None:
    lab = make_lab("vms")
    up(lab)
    uri = start_vm(lab, "a", "labctl-lasting")
    os.kill(pid_of(lab, "a", "libvirtd"), signal.SIGKILL)
    assert up(lab) == ["a: started libvirtd."]
    assert output("virsh", "-c", uri, "list", "--name").split() == ["labctl-lasting"]
    os.kill(pid_of(lab, "a", "libvirtd"), signal.SIGKILL)
    down(lab)
    assert traces(lab) == []


def test_a_changed_file_makes_the_lab_anew_but_never_under_running_vms(make_lab: MakeLab) -> None:
    lab = make_lab("changed")
    up(lab)
    other = make_lab("changed", hosts=("a", "b", "c"), machines=())
    start_vm(lab, "b", "labctl-in-the-way")
    with pytest.raises(LabError) as refused:
        up(other)
    assert refused.value.kind == "lab-changed"
    assert embedded.status(lab).up

    output("virsh", "-c", lab.hosts["b"].uri, "destroy", "labctl-in-the-way")
    up(other)
    assert embedded.status(other).up
    assert topology(lab).members["box"].name not in output("ip", "netns")


def test_three_hosts_reach_each_other_and_two_labs_stand_side_by_side(make_lab: MakeLab) -> None:
    three, second = make_lab("three", hosts=("a", "b", "c"), machines=()), make_lab("second", hosts=("a",), machines=())
    failures: list[Exception] = []

    def bring_up(lab: Lab) -> None:
        try:
            up(lab)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=bring_up, args=(lab,)) for lab in (three, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert embedded.status(three).up
    assert embedded.status(second).up
    assert len(three.migration_pairs) == 6
    for source, destination in three.migration_pairs:
        access, address = three.hosts[source].ssh, three.hosts[destination].address
        assert access is not None
        assert address is not None
        assert ssh(access, "ping", "-c", "1", "-W", "2", str(address.ip)).returncode == 0
    down(three)
    assert embedded.status(second).up
    assert traces(three) == []


def test_two_ups_at_once_make_one_lab(make_lab: MakeLab, probe_image: ProbeImage) -> None:
    lab = make_lab("twice")
    both = [subprocess.Popen([sys.executable, "-c", KILLED_UP, to_json(lab), "0"]) for _ in range(2)]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    assert embedded.status(lab).up
    assert up(lab) == []


def test_the_mtu_of_the_file_holds_all_the_way(make_lab: MakeLab) -> None:
    lab = make_lab("mtu", mtu=9000)
    up(lab)
    access, address = lab.hosts["a"].ssh, lab.machines["box"].address
    assert access is not None
    done = ssh(access, "ping", "-c", "1", "-W", "2", "-M", "do", "-s", "8972", str(address.ip))
    assert done.returncode == 0, done.stdout


def test_an_address_block_in_use_is_refused(make_lab: MakeLab) -> None:
    lab = make_lab("first", hosts=("a",), machines=())
    up(lab)
    assert lab.embedded is not None
    block = lab.embedded.uplink.network.supernet(new_prefix=22)
    same = expand_embedded(f"{lab.name}-same", "tests", EmbeddedSpec(hosts=("a",), subnet=block))
    try:
        with pytest.raises(LabError) as refused:
            up(same)
        assert refused.value.kind == "address-overlap"
        assert "subnet" in refused.value.todo
    finally:
        down(same)
    assert embedded.status(lab).up


def test_what_is_not_ours_is_left_alone(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab("foreign", hosts=("a",), machines=())
    root_of(lab).mkdir(parents=True)
    (root_of(lab) / "precious").write_text("mine")
    for action in (up, down):
        with pytest.raises(LabError) as refused:
            action(lab)
        assert refused.value.kind == "not-ours"
    assert (root_of(lab) / "precious").read_text() == "mine"
    (root_of(lab) / "precious").unlink()

    name = topology(lab).uplink.name
    output("ip", "link", "add", name, "type", "bridge")
    try:
        for action in (up, down):
            with pytest.raises(LabError) as refused:
                action(lab)
            assert refused.value.kind == "not-ours"
    finally:
        output("ip", "link", "delete", name)


def test_a_lab_that_is_worked_on_is_not_touched(make_lab: MakeLab) -> None:
    lab = make_lab("busy", hosts=("a",), machines=())
    with (
        directory.locked(root_of(lab)),
        pytest.raises(LabError) as refused,
        directory.locked(root_of(lab), timeout=0.2),
    ):
        pass
    assert refused.value.kind == "lab-busy"


def test_the_accelerator_is_one_in_which_a_guest_answered(embedded_lab: Lab) -> None:
    found = accelerator.stored(embedded_lab)
    assert found is not None
    assert found.accelerator in (Accelerator.KVM, Accelerator.TCG)
    assert found.why
    assert accelerator.read(embedded_lab) is found.accelerator


def test_the_probe_guest_answers_under_software_emulation(probe_image: ProbeImage, tmp_path: Path) -> None:
    assert accelerator.boot(probe_image, Accelerator.TCG, scratch=tmp_path, seconds=60) == ""


def test_a_guest_that_hangs_or_never_starts_is_no_proof(
    probe_image: ProbeImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = ("sh", "-c", "exec sleep 60", "sh")
    assert "did not answer within 0.3 s" in accelerator.boot(
        probe_image, Accelerator.TCG, scratch=tmp_path, within=hangs, seconds=0.3
    )
    fails = ("sh", "-c", "echo no such machine; exit 7", "sh")
    assert "exit code 7: no such machine" in accelerator.boot(
        probe_image, Accelerator.TCG, scratch=tmp_path, within=fails, seconds=5
    )
    monkeypatch.setattr(accelerator, "KVM_DEVICE", Path("/dev/no-kvm-here"))
    choice = accelerator.probe(probe_image, scratch=tmp_path)
    assert choice.accelerator is Accelerator.TCG
    assert "/dev/no-kvm-here" in choice.why


def test_a_lab_that_is_down_has_no_accelerator(make_lab: MakeLab) -> None:
    with pytest.raises(LabError) as refused:
        accelerator.read(make_lab("never-up"))
    assert refused.value.kind == "lab-down"
