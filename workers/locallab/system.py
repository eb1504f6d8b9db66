"""What the embedded lab asks of this machine: programs, rights, and commands with a deadline."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from labctl.errors import LabError

PROGRAMS = {
    "ip": "iproute2",
    "unshare": "util-linux",
    "mount": "mount",
    "setsid": "util-linux",
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "libvirtd": "libvirt-daemon",
    "tini": "tini",
    "virsh": "libvirt-clients",
    "qemu-system-x86_64": "qemu-system-x86",
}
"""What the embedded lab runs, with the package of Debian and Ubuntu that has it."""

FOLDERS = ("/etc/libvirt", "/var/lib/libvirt", "/var/cache/libvirt", "/var/log/libvirt")
"""Every host sees folders of its own in these places, so they have to exist."""

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs are looked for; the PATH of a user often lacks the sbin folders."""

ENVIRONMENT = {"PATH": PATH, "LC_ALL": "C.UTF-8"}
"""The whole environment of every program that the embedded lab starts."""


def require_linux_and_root(doing: str) -> None:
    """Raise `LabError` (`not-linux`, `not-root`) unless this is Linux and we are root."""
    if sys.platform != "linux":
        raise LabError(
            f"{doing} needs Linux.",
            kind="not-linux",
            why=f"The embedded lab is made of network namespaces, and this is {sys.platform}.",
            todo="Run it on a Linux machine or in a Linux VM, or write a lab file with real hosts.",
        )
    if os.geteuid() != 0:
        raise LabError(
            f"{doing} needs root.",
            kind="not-root",
            why="It works with network namespaces, bridges and a libvirtd of its own.",
            todo="Run the same command with sudo.",
        )


def require_programs() -> None:
    """Raise `LabError` (`missing-program`) with all that is missing."""
    missing = {name: package for name, package in PROGRAMS.items() if shutil.which(name, path=PATH) is None}
    missing |= {folder: "libvirt-daemon-system" for folder in FOLDERS if not os.path.isdir(folder)}  # noqa: PTH112
    if missing:
        listed = ", ".join(f"{name} (package {package})" for name, package in missing.items())
        raise LabError(
            f"The embedded lab can't come up: this machine lacks {listed}.",
            kind="missing-program",
            todo="Run `make setup`, or install the packages by hand.",
        )


def run(argv: Sequence[str], *, what: str, timeout: float = 20.0, stdin: str = "") -> str:
    """Run a program to its end and return its output. `LabError` (`lab-setup`) when it fails or takes too long."""
    done = attempt(argv, timeout=timeout, stdin=stdin)
    if done.returncode != 0:
        raise LabError(
            f"{what} failed.",
            kind="lab-setup",
            why=f"`{' '.join(argv)}` said: {done.stderr.strip()[-500:] or f'nothing (exit code {done.returncode})'}",
            todo="Run `labctl lab down`, then `labctl lab up` again.",
        )
    return done.stdout


def attempt(argv: Sequence[str], *, timeout: float = 20.0, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program to its end, whatever comes of it; past the deadline it is killed and has exit code 124."""
    try:
        return subprocess.run(
            argv, input=stdin, capture_output=True, text=True, timeout=timeout, env=ENVIRONMENT, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 124, "", f"no end after {timeout:g} s")
