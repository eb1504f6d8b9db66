"""Processes for tests of what several do to one store at once. They are forked from a server that has imported it all."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labctl.store import Store, open_store

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.store.processes", "tests.store.steps"])
_PATIENCE = 200.0


def at_once(work: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Call it with each of these arguments, each in a process of its own and all at the same time. What they returned."""
    answers: multiprocessing.Queue[tuple[int, Any]] = _CONTEXT.Queue()
    together = _CONTEXT.Barrier(len(calls))
    processes = [
        _CONTEXT.Process(target=_carry_out, args=(work, arguments, at, together, answers))
        for at, arguments in enumerate(calls)
    ]
    for process in processes:
        process.start()
    try:
        found = dict(answers.get(timeout=_PATIENCE) for _ in processes)
        for process in processes:
            process.join(_PATIENCE)
    finally:
        for process in processes:
            process.kill()
    failed = [answer for answer in found.values() if isinstance(answer, BaseException)]
    assert not failed, f"{len(failed)} of {len(calls)} processes failed, one of them with: {failed[0]!r}"
    return [found[at] for at in range(len(calls))]


def _carry_out(
    work: Callable[..., Any], arguments: tuple[Any, ...], at: int, together: Any, answers: multiprocessing.Queue[Any]
) -> None:
    together.wait(_PATIENCE)
    try:
        answers.put((at, work(*arguments)))
    except BaseException as error:
        answers.put((at, RuntimeError(f"{type(error).__name__}: {error}")))


def opened(url: str) -> Store:
    """The store at a URL, opened in this process."""
    return open_store(Path(), url=url)
