"""The image in QEMU under software emulation, without a lab: agent, network, SSH, tools."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import paramiko
import pytest

from workers.locallab.image import ProbeImage

pytestmark = [pytest.mark.lab, pytest.mark.xdist_group("image")]

DEADLINE = 60.0
DRIVERS = {
    "virtio-net-pci": "virtio_net",
    "e1000": "e1000",
    "e1000e": "e1000e",
    "rtl8139": "8139cp",
    "vmxnet3": "vmxnet3",
    "igb": "igb",
}
ADDRESS, GATEWAY = "10.0.2.77", "10.0.2.2"


class Guest:
    """A guest of a test and its agent, spoken to directly."""

    def __init__(self, process: subprocess.Popen[bytes], path: Path) -> None:
        self.process = process
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(DEADLINE)
        until = time.monotonic() + DEADLINE
        while True:
            try:
                self._socket.connect(str(path))
                break
            except (FileNotFoundError, ConnectionRefusedError):
                assert process.poll() is None, f"QEMU ended with {process.returncode}"
                assert time.monotonic() < until
                time.sleep(0.02)
        self._replies = self._socket.makefile("rb")
        self.ask("guest-sync", id=4711)

    def wait_for_another_agent(self, than: str) -> str:
        """The process id of an agent that was started since; what was sent to the one before is lost."""
        until = time.monotonic() + DEADLINE
        self._socket.settimeout(2)
        for number in range(1000):
            assert time.monotonic() < until
            self._replies = self._socket.makefile("rb")
            with suppress(TimeoutError):
                self._socket.sendall(
                    json.dumps({"execute": "guest-sync", "arguments": {"id": number}}).encode() + b"\n"
                )
                while json.loads(self._replies.readline()) != {"return": number}:
                    pass
                if (found := self.output("pidof qemu-ga")) != than:
                    break
        self._socket.settimeout(DEADLINE)
        return found

    def ask(self, command: str, **arguments: object) -> Any:
        self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        reply = json.loads(self._replies.readline())
        assert "return" in reply, reply
        return reply["return"]

    def shell(self, script: str) -> tuple[int, str]:
        """Exit code and everything that was printed."""
        argument = ["-c", f"{{ {script}\n}} 2>&1"]
        pid = self.ask("guest-exec", path="/bin/sh", arg=argument, **{"capture-output": True})["pid"]
        until = time.monotonic() + DEADLINE
        while not (status := self.ask("guest-exec-status", pid=pid))["exited"]:
            assert time.monotonic() < until, script
            time.sleep(0.05)
        return status.get("exitcode", -1), base64.b64decode(status.get("out-data", "")).decode()

    def output(self, script: str) -> str:
        code, text = self.shell(script)
        assert code == 0, text
        return text.strip()

    def wait_until_ready(self) -> None:
        self.output("while ! test -e /run/ready; do sleep 0.05; done")

    def wait_until_gateway_answers(self) -> None:
        """Some adapters have no link for the first seconds."""
        self.output(f"until ping -c 1 -W 1 {GATEWAY}; do sleep 0.1; done")

    def close(self) -> None:
        self._replies.close()
        self._socket.close()


@contextmanager
def booted(image: ProbeImage, folder: Path, *, words: str = "", **options: Any) -> Iterator[Guest]:
    """A running guest that has answered; killed at the end."""
    process = subprocess.Popen(qemu_command(image, folder / "agent", words, **options), stdin=subprocess.DEVNULL)
    guest = None
    try:
        guest = Guest(process, folder / "agent")
        yield guest
    finally:
        if guest:
            guest.close()
        process.kill()
        process.wait()


def qemu_command(
    image: ProbeImage,
    agent: Path,
    words: str,
    *,
    nic: str | None = "virtio-net-pci",
    machine: str = "q35",
    memory: int = 192,
    vcpus: int = 1,
    forward: str = "",
) -> list[str]:
    command = ["qemu-system-x86_64", "-accel", "tcg", "-M", machine, "-m", str(memory), "-smp", str(vcpus)]
    command += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    command += ["-kernel", str(image.kernel), "-initrd", str(image.initrd)]
    command += ["-append", f"{image.command_line} {words}"]
    command += ["-device", "virtio-serial-pci", "-chardev", f"socket,id=agent,path={agent},server=on,wait=off"]
    command += ["-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"]
    command += ["-netdev", f"user,id=net{forward}", "-qmp", f"unix:{agent.with_name('monitor')},server=on,wait=off"]
    if nic:
        command += ["-device", f"{nic},netdev=net,rombar=0"]
    return command


def qemu_has(device: str) -> bool:
    asked = subprocess.run(["qemu-system-x86_64", "-device", "help"], capture_output=True, text=True, check=True)
    return f'"{device}"' in asked.stdout


@pytest.fixture(scope="module")
def guest(probe_image: ProbeImage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """One guest for all questions that change nothing which matters to others."""
    words = f"labctl.address={ADDRESS}/24 labctl.gateway={GATEWAY} labctl.mtu=1400 labctl.hostname=probe-1"
    with booted(probe_image, tmp_path_factory.mktemp("guest"), words=words) as running:
        running.wait_until_ready()
        yield running


@pytest.mark.parametrize("machine", ["q35", "pc"])
@pytest.mark.parametrize("nic", DRIVERS)
def test_each_nic_model_gets_its_driver_and_only_that(
    probe_image: ProbeImage, tmp_path: Path, nic: str, machine: str
) -> None:
    if not qemu_has(nic):
        pytest.skip(f"this QEMU has no {nic}")
    words = f"labctl.address={ADDRESS}/24"
    with booted(probe_image, tmp_path, nic=nic, machine=machine, words=words) as running:
        running.wait_until_ready()
        assert running.output("basename $(readlink /sys/class/net/eth0/device/driver)") == DRIVERS[nic]
        loaded = set(running.output("cut -d' ' -f1 /proc/modules").split())
        assert loaded & {driver.replace("-", "_") for driver in DRIVERS.values()} == {DRIVERS[nic]}
        assert f"driver: {DRIVERS[nic]}" in running.output("ethtool -i eth0")
        running.wait_until_gateway_answers()


@pytest.mark.parametrize(("vcpus", "memory"), [(1, 128), (4, 256)])
def test_sizes(probe_image: ProbeImage, tmp_path: Path, vcpus: int, memory: int) -> None:
    with booted(probe_image, tmp_path, vcpus=vcpus, memory=memory) as running:
        running.wait_until_ready()
        assert running.output("nproc") == str(vcpus)
        assert running.output("iperf3 --server --daemon && sleep 1 && iperf3 -c 127.0.0.1 -t 1")


def test_without_a_nic_the_agent_answers(probe_image: ProbeImage, tmp_path: Path) -> None:
    with booted(probe_image, tmp_path, nic=None) as running:
        running.wait_until_ready()
        assert running.output("ls /sys/class/net") == "lo"


def test_a_nic_that_is_plugged_in_later_is_set_up(probe_image: ProbeImage, tmp_path: Path) -> None:
    with booted(probe_image, tmp_path, nic=None, machine="pc", words=f"labctl.address={ADDRESS}/24") as running:
        running.wait_until_ready()
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.connect(str(tmp_path / "monitor"))
            plug = {"execute": "device_add", "arguments": {"driver": "e1000", "netdev": "net", "id": "late"}}
            monitor.sendall(json.dumps({"execute": "qmp_capabilities"}).encode() + json.dumps(plug).encode())
            running.output("while ! ip address show eth0 2>&1 | grep -q inet; do sleep 0.1; done")
        running.wait_until_gateway_answers()


def test_the_words_of_the_command_line_are_followed(guest: Guest) -> None:
    assert f"inet {ADDRESS}/24 brd 10.0.2.255" in guest.output("ip address show eth0")
    assert guest.output("cat /sys/class/net/eth0/mtu") == "1400"
    assert f"default via {GATEWAY}" in guest.output("ip route")
    assert guest.output("hostname") == "probe-1"
    assert guest.output("cat /sys/class/net/lo/flags") == "0x9"
    assert guest.shell("dmesg | grep '] labctl: '") == (1, "")
    assert guest.shell("pidof dropbear")[0] == 1


def test_wrong_words_are_said_in_the_kernel_log(probe_image: ProbeImage, tmp_path: Path) -> None:
    words = "labctl.address=300.1.1.1/24 labctl.gateway=nowhere labctl.mtu=9 labctl.ssh_key=%%"
    with booted(probe_image, tmp_path, words=words) as running:
        running.wait_until_ready()
        said = running.output("dmesg | grep '] labctl: '")
        for word in ("labctl.address", "labctl.gateway", "MTU", "labctl.ssh_key"):
            assert word in said


def test_the_agent_is_started_again_when_it_dies(probe_image: ProbeImage, tmp_path: Path) -> None:
    with booted(probe_image, tmp_path) as running:
        first = running.output("pidof qemu-ga")
        running.ask("guest-exec", path="/bin/sh", arg=["-c", f"kill -9 {first}"])
        assert running.wait_for_another_agent(first).isdigit()


def test_orphans_are_reaped(guest: Guest) -> None:
    guest.output("for i in 1 2 3; do setsid sh -c 'sleep 0.2 &' & done; sleep 1")
    assert "Z" not in guest.output("cat /proc/[0-9]*/stat | sed 's/.*) //' | cut -c1")


def test_files_pass_through_the_agent(guest: Guest) -> None:
    handle = guest.ask("guest-file-open", path="/tmp/bytes", mode="w+")
    guest.ask("guest-file-write", handle=handle, **{"buf-b64": base64.b64encode(bytes(range(256))).decode()})
    guest.ask("guest-file-close", handle=handle)
    assert guest.output("wc -c < /tmp/bytes") == "256"


def test_the_userland_that_others_rely_on_is_there(guest: Guest) -> None:
    names = "sh cat sleep kill setsid timeout mkdir rm ls grep printf date stat wc head tail dd base64 sha256sum"
    names += " ip ping netstat ps uname sysctl ethtool iperf3 iperf dropbear"
    missing = guest.output(f"for name in {names}; do command -v $name >/dev/null || echo $name; done")
    assert missing == ""
    assert guest.output("/bin/date +%s.%N").split(".")[1].isdigit()
    assert guest.output("sleep 0.01; echo $HOME; id -un; tty </dev/null || true").split("\n")[:2] == ["/root", "root"]
    assert "iperf 3." in guest.output("iperf3 --version")
    assert "iperf version 2" in guest.output("iperf --version || true")
    for folder in ("/tmp", "/run", "/root", "/dev/shm"):
        guest.output(f"echo x > {folder}/x && rm {folder}/x")


def test_a_transfer_runs_between_guest_and_itself(guest: Guest) -> None:
    guest.output("iperf3 --server --one-off --daemon; sleep 1")
    result = json.loads(guest.output("iperf3 --client 127.0.0.1 --time 1 --json"))
    assert result["end"]["sum_received"]["bytes"] > 0


def test_ssh_answers_with_the_key_and_shows_the_host_key_to_the_agent(probe_image: ProbeImage, tmp_path: Path) -> None:
    key = paramiko.RSAKey.generate(2048)
    line = base64.b64encode(f"{key.get_name()} {key.get_base64()} test".encode()).decode().rstrip("=")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = f"labctl.address={ADDRESS}/24 labctl.ssh_key={line}"
    with booted(probe_image, tmp_path, words=words, forward=f",hostfwd=tcp:127.0.0.1:{port}-{ADDRESS}:22") as running:
        running.wait_until_ready()
        running.output("while ! netstat -ltn | grep -q ':22 '; do sleep 0.1; done")
        public = running.output("grep ^ssh-ed25519 /etc/dropbear/dropbear_ed25519_host_key.pub").split()[1]
        with paramiko.SSHClient() as client:
            client.get_host_keys().add(
                f"[127.0.0.1]:{port}", "ssh-ed25519", paramiko.Ed25519Key(data=base64.b64decode(public))
            )
            client.connect("127.0.0.1", port, "root", pkey=key, timeout=30, allow_agent=False, look_for_keys=False)
            stdin, stdout, _ = client.exec_command("cat; exit 7", timeout=30)
            stdin.write(b"through\n")
            stdin.channel.shutdown_write()
            assert stdout.read() == b"through\n"
            assert stdout.channel.recv_exit_status() == 7


def test_a_guest_that_panics_ends(probe_image: ProbeImage, tmp_path: Path) -> None:
    with booted(probe_image, tmp_path) as running:
        running.ask("guest-exec", path="/bin/sh", arg=["-c", "echo c > /proc/sysrq-trigger"])
        assert running.process.wait(timeout=DEADLINE) == 0
