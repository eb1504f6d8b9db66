"""The daemons of a member: started detached in its namespaces, asked whether they answer, ended."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from labctl.errors import LabError
from workers.guard import Deadline
from workers.locallab.members import Member
from workers.locallab.namespaces import command_line, command_name, end_processes
from workers.locallab.system import PATH, attempt, run

ENTER = Path(__file__).with_name("enter.sh")

START_SECONDS = 30.0
"""How long a daemon may take from its start until it answers."""

ANSWER_SECONDS = 5.0
"""How long a running daemon may take to answer."""


@dataclass(frozen=True, kw_only=True)
class Daemon:
    """A daemon of one member."""

    member: Member
    program: str
    arguments: tuple[str, ...]

    @property
    def pid_file(self) -> Path:
        """Where its process id stands; believed only when that process is in the member's namespace."""
        return self.member.directory / f"{self.program}.pid"

    @property
    def log(self) -> Path:
        """What it says on its standard error."""
        return self.member.directory / f"{self.program}.log"


def daemons(member: Member) -> tuple[Daemon, ...]:
    """The daemons that a member has."""
    sshd = Daemon(
        member=member,
        program="sshd",
        arguments=("-D", "-e", "-f", str(member.directory / "ssh" / "sshd_config")),
    )
    if not member.is_host:
        return (sshd,)
    pid_file = member.directory / "libvirtd.pid"
    return sshd, Daemon(member=member, program="libvirtd", arguments=("--pid-file", str(pid_file)))


def running(daemon: Daemon, lab_processes: Mapping[int, str]) -> bool:
    """Whether the process of its pid file runs, is that program, and lives in the member's namespace."""
    try:
        pid = int(daemon.pid_file.read_text())
    except (FileNotFoundError, ValueError):
        return False
    return lab_processes.get(pid) == daemon.member.namespace and command_name(pid) == daemon.program


def answers(daemon: Daemon) -> bool:
    """Whether it does its work: libvirtd by a real call over its socket, sshd by its greeting."""
    return _libvirtd_answers(daemon.member) if daemon.program == "libvirtd" else _sshd_answers(daemon.member)


def _libvirtd_answers(member: Member) -> bool:
    return vm_names(member) is not None


def _sshd_answers(member: Member) -> bool:
    try:
        with socket.create_connection((member.ssh.address, member.ssh.port), timeout=ANSWER_SECONDS) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def vm_names(member: Member) -> tuple[str, ...] | None:
    """The VMs that run on a host, by name; None when its libvirtd doesn't answer."""
    listed = attempt(["virsh", "-c", member.uri, "list", "--name"], timeout=ANSWER_SECONDS)
    return tuple(listed.stdout.split()) if listed.returncode == 0 else None


def warm_up(member: Member) -> None:
    """Have a host's libvirtd ask QEMU what it can do, which takes seconds once; all hosts share what it finds."""
    run(["virsh", "-c", member.uri, "version"], what=f"Asking QEMU on {member.name} for its version", timeout=90)


def ensure(daemon: Daemon, lab_processes: Mapping[int, str], *, anew: bool) -> bool:
    """See to it that a daemon runs and answers, starting it (again, if `anew`) if need be; whether it was started.

    VMs outlive their libvirtd: a new one takes them over.
    """
    if not anew and running(daemon, lab_processes) and answers(daemon):
        return False
    own = [pid for pid, namespace in lab_processes.items() if namespace == daemon.member.namespace]
    end_processes(lambda: [pid for pid in own if _is_instance(daemon, pid)])
    _start(daemon)
    return True


def _is_instance(daemon: Daemon, pid: int) -> bool:
    """Whether a process of the member is this daemon, or is about to become it after an `up` that was killed."""
    if command_name(pid) == daemon.program:
        return True
    arguments = command_line(pid)
    return str(ENTER) in arguments and str(daemon.pid_file) in arguments


def _start(daemon: Daemon) -> None:
    daemon.pid_file.unlink(missing_ok=True)
    member = daemon.member
    program = shutil.which(daemon.program, path=PATH)
    if program is None:
        raise ValueError(f"{daemon.program} is no program of this machine")
    log = daemon.log
    log.touch(mode=0o600)
    run(
        [
            *("setsid", "--fork", "sh", "-c", _DETACHED, str(log)),
            *("ip", "netns", "exec", member.namespace),
            *("unshare", "--uts", "--mount", "--propagation", "slave"),
            *("sh", str(ENTER), member.namespace, str(member.lab), str(member.directory), str(member.cache)),
            *(member.hostname, str(daemon.pid_file), *_REAPER.get(daemon.program, ()), program, *daemon.arguments),
        ],
        what=f"Starting {daemon.program} of {member.name}",
    )
    deadline = Deadline.after(START_SECONDS)
    while not _ready(daemon):
        if deadline.passed:
            raise LabError(
                f"{daemon.program} of {member.name} doesn't answer.",
                kind="daemon-failed",
                host=member.name,
                why=f"It was started {START_SECONDS:g} s ago. The end of {log}:\n{_tail(log)}",
                todo="Run `labctl lab down`, then `labctl lab up` again.",
            )
        time.sleep(0.02)


_REAPER = {"libvirtd": ("tini", "-s", "--")}
"""What a daemon runs under. QEMU processes are no children of libvirtd, which waits for them to be gone after a VM was ended
or migrated: a subreaper (prctl(2)) takes them off at once, where the first process of a machine may take seconds."""

_DETACHED = 'exec "$@" >>"$0" 2>&1 </dev/null'
"""A shell that puts what follows onto a log file; no terminal and no pipe of ours stays open in a daemon."""


def _ready(daemon: Daemon) -> bool:
    if daemon.program == "libvirtd":
        with suppress(FileNotFoundError):
            return daemon.pid_file.stat().st_size > 0 and _libvirtd_answers(daemon.member)
        return False
    return _sshd_answers(daemon.member)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-1500:]
