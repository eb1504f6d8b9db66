"""A Windows machine that only pretends: the scripts of channels and stacks in Python, by name. What they start are real
processes of this machine, what they read and write are real files in a directory, and its adapters are values."""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.contracts.endpoints import until
from tests.simulators.winrm.jobs import NAMES, PACKAGE, Jobs
from tests.simulators.winrm.processes import Context, ScriptFailure, Simulated
from workers.powershell import envelope, jobs
from workers.powershell.base import Job, Json, Script
from workers.powershell.envelope import Output

MARK = "LABCTL_SIMULATED_COMMAND"
"""In the environment of all that a command starts: what the job object is on Windows."""

FOLDERS = "C:\\Users\\labctl\\AppData\\Local\\labctl-commands"


@dataclass
class SimulatedAdapter:
    """An adapter of the machine. Settings are what its driver reads when it starts."""

    name: str
    mac: str = "52:54:00:12:00:10"
    description: str = "Microsoft Hyper-V Network Adapter"
    pnp: str = "VMBUS\\{f8615163-df3e-46c5-913f-f2d2f965ed0e}\\{1}"
    up: bool = True
    speed: int | None = 10**10
    mtu: int = 1500
    addresses: list[str] = field(default_factory=lambda: ["198.18.0.16/24"])
    switch: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    choices: dict[str, list[str]] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    """Keywords that Windows refuses to change."""
    deaf: frozenset[str] = frozenset()
    """Offloads that the driver keeps as they are, whatever it is told."""
    restarts: int = 0


