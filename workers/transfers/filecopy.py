"""`filecopy`: one file of an exact size and of random bytes, copied as people copy files, timed where nobody moves.

The client runs on the endpoint that stays and takes both ends of the time; it puts the file, or gets it when the order is
reversed. Setting a connection up (SSH's handshake, SMB's session) is part of the time, making the file, mounting a share
and taking hashes are not. The copy is read again afterwards, and only one with the source's hash is a result.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from labctl.model.order import TransferOrder
from labctl.model.reading import Capture, ErrorKind, Reading
from labctl.model.tools import cannot
from workers.transfers import copy_scripts as scripts
from workers.transfers import failures, filecopy_ssh, filecopy_windows
from workers.transfers.base import Placing, Process, Step, Surroundings
from workers.transfers.copied import is_trouble
from workers.transfers.text import decode, error_text

TOOL = "filecopy"
CLOCKS_APART = 0.05
"""Seconds by which the clock of the day and that since boot may differ over a copy; beyond, the first one was set. Twice the
0.01 s in which the second one counts, and what passes between two looks."""

_STEP_SECONDS = 20.0
_BYTES_PER_SECOND = 4e6
"""How slow making, reading or hashing a file may be: an emulated guest does 20 MB/s."""
_SSH = ("scp", "sftp")


@dataclass(frozen=True, kw_only=True)
class Copy:
    """The names of one copy. Folders of both ends differ, for both may lie on one machine."""

    order: TransferOrder
    server: str
    port: int

    @property
    def source_at(self) -> Process:
        """Where the file is made."""
        return Process.SERVER if self.order.reverse else Process.CLIENT

    @property
    def target_at(self) -> Process:
        """Where it is copied to."""
        return Process.CLIENT if self.order.reverse else Process.SERVER

    def folder(self, at: Process) -> str:
        """The folder of one end, on what was asked for."""
        parent = "/dev/shm" if self.order.medium == "ram" else "/var/tmp"  # noqa: S108 - named by a port of its own
        return f"{parent}/labctl-copy-{self.port}-{at.name.lower()}"

    @property
    def source(self) -> str:
        """The file."""
        return f"{self.folder(self.source_at)}/source"

    @property
    def target(self) -> str:
        """The copy."""
        return f"{self.folder(self.target_at)}/copy"

    def beside(self, name: str) -> str:
        """A small file of the transfer: a configuration, a key."""
        return f"/tmp/labctl-copy-{self.port}-{name}"  # noqa: S108

    @property
    def seconds(self) -> float:
        """Deadline of a step that reads or writes the whole file."""
        return _STEP_SECONDS + self.order.size / _BYTES_PER_SECOND


class FileCopy:
    """The transfer tool `filecopy`."""

    name = TOOL
    server_ends = False
    timed = False

    def server_command(
        self, order: TransferOrder, *, port: int, server: str = "", version: str = ""
    ) -> tuple[str, ...]:
        """What serves the other side's client on the port: a stream's other end, `sshd`, `rsync --daemon` or `smbd`, each
        with a configuration of its own; nothing on Windows, whose system serves shares."""
        del version
        copy = Copy(order=order, server=server, port=port)
        match order.copy:
            case "stream":
                return _stream(copy, "listen", Process.SERVER)
            case "scp" | "sftp":
                return _sh(scripts.SSHD, copy.beside("sshd"))
            case "rsync":
                words = ("--daemon", "--no-detach", f"--port={port}", f"--address={server}")
                return ("rsync", *words, f"--config={copy.beside('rsyncd')}")
            case "smbclient" | "smb-mount":
                return _sh(scripts.SMBD, copy.beside("smbd"), copy.beside("smbd-state"))
        return ()

    def client_command(self, order: TransferOrder, *, server: str, port: int, version: str = "") -> tuple[str, ...]:
        """The copy between two looks at the clock."""
        del version
        copy = Copy(order=order, server=server, port=port)
        if order.copy in ("robocopy", "copy-item"):
            return filecopy_windows.client(order, port=port)
        flushed = copy.target if order.cache == "cold" and order.reverse else "-"
        if order.copy != "smb-mount":
            return _sh(scripts.TIMED, "-", flushed, *_copying(copy), *order.client_args)
        mounted = copy.beside("mount")
        there = f"{mounted}/{PurePosixPath(copy.source if order.reverse else copy.target).name}"
        pair = (there, copy.target) if order.reverse else (copy.source, there)
        if order.cache == "cold":
            flushed = pair[1]
        options = f"guest,port={port},vers=3.1.1"
        timed = _sh(scripts.TIMED, mounted, flushed, "dd", f"if={pair[0]}", f"of={pair[1]}", "bs=1048576")
        return _sh(scripts.MOUNTED, f"//{server}/copy", mounted, options, *timed, *order.client_args)

    def surroundings(self, order: TransferOrder, *, server: str, port: int) -> Surroundings:
        """Folders, the file, and what the server needs; afterwards the copy is hashed, and all of it is removed."""
        if order.copy in ("robocopy", "copy-item"):
            return filecopy_windows.surroundings(order, server=server, port=port)
        copy = Copy(order=order, server=server, port=port)
        folders = [
            Step(
                at=at,
                argv=_sh(scripts.MAKE_FOLDER, copy.folder(at), order.medium),
                what=f"Making a folder on {order.medium}",
                seconds=_STEP_SECONDS,
            )
            for at in Process
        ]
        if order.copy == "smb-mount":
            mounted = copy.beside("mount")
            argv = _sh(scripts.MAKE_FOLDER, mounted, "ram")
            folders.append(Step(at=Process.CLIENT, argv=argv, what="Making a place to mount at", seconds=_STEP_SECONDS))
        make = Step(
            at=copy.source_at,
            argv=_sh(scripts.MAKE_FILE, copy.source, str(order.size), order.cache),
            what=f"Making a file of {order.size} bytes",
            seconds=3 * copy.seconds,
        )
        check = Step(
            at=copy.target_at, argv=_sh(scripts.CHECK_FILE, copy.target), what="Checking the copy", seconds=copy.seconds
        )
        placings = _placings(copy)
        return Surroundings(
            placings=placings,
            before=(*folders, make),
            after=(check,),
            cleanup=tuple(_remove(copy, at, placings) for at in Process),
        )

    def unsupported(self, order: TransferOrder, version: str = "") -> str:
        """Why the order can't be done; empty when it can."""
        del version
        if order.size < 1:
            return "filecopy needs a file of at least one byte."
        return cannot(order)

    def parse(self, capture: Capture) -> Reading:
        """The reading of what the steps and the client printed. Never raises."""
        return parse(capture)


