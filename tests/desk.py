"""A desk at which a user sits: the command line in processes of its own, with a state directory and files of its own."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.model.lab import Lab, SshAccess
from labctl.model.result import CampaignRecord
from labctl.store import ActiveAttempt, Store, open_store
from workers.locallab import namespaces
from workers.locallab.topology import namespace_prefix, topology

LABCTL = Path(sys.executable).with_name("labctl")

PATIENCE = 240.0
"""Seconds after which something that a test waits for is taken as never coming; machines may be slow."""

SMALL = {
    "repeats": 1,
    "warmups": 0,
    "seed": 1,
    "back_off": 0,
    "timeouts": {"boot": 120, "command": 60, "transfer_grace": 30},
}
"""What most campaigns of these tests have in common: one run, no warm-up, and deadlines that a slow machine keeps."""


def until(what: str, found: Callable[[], Any], *, seconds: float = PATIENCE) -> Any:
    """The first true value that `found` gives; the test fails when there is none in time."""
    deadline = time.monotonic() + seconds
    while True:
        value = found()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain: {what}"
        time.sleep(0.05)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A command that has ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """All of it, for messages and for words that may be in either."""
        return f"exit code {self.code}\n{self.out}\n{self.err}"


class Command:
    """A `labctl` command in progress."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self.process = process
        self._out, self._err = out, err

    @property
    def said(self) -> str:
        """What it has printed so far."""
        return self._out.read_text(errors="replace") + self._err.read_text(errors="replace")

    def wait(self, *, seconds: float = PATIENCE) -> Ended:
        """How it ended."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it still runs after {seconds:.0f} s and said: {self.said}") from None
        return Ended(code=code, out=self._out.read_text(errors="replace"), err=self._err.read_text(errors="replace"))

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End it with no chance to do anything about it."""
        self.process.kill()
        self.process.wait()


class Desk:
    """A state directory, files and commands on a lab. The commands are told the state directory by `LABCTL_STATE`,
    which all that they start inherits: so what a test started is found by it, and nothing else is."""

    def __init__(self, lab: Lab, directory: Path, *, state: Path | None = None) -> None:
        self.lab = lab
        self.directory = directory
        self.state = state or directory / "state"
        self.temporary = directory / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        self.commands: list[Command] = []
        self.store: Store = open_store(self.state)
        self.lab_file = self.file("lab.yaml", self.embedded_lab())

    # Files

    def file(self, name: str, content: object) -> Path:
        """A file with this text, or with these values as YAML (JSON is a part of it)."""
        path = self.directory / name
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
        return path

    def campaign(self, name: str = "campaign.yaml", **keys: object) -> Path:
        """A campaign file: `SMALL` and these keys."""
        return self.file(name, {"campaign": Path(name).stem} | SMALL | keys)

    def embedded_lab(self) -> dict[str, Any]:
        """What the lab file says of the lab of the tests."""
        assert self.lab.embedded is not None
        block = self.lab.embedded.uplink.network.supernet(new_prefix=22)
        members = {"hosts": list(self.lab.hosts), "machines": list(self.lab.machines)}
        return {"lab": self.lab.name, "site": self.lab.site, "embedded": members | {"subnet": str(block)}}

    def written_out_lab(self) -> dict[str, Any]:
        """The same lab as the file of a lab that is not embedded says it, for tests that get something wrong in it."""
        network, image = self.lab.network(), self.lab.images["probe"]
        assert network.guest_range is not None
        hosts = {
            host.name: {
                "hypervisor": "kvm",
                "uri": host.uri,
                "machine": host.machine,
                "address": str(host.address),
                "migration_address": str(host.migration_address),
                "ssh": _ssh(host.ssh),
            }
            for host in self.lab.hosts.values()
        }
        return {
            "lab": self.lab.name,
            "hosts": {name: entry | {"accelerator": "tcg"} for name, entry in hosts.items()},
            "networks": {
                network.name: {
                    "bridge": network.bridge,
                    "guest_range": [str(address) for address in network.guest_range],
                    "prefix_length": network.prefix_length,
                }
            },
            "images": {
                "probe": {
                    "kind": "kernel",
                    "kernel": image.kernel,
                    "initrd": image.initrd,
                    "command_line": image.command_line,
                    "drivers": sorted(image.drivers),
                }
            },
            "migration": "all",
        }

    # Commands

    def start(self, *arguments: str | Path) -> Command:
        """Start a command."""
        number = len(self.commands)
        out, err = self.directory / f"{number}.out", self.directory / f"{number}.err"
        environment = os.environ | {
            "LABCTL_STATE": str(self.state),
            "TMPDIR": str(self.temporary),
            "COLUMNS": "200",
            "PYTHONUNBUFFERED": "1",
        }
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [str(LABCTL), *map(str, arguments)],
                stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment, start_new_session=True,
            )  # fmt: skip
        self.commands.append(Command(process, out, err))
        return self.commands[-1]

    def labctl(self, *arguments: str | Path) -> Ended:
        """Run a command to its end."""
        return self.start(*arguments).wait()

    def run(self, campaign: Path, *, lab: Path | None = None) -> Command:
        """Start `labctl run`."""
        return self.start("run", campaign, "--lab", lab or self.lab_file)

    def resume(self, campaign: int = 1) -> Command:
        """Start `labctl run --resume`."""
        return self.start("run", "--resume", str(campaign))

    # What is going on

    def record(self, campaign: int = 1) -> CampaignRecord:
        """A campaign as the store has it."""
        return self.store.record(campaign)

    def active(self, command: Command, what: str, wanted: Callable[[ActiveAttempt], bool]) -> ActiveAttempt:
        """The first attempt in progress that is as wanted."""

        def look() -> ActiveAttempt | None:
            found = next((item for item in self.store.active_attempts() if wanted(item)), None)
            assert found or command.process.poll() is None, f"{what} never came: {command.said}"
            return found

        attempt: ActiveAttempt = until(f"{what}; {command.said}", look)
        return attempt

    def phase(self, command: Command, word: str) -> ActiveAttempt:
        """The attempt in progress, once it is in a phase whose name begins so."""
        return self.active(command, f"phase {word}", lambda item: item.phase.startswith(word))

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Rows of the database itself."""
        with closing(sqlite3.connect(f"file:{self.state}/labctl.sqlite?mode=ro", uri=True)) as database:
            return database.execute(statement).fetchall()

    # What is left

    def processes(self) -> dict[int, str]:
        """Processes that commands of this desk started and that still run, with their command lines."""
        return processes_of(self.state, self.temporary)

    def leftovers(self) -> list[str]:
        """Whatever is there that should not be after a campaign, in words; empty when all is clean."""
        left = [f"process {pid}: {line}" for pid, line in self.processes().items()]
        left += [f"temporary file {path}" for path in self.temporary.iterdir()]
        left += [f"lease of {line.resource}" for line in self.store.leases(self.lab.name)]
        left += [f"VM recorded as {state}: {name}" for name, state in self.query(_STATES_OF_VMS)]
        left += [f"domain {name} on host {host}" for host in self.lab.hosts for name in domains(self.lab, host)]
        for pid, namespace in namespaces.processes(namespace_prefix(self.lab)).items():
            if namespaces.command_name(pid).startswith(("iperf", "qemu")):
                left.append(f"process {pid} in {namespace}: {' '.join(namespaces.command_line(pid))[:150]}")
        for member in topology(self.lab).members.values():
            left += [f"tap {name} in {member.name}" for name in namespaces.look(member.name) or {} if "vnet" in name]
        return left

    def assert_nothing_left(self, *, within: float = 0.0) -> None:
        """Fail when anything is left; things that end by themselves get some seconds."""
        deadline = time.monotonic() + within
        while left := self.leftovers():
            assert time.monotonic() < deadline, "\n".join(["left behind:", *left])
            time.sleep(0.2)

    def close(self) -> None:
        """End whatever a failed test left, so that it spoils no other."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for command in self.commands:
            command.process.wait()
        for host in self.lab.hosts:
            for name in domains(self.lab, host):
                virsh(self.lab, host, "destroy", name)
        self.store.close()