class SimulatedWindows:
    """The machine. Its method `run` is what a WinRM endpoint of tests runs; `powershell` is a place of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.adapters: list[SimulatedAdapter] = []
        self.chimney: str | None = None
        self.tool: str | None = "3.1.3"
        self.scripts: list[str] = []
        """Scripts that were run, by name."""
        self.before: dict[str, Callable[[], None]] = {}
        """What happens before a script of this name is run."""
        self._scripts: dict[str, Callable[[Any, Context], Json]] = {
            "begin-command": self._begin,
            "supervise-command": self._supervise,
            "look-command": self._look,
            "end-commands": self._end,
            "read-file": self._read_file,
            "write-file": self._write_file,
            "read-clock": lambda _document, _context: {"microseconds": time.time_ns() // 1000},
            "read-adapters": self._read_adapters,
            "set-adapters": self._set_adapters,
        }

    def run(self, name: str, document: Mapping[str, Json], context: Context) -> Json:
        """Run a script."""
        self.scripts.append(name)
        try:
            self.before.get(name, lambda: None)()
            return self._scripts[name](document, context)
        except OSError as error:
            raise ScriptFailure("script-failed", str(error)) from error

    def path(self, written: str) -> Path:
        """Where a path of the machine really is."""
        return self.root.joinpath(*written.removeprefix("C:").replace("\\", "/").strip("/").split("/"))

    def folders(self) -> list[Path]:
        """What commands have left."""
        at = self.path(FOLDERS)
        return sorted(at.iterdir()) if at.exists() else []

    def processes(self) -> list[int]:
        """What commands have started and still runs."""
        return [pid for pid in _pids() if self._mark(str(self.root)) in _environment(pid)]

    # Commands

    def _begin(self, document: Any, _context: Context) -> Json:
        if document["port"] is not None and _listens(document["port"]):
            return {"folder": None, "busy": True}
        folder = f"{FOLDERS}\\{document['token']}"
        self.path(folder).mkdir(parents=True)
        return {"folder": folder, "busy": False}

    def _supervise(self, document: Any, context: Context) -> Json:
        folder = self.path(document["folder"])
        (folder / "supervisor").write_text("1 1")
        for name in ("in", "out", "err"):
            (folder / name).touch()
        program = shutil.which(document["program"])
        if program is None:
            (folder / "err").write_text(f"{document['program']} is not found.")
            (folder / "code").write_text("9009")
            return {"code": 9009, "overdue": False}
        with (folder / "in").open() as given, (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            process = subprocess.Popen(
                [program, *to_arguments(document["line"] or "")],
                stdin=given, stdout=out, stderr=err, cwd=folder, start_new_session=True,
                env=os.environ | {MARK: str(self.root), f"{MARK}_{folder.name}": "1"},
            )  # fmt: skip
        (folder / "pid").write_text(str(process.pid))
        end = time.monotonic() + document["seconds"]
        while process.poll() is None and time.monotonic() < end and not context.ended.is_set():
            context.ended.wait(0.01)
        overdue = process.poll() is None
        # A job object is closed with its supervisor, and ends all that is in it.
        self._kill(folder)
        code = process.wait()
        if folder.exists() and not (folder / "code").exists():
            _write_whole(folder / "code", str(1 if code < 0 else code))
        return {"code": code, "overdue": overdue}

    def _look(self, document: Any, _context: Context) -> Json:
        folder, end = self.path(document["folder"]), time.monotonic() + document["seconds"]
        awaited = {"start": {"waiting"}, "port": {"waiting", "running"}, "end": {"waiting", "running"}}[
            document["until"]
        ]
        while (state := self._state(folder, document)) in awaited and time.monotonic() < end:
            time.sleep(0.01)
        out, err = (_content(folder / name) for name in ("out", "err"))
        sent = len(out) + len(err) <= document["limit"]
        return {
            "state": state,
            "pid": int(_content(folder / "pid") or 0) or None,
            "code": int(said) if (said := _content(folder / "code")) else None,
            "out": len(out),
            "err": len(err),
            "stdout": base64.b64encode(out).decode() if sent else None,
            "stderr": base64.b64encode(err).decode() if sent else None,
        }

    def _state(self, folder: Path, document: Any) -> str:
        if not folder.exists():
            return "gone"
        if _content(folder / "code"):
            return "ended"
        if not (folder / "supervisor").exists() or not _content(folder / "pid"):
            return "waiting"
        if document["until"] == "port" and _listens(document["port"]):
            return "listening"
        return "running"

    def _end(self, document: Any, _context: Context) -> Json:
        ended = 0
        for folder in map(self.path, document["folders"]):
            if not folder.exists():
                continue
            ended += not (folder / "code").exists()
            self._kill(folder)
            if (folder / "pid").exists():
                until(lambda: (folder / "code").exists(), "the end of a command")  # noqa: B023
            if document["remove"]:
                shutil.rmtree(folder)
        return {"ended": ended, "left": []}

    def _kill(self, folder: Path) -> None:
        """End all that a command has started, and what that starts meanwhile."""
        mark = f"{MARK}_{folder.name}=1".encode()

        def left() -> list[int]:
            return [pid for pid in _pids() if mark in _environment(pid)]

        def all_gone() -> bool:
            for pid in left():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left()

        until(all_gone, f"the end of {folder.name}")

    @staticmethod
    def _mark(root: str) -> bytes:
        return f"{MARK}={root}\0".encode()

    # Files

    def _read_file(self, document: Any, _context: Context) -> Json:
        path = self.path(document["path"])
        if not path.is_file():
            raise ScriptFailure("no-file", f"There is no file {document['path']}.")
        content = path.read_bytes()
        part = content[document["offset"] :][: document["length"]]
        digest = hashlib.sha256(content).hexdigest() if document["digest"] else None
        return {"content": base64.b64encode(part).decode(), "size": len(content), "sha256": digest}

    def _write_file(self, document: Any, _context: Context) -> Json:
        path, beside = self.path(document["path"]), self.path(document["beside"])
        if path.is_dir():
            raise ScriptFailure("script-failed", f"{document['path']} is a folder.")
        if document["offset"] == 0:
            beside.write_bytes(b"")
        with beside.open("r+b") as file:
            file.truncate(document["offset"])
            file.seek(document["offset"])
            file.write(base64.b64decode(document["content"]))
        if document["sha256"] is not None:
            if hashlib.sha256(beside.read_bytes()).hexdigest() != document["sha256"]:
                raise ScriptFailure("not-whole", "other bytes arrived")
            beside.replace(path)
        return {"size": beside.stat().st_size if beside.exists() else path.stat().st_size}

    # Adapters

    def _read_adapters(self, document: Any, _context: Context) -> Json:
        return {
            "adapters": [self._told(each, document) for each in self.adapters if _is_asked_for(each, document)],
            "chimney": self.chimney,
            "windows": "Windows Server 2019 Standard",
            "build": "17763.1",
            "integration_services": "10.0.17763.1",
            "tools": None,
            "tool": self.tool if document["tool"] is not None else None,
            "power_plan": "High performance",
        }

    def _told(self, adapter: SimulatedAdapter, document: Any) -> dict[str, Any]:
        settings = [
            {"keyword": key, "value": value, "choices": adapter.choices.get(key, [])}
            for key, value in adapter.settings.items()
            if key in document["keywords"]
        ]
        return {
            "name": adapter.name, "index": 7, "description": adapter.description, "pnp": adapter.pnp,
            "mac": adapter.mac.upper(), "up": adapter.up, "speed": adapter.speed, "mtu": adapter.mtu,
            "addresses": adapter.addresses, "driver": "netvsc", "driver_version": "10.0.17763.1",
            "driver_date": "6-21-2006", "driver_provider": "Microsoft",
            "settings": settings, "actual": dict.fromkeys(adapter.deaf, True),
        }  # fmt: skip

    def _set_adapters(self, document: Any, _context: Context) -> Json:
        failed: list[Json] = []
        restarted = set()
        for change in sorted(document["changes"], key=lambda each: each["keyword"] == "mtu"):
            if change["keyword"] == "chimney":
                self.chimney = change["value"]
                continue
            adapter = next(each for each in self.adapters if each.name == change["adapter"])
            if change["keyword"] in adapter.fixed:
                failed.append(f"{adapter.name} {change['keyword']}: access is denied")
            elif change["keyword"] == "mtu":
                adapter.mtu = int(change["value"])
            else:
                adapter.settings[change["keyword"]] = change["value"]
                restarted.add(adapter.name)
        for adapter in self.adapters:
            adapter.restarts += adapter.name in restarted
        return {"failed": failed}


class SimulatedPowerShell:
    """A `PowerShell` of a machine without any wire: what is said still passes through requests and answers."""

    def __init__(
        self, run: Callable[[str, Mapping[str, Json], Context], Json], *, where: str = "vm under test"
    ) -> None:
        self._run = run
        self._jobs = Jobs(run)
        self._where = where
        self.fails: dict[str, Exception] = {}
        """What calls of a script fail with, by its name."""
        self.calls: list[tuple[str, Mapping[str, Json]]] = []
        self.closed = 0

    @property
    def where(self) -> str:
        return self._where

    def call(self, script: Script, document: Mapping[str, Json], *, timeout: float) -> Json:
        assert timeout > 0
        if script.name in self.fails:
            raise self.fails[script.name]
        self.calls.append((script.name, document))
        request = envelope.request_for(script, document)
        answer = answered(request.encode(), self._script)
        return envelope.read_answer(request, Output(stdout=answer, stderr=b"", exit_code=0), where=self._where)

    def job(self, script: Script, document: Mapping[str, Json], *, name: str, timeout: float) -> Job:
        return jobs.start(self, script, document, name=name, timeout=timeout)

    def close(self) -> None:
        self.closed += 1

    def _script(self, name: str, document: Mapping[str, Json], context: Context) -> Json:
        if context.package == PACKAGE and name in NAMES:
            return self._jobs.script(name, document, context)
        return self._run(name, document, context)


def answered(request: bytes, run: Callable[[str, Mapping[str, Json], Context], Json]) -> bytes:
    """What a PowerShell prints that is given a request."""
    decoded = envelope.decode_request(request)
    package = decoded.name.rpartition("/")[0]
    context = Context(
        host="guest", user="u", transport="", package=package, progress=lambda _: None, ended=threading.Event()
    )
    answer = Simulated(run_script=run, context=context).answer(decoded)
    return envelope.encode_answer(decoded.number, answer)


def to_arguments(line: str) -> list[str]:
    """What a program makes of its arguments, by the rules of `CommandLineToArgvW`, written down once more from scratch."""
    arguments: list[str] = []
    current: str | None = None
    quoted = False
    at = 0
    while at < len(line):
        backslashes = sum(1 for _ in itertools.takewhile(lambda letter: letter == "\\", line[at:]))
        if backslashes:
            at += backslashes
            before_quote = line[at : at + 1] == '"'
            current = (current or "") + "\\" * (backslashes // 2 if before_quote else backslashes)
            if before_quote and backslashes % 2:
                current += '"'
                at += 1
            continue
        letter = line[at]
        at += 1
        if letter == '"':
            quoted, current = not quoted, current or ""
        elif letter in " \t" and not quoted:
            if current is not None:
                arguments.append(current)
            current = None
        else:
            current = (current or "") + letter
    return arguments if current is None else [*arguments, current]


def _is_asked_for(adapter: SimulatedAdapter, document: Any) -> bool:
    if document["mac"] is not None:
        return bool(adapter.mac == document["mac"])
    addresses = [each.partition("/")[0] for each in adapter.addresses]
    return bool((adapter.switch and adapter.switch == document["switch"]) or document["address"] in addresses)


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _listens(port: int) -> bool:
    wanted = f":{port:04X} "
    tables = (Path(f"/proc/net/{name}") for name in ("tcp", "tcp6", "udp", "udp6"))
    lines = (line for table in tables if table.exists() for line in table.read_text().splitlines()[1:])
    return any(wanted in f"{line.split()[1]} " and line.split()[3] in ("0A", "07") for line in lines)


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _write_whole(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)
