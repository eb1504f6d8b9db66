"""Which accelerator QEMU can really use here: an answer of a guest is believed, the presence of /dev/kvm is not.

In nested set-ups `/dev/kvm` may open and libvirt may offer `kvm` while a guest hangs in it, so a probe guest is booted.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from labctl.errors import LabError
from labctl.model.lab import Accelerator, Lab
from workers.guard import Deadline
from workers.locallab.directory import write
from workers.locallab.image import ProbeImage
from workers.locallab.system import ENVIRONMENT
from workers.locallab.topology import layout

PROBE_SECONDS = 10.0
"""A guest under KVM answers within two seconds; after this many it is taken to hang."""

KVM_DEVICE = Path("/dev/kvm")


@dataclass(frozen=True, kw_only=True)
class AcceleratorChoice:
    """The accelerator that hosts of `accelerator: auto` use, and why."""

    accelerator: Accelerator
    why: str


def read(lab: Lab) -> Accelerator:
    """The accelerator that `labctl lab up` found for this embedded lab. `LabError` (`lab-down`) when it is not up."""
    choice = stored(lab)
    if choice is None:
        raise LabError(
            f"The embedded lab {lab.name!r} is not up.",
            kind="lab-down",
            why=f"{_file(lab)} is missing.",
            todo="Run `labctl lab up` with its lab file.",
        )
    return choice.accelerator


def stored(lab: Lab) -> AcceleratorChoice | None:
    """What was found when the lab came up; None when that has not been yet."""
    try:
        document = json.loads(_file(lab).read_text())
        return AcceleratorChoice(accelerator=Accelerator(document["accelerator"]), why=document["why"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


def store(lab: Lab, choice: AcceleratorChoice) -> None:
    """Keep it in the lab's directory."""
    write(_file(lab), json.dumps({"accelerator": choice.accelerator.value, "why": choice.why}) + "\n")


def asked(lab: Lab) -> AcceleratorChoice | None:
    """The accelerator that the lab file insists on; None when it leaves the choice to a probe."""
    for host in lab.hosts.values():
        if host.accelerator is not Accelerator.AUTO:
            return AcceleratorChoice(accelerator=host.accelerator, why="The lab file says so.")
    return None


def probe(image: ProbeImage, *, scratch: Path, within: Sequence[str] = ()) -> AcceleratorChoice:
    """Boot the probe guest under KVM and see whether it answers.

    `within` is put before QEMU's command line (the way into a namespace), `scratch` is an existing, empty directory. Never
    raises for what KVM or QEMU do: whatever goes wrong means software emulation, with the reason.
    """
    if not KVM_DEVICE.exists():
        return AcceleratorChoice(accelerator=Accelerator.TCG, why=f"There is no {KVM_DEVICE}.")
    started = time.monotonic()
    wrong = boot(image, Accelerator.KVM, scratch=scratch, within=within, seconds=PROBE_SECONDS)
    if wrong:
        return AcceleratorChoice(accelerator=Accelerator.TCG, why=f"A probe guest under KVM {wrong}")
    took = time.monotonic() - started
    return AcceleratorChoice(accelerator=Accelerator.KVM, why=f"A probe guest answered after {took:.1f} s.")


def boot(
    image: ProbeImage, accelerator: Accelerator, *, scratch: Path, within: Sequence[str] = (), seconds: float
) -> str:
    """Boot the probe guest and end it as soon as its agent answers. What went wrong; empty when it answered."""
    agent, log = scratch / "agent", scratch / "log"
    command = [*within, *_qemu(image, accelerator, agent)]
    with (
        log.open("wb") as said,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=ENVIRONMENT) as qemu,
    ):
        try:
            answered = _agent_answers(agent, qemu, Deadline.after(seconds))
            code = qemu.poll()
        finally:
            qemu.kill()
    if answered:
        return ""
    if code is None:
        return f"did not answer within {seconds:g} s."
    words = " ".join(log.read_text(errors="replace").split())[:300]
    return f"ended with exit code {code}: {words or 'it said nothing.'}"


def _qemu(image: ProbeImage, accelerator: Accelerator, agent: Path) -> list[str]:
    cpu = "host" if accelerator is Accelerator.KVM else "max"
    return [
        *("qemu-system-x86_64", "-accel", accelerator.value, "-cpu", cpu, "-machine", "pc", "-m", "256", "-smp", "1"),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", image.command_line),
        *("-device", "virtio-serial-pci", "-chardev", f"socket,id=agent,path={agent},server=on,wait=off"),
        *("-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"),
    ]


def _agent_answers(agent: Path, qemu: subprocess.Popen[bytes], deadline: Deadline) -> bool:
    """Whether the guest agent answers a ping (qemu-ga-ref(7)) before the deadline; False as soon as QEMU has ended."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(0.2)
        connected, heard = False, b""
        while not deadline.passed and qemu.poll() is None:
            with suppress(OSError):
                if not connected:
                    connection.connect(str(agent))
                    connected = True
                connection.sendall(b'{"execute":"guest-ping"}\n')
                heard += connection.recv(4096)
            if b'"return"' in heard:
                return True
            time.sleep(0.1)
    return False


def _file(lab: Lab) -> Path:
    return Path(layout(lab).directory) / "accelerator.json"