def processes_of(state: Path, temporary: Path) -> dict[int, str]:
    """Processes that were started with this state directory and that still run, with their command lines.

    Redis writes its title over its environment, but works in the session's temporary directory.
    """
    mark = f"LABCTL_STATE={state}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (
                mark in (entry / "environ").read_bytes().split(b"\0")
                or str((entry / "cwd").readlink()).startswith(f"{temporary}/")
            ):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return {pid: line for pid, line in found.items() if line}


_STATES_OF_VMS = "SELECT name, state FROM vms WHERE state != 'gone'"


@contextmanager
def a_desk(lab: Lab, directory: Path, *, state: Path | None = None) -> Iterator[Desk]:
    """A desk; at the end nothing of what was done at it may be left."""
    desk = Desk(lab, directory, state=state)
    try:
        yield desk
        desk.assert_nothing_left()
    finally:
        desk.close()


def virsh(lab: Lab, host: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Ask a host's libvirt, past labctl."""
    return subprocess.run(
        ["virsh", "-c", lab.hosts[host].uri, *arguments],
        input=stdin, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def domains(lab: Lab, host: str) -> tuple[str, ...]:
    """Names of all domains of a host that look like labctl's."""
    listed = virsh(lab, host, "list", "--all", "--name")
    assert listed.returncode == 0, f"libvirt of host {host} doesn't answer: {listed.stderr}"
    return tuple(name for name in listed.stdout.split() if name.startswith("labctl-"))


def outcomes(record: CampaignRecord) -> Mapping[str, int]:
    """How many runs ended how; `none` for runs without a result."""
    found: dict[str, int] = {}
    for run in record.runs:
        word = run.result.detail.outcome.value if run.result is not None else "none"
        found[word] = found.get(word, 0) + 1
    return found


def _ssh(access: SshAccess | None) -> dict[str, object]:
    assert access is not None
    return {
        "address": access.address,
        "user": access.user,
        "key": f"file:{access.key.locator}",
        "known_hosts": access.known_hosts,
        "port": access.port,
    }