def _sh(script: str, *arguments: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script, "labctl", *arguments)


def _stream(copy: Copy, how: str, at: Process) -> tuple[str, ...]:
    """One end of a stream: it listens or connects, and sends or receives."""
    sends = at is copy.source_at
    file = copy.source if sends else copy.target
    end = _sh(scripts.STREAM_END, "send" if sends else "receive", file, str(copy.order.size), copy.order.cache)
    return _sh(scripts.CONNECT, how, copy.server, str(copy.port), *end)


def _copying(copy: Copy) -> tuple[str, ...]:
    """The command that copies."""
    order, there = copy.order, f"{copy.server}:{copy.port}"
    match order.copy:
        case "scp" | "sftp":
            return filecopy_ssh.client(order, copy.server, copy.port, copy.source, copy.target, copy.beside)
        case "rsync":
            far = f"rsync://{there}/copy/{'source' if order.reverse else 'copy'}"
            pair = (far, copy.target) if order.reverse else (copy.source, far)
            flush = ("--fsync",) if order.cache == "cold" else ()
            return ("rsync", "--whole-file", "--inplace", *flush, *pair)
        case "smbclient":
            verb = f"get source {copy.target}" if order.reverse else f"put {copy.source} copy"
            return ("smbclient", f"//{copy.server}/copy", "-N", "-p", str(copy.port), "-c", verb)
    return _stream(copy, "connect", Process.CLIENT)


_RSYNCD = """use chroot = no
uid = root
gid = root
[copy]
path = {folder}
read only = no
"""
_SMBD = """[global]
smb ports = {port}
interfaces = {server}
bind interfaces only = yes
disable netbios = yes
map to guest = Bad User
guest account = root
load printers = no
strict sync = yes
log level = 0
state directory = {state}
cache directory = {state}
lock directory = {state}
private dir = {state}
pid directory = {state}
ncalrpc dir = {state}/ncalrpc
[copy]
path = {folder}
guest ok = yes
writeable = yes
force user = root
"""


def _placings(copy: Copy) -> tuple[Placing, ...]:
    """Configurations and keys. They name nothing but the transfer's own folder, and are gone after it."""
    folder = copy.folder(Process.SERVER)
    match copy.order.copy:
        case "scp" | "sftp":
            return filecopy_ssh.placings(copy.order, copy.server, copy.port, copy.source, copy.target, copy.beside)
        case "rsync":
            text = _RSYNCD.format(folder=folder)
            return (Placing(at=Process.SERVER, path=copy.beside("rsyncd"), content=text.encode()),)
        case "smbclient" | "smb-mount":
            text = _SMBD.format(folder=folder, port=copy.port, server=copy.server, state=copy.beside("smbd-state"))
            return (Placing(at=Process.SERVER, path=copy.beside("smbd"), content=text.encode()),)
    return ()


