"""The owner of a worker: the service (`labctl worker`, `labctl run`) that has started it and looks after it.

The owner hears the worker's pulse, says what it is to serve, and may ask for an end. A worker whose owner has died ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

from celery.signals import worker_ready
from celery.worker import state

from labctl.campaign.worker_files import (
    DIRECTORY_VARIABLE,
    OWNER_VARIABLE,
    Pulse,
    Wanted,
    WorkerFiles,
    files_of_this_worker,
)

LOOK_SECONDS = 1.0


def owner_lives() -> bool:
    """Whether the service that started this worker still runs; true for workers that nobody owns."""
    owner = os.environ.get(OWNER_VARIABLE)
    return not owner or _state(owner) not in ("", "Z", "X")


def owner_wants_an_end() -> bool:
    """Whether the owner asks for all attempts to be ended now. It says so by a file, because it also does when neither
    the store nor the broker can be used any more."""
    files = files_of_this_worker()
    return files is not None and files.end_is_wanted


def owner_wants_parking() -> bool:
    """Whether VMs may be left for the next attempt: not when nobody may come to make one."""
    files = files_of_this_worker()
    return owner_lives() and (files is None or not files.parks_no_more)


def refuse_to_work(why: str) -> None:
    """End the whole worker, because it can't work here at all, and tell the owner why."""
    files = files_of_this_worker()
    if files is not None:
        files.refuse(why)
        os.kill(os.getppid(), signal.SIGTERM)


@worker_ready.connect  # type: ignore[untyped-decorator]
def _serve_owner(sender: Any, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    """In the main process, once it consumes: look after the owner's wishes in a thread."""
    files = files_of_this_worker()
    if files is not None:
        files.beat(Pulse(beats=0, busy=0, taken=0))
        threading.Thread(target=_look_after, args=(sender, files), name="owner", daemon=True).start()


def _look_after(consumer: Any, files: WorkerFiles) -> None:  # noqa: ANN401 - Celery's consumer
    """Give a pulse and hear what is wanted, until an end is wanted or the owner is gone; then end warmly: attempts in
    progress hear of it by their heartbeats and clean up.

    Celery's own handler of SIGTERM prints a line first, and when that fails, as it does on a full disk, forgets to end.
    So the wish is noted here, and the signal only wakes the main loop up.
    """
    heard, beats = files.wanted(), 0
    while owner_lives() and not files.takes_no_more:
        beats += 1
        files.beat(Pulse(beats=beats, busy=len(state.active_requests), taken=state.all_total_count[0]))
        wanted = files.wanted()
        if wanted is not None and wanted != heard:
            heard = wanted
            consumer.call_soon(_change, consumer, wanted)
        time.sleep(LOOK_SECONDS)
    state.should_stop = os.EX_OK
    if not owner_lives():
        shutil.rmtree(Path(os.environ[DIRECTORY_VARIABLE]).parent, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)


def _change(consumer: Any, wanted: Wanted) -> None:  # noqa: ANN401 - Celery's consumer
    """In the event loop: serve further queues, with further slots. Nothing is ever taken away from a worker. One that ends
    has no pool any more, and is still asked: what waits for the loop is done when the loop is closed."""
    if state.should_stop is not None:
        return
    for queue in wanted.queues:
        if queue not in consumer.app.amqp.queues.consume_from:
            consumer.add_task_queue(queue)
    more = wanted.slots - consumer.pool.num_processes
    if more > 0:
        consumer.pool.grow(more)


def _state(pid: str) -> str:
    """The state of a process as proc(5) has it, `Z` being one that is dead and not yet reaped; empty without one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
