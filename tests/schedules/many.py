"""Many nights, several at a time, each with a fork server of its own."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from tests.schedules.draw import draw
from tests.schedules.forks import ForkServer, kill_descendants
from tests.schedules.happen import happen
from tests.schedules.night import Night
from tests.schedules.programs import import_all, service, worker
from tests.schedules.shortened import PERSON_TIMES, shorten
from tests.schedules.verdict import FILE, Verdict, judge, read_verdict

NIGHT_SECONDS = 300.0
"""A night that has come to no verdict after so long is ended."""
_PR_SET_CHILD_SUBREAPER = 36


def nights(seeds: Iterable[int], *, at_once: int = 2, keep: Path | None = None) -> Iterator[Verdict]:
    """The verdicts of the nights of these seeds, as they come. Directories of nights that broke a promise are moved to
    `keep`. This process must have no threads."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    import_all()
    gc.collect()
    gc.freeze()
    waiting, running = list(seeds)[::-1], dict[int, tuple[int, Path, float]]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                seed = waiting.pop()
                directory = Path(tempfile.mkdtemp(prefix="labctl-night-"))
                running[_start(seed, directory)] = seed, directory, time.monotonic()
            for pid in _ended(running):
                seed, directory, began = running.pop(pid)
                verdict = read_verdict(directory) or _none(seed, directory, time.monotonic() - began)
                if verdict.broken and keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    shutil.rmtree(keep / f"seed-{seed}", ignore_errors=True)
                    shutil.copytree(directory, keep / f"seed-{seed}", ignore=shutil.ignore_patterns("*.sock", "forks"))
                shutil.rmtree(directory, ignore_errors=True)
                yield verdict
            time.sleep(0.02)
    finally:
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        kill_descendants(os.getpid())
        for _, directory, _ in running.values():
            shutil.rmtree(directory, ignore_errors=True)


def _start(seed: int, directory: Path) -> int:
    pid = os.fork()
    if pid == 0:
        _serve(seed, directory)
    return pid


def _serve(seed: int, directory: Path) -> NoReturn:
    """In the process of a fork server: until the night is over, and nothing is left of it."""
    try:
        os.setsid()
        server = ForkServer(
            directory, {"night": lambda _: _night(seed, directory), "service": service, "worker": worker}
        )
        first = server.fork(
            "night", [], environment=os.environ, directory=str(directory), outputs=(_log(directory), _log(directory))
        )
        server.serve_until_exit_of(first)
        kill_descendants(os.getpid())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _night(seed: int, directory: Path) -> None:
    began = time.monotonic()
    shorten(PERSON_TIMES)
    night = Night(draw(seed), directory, happen)
    try:
        night.carry_out()
    except Exception:
        night.broken.append(f"the night itself failed: {traceback.format_exc()}")
    night.wait_until("all processes have ended", lambda: not night.crew.left(), seconds=10.0)
    if night.broken:
        night.crew.tell()
        time.sleep(0.5)
    verdict = judge(night, seconds=time.monotonic() - began)
    (directory / FILE).write_text(verdict.to_text())


def _log(directory: Path) -> int:
    return os.open(directory / "night.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _ended(running: dict[int, tuple[int, Path, float]]) -> list[int]:
    for pid, (_, _, began) in running.items():
        if time.monotonic() - began > NIGHT_SECONDS:
            kill_descendants(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    found = []
    with suppress(ChildProcessError):
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid in running:
                found.append(pid)
    return found


def _none(seed: int, directory: Path, seconds: float) -> Verdict:
    log = directory / "night.log"
    said = log.read_text(errors="replace")[-3000:] if log.exists() else ""
    return Verdict(
        seed=seed, seconds=seconds, broken=(f"it came to no verdict: {said}",), met={"nights": 1}, timeline=()
    )  # fmt: skip