def _remove(copy: Copy, at: Process, placings: tuple[Placing, ...]) -> Step:
    names = [copy.folder(at), *(one.path for one in placings if one.at is at)]
    if copy.order.copy in ("smbclient", "smb-mount"):
        names.append(copy.beside("smbd-state") if at is Process.SERVER else copy.beside("mount"))
    return Step(at=at, argv=_sh(scripts.REMOVE, *names), what="Removing the files", seconds=_STEP_SECONDS)


_TOLD = re.compile(r"^labctl (start|end) (\S+) (\d+\.\d+)\s*$", re.MULTILINE)
_CODE = re.compile(r"^labctl code (\d{1,10})\s*$", re.MULTILINE)
_FILE = re.compile(r"^labctl (source|copy) (\d{1,18}) ([0-9a-f]{64}|-)\s*$", re.MULTILINE)
_METHOD = re.compile(r"^labctl method (.+)$", re.MULTILINE)


def parse(capture: Capture) -> Reading:
    """Bytes by the file, seconds by the client's clock; a result only where the copy has the source's hash."""
    text, errors = decode(capture.stdout).text, error_text(capture.stderr)
    files = {name: (int(size), digest) for name, size, digest in _FILE.findall(text)}
    code = _CODE.search(text)
    method = _METHOD.search(errors)
    seconds, warnings = _seconds(text)
    said = _said(errors)
    base = Reading(
        tool=TOOL,
        ok=False,
        tool_version=method[1].strip()[:80] if method else None,
        error=said[:1000],
        streams=1,
        intervals=None,
        warnings=warnings,
    )
    source, copied = files.get("source"), files.get("copy")
    if code is None or source is None:
        return replace(base, error_kind=_unfinished(text, said))
    if code[1] != "0" or copied is None or copied[0] != source[0]:
        return replace(base, error_kind=_failed(said, arrived=copied[0] if copied else 0))
    if copied != source:
        what = f"the copy's SHA-256 is {copied[1]}, the source's {source[1]}"
        return replace(base, error_kind=ErrorKind.CORRUPT_DATA, error=what)
    if not seconds:
        return replace(base, error_kind=None if "clock_jump" in warnings else ErrorKind.NO_DATA, bytes=source[0])
    return replace(
        base,
        ok=True,
        error="",
        bits_per_second=source[0] * 8 / seconds,
        side="receiver",
        bytes=source[0],
        seconds=seconds,
    )


def _seconds(text: str) -> tuple[float | None, tuple[str, ...]]:
    """Between both looks: by the clock of the day, which is finer, unless it was set; then by that since boot."""
    looks = {name: (day, float(boot)) for name, day, boot in _TOLD.findall(text)}
    if len(looks) != 2:
        return None, ()
    (day_before, boot_before), (day_after, boot_after) = looks["start"], looks["end"]
    since_boot = boot_after - boot_before
    try:
        of_day = float(day_after) - float(day_before)
    except ValueError:  # a `date` without nanoseconds prints what it was given
        of_day = None
    if since_boot < 0:
        return None, ("clock_jump",)
    if of_day is not None and abs(of_day - since_boot) <= CLOCKS_APART:
        return (round(of_day, 9), ()) if of_day > 0 else (None, ())
    set_then = () if of_day is None else ("clock_jump",)
    return (round(since_boot, 2), (*set_then, "coarse_clock")) if since_boot > 0 else (None, set_then)


def _said(errors: str) -> str:
    lines = (line.strip() for line in errors.split("\n"))
    return "\n".join(line for line in lines if line and not line.startswith("labctl "))


def _unfinished(text: str, said: str) -> ErrorKind:
    if "labctl start" in text:
        return ErrorKind.TRUNCATED_OUTPUT
    if text.strip() and "labctl " not in text:
        return ErrorKind.UNPARSEABLE
    found = failures.fault(said)
    return failures.error_kind(found, moved=False, server=False) if found else ErrorKind.NO_DATA


def _failed(said: str, *, arrived: int) -> ErrorKind:
    """By what the program said; one that failed in silence lost its connection if anything had arrived."""
    found = failures.fault(said) if is_trouble(said) else None
    if found is None:
        return ErrorKind.CONNECTION_LOST if arrived else ErrorKind.NO_DATA
    return failures.error_kind(found, moved=arrived > 0, server=False)
