"""What a worker process has once, made lazily in the process that uses it: never before a fork. And how it ends."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from importlib import import_module
from typing import Any

from celery.signals import task_postrun, task_prerun, worker_process_init

from labctl.errors import LabError
from labctl.store import Store
from labctl.store.database import open_database

_stores: dict[int, Store] = {}
_at_work = threading.Event()
_LOOK_SECONDS = 2.0
_READ_TENTHS = 10
_PR_SET_PDEATHSIG = 1


def process_store() -> Store:
    """The store that `LABCTL_STORE` names, opened in this very process. Raises `LabError` when it can't be worked on here."""
    pid = os.getpid()
    if pid not in _stores:
        url = os.environ.get("LABCTL_STORE")
        if not url:
            raise LabError(
                "The worker was not told where the store is.",
                kind="store",
                todo="Start it with `labctl worker`, or set LABCTL_STORE to the database URL.",
            )
        store = Store(open_database(url))
        store.work_here()
        _stores.clear()
        _stores[pid] = store
    return _stores[pid]


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _outlive_the_main_process(**_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    """Celery has its children killed when their main process dies. An attempt needs it for nothing: it ends in its own
    time and hands its result to the store. So the children live on, each until its attempt has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)
    threading.Thread(target=_end_when_alone, args=(os.getppid(),), name="alone", daemon=True).start()


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _end_soon(**_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    """A child that ends waits until its main process has read how its tasks ended, which one that ends may never do: for
    half a minute. All that matters is in the store, so a second is enough."""
    setattr(import_module("billiard.pool"), "GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT", _READ_TENTHS)  # noqa: B010


def _end_when_alone(main: int) -> None:
    while os.getppid() == main or _at_work.is_set():
        time.sleep(_LOOK_SECONDS)
    os._exit(os.EX_OK)


@task_prerun.connect  # type: ignore[untyped-decorator]
def _begin_work(**_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    _at_work.set()


@task_postrun.connect  # type: ignore[untyped-decorator]
def _end_work(**_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    _at_work.clear()
