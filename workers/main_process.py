"""The main process of a worker: gives its owner a pulse, serves what the owner wants, and ends when it is told to."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
import time
from contextlib import suppress
from typing import Any

from celery.signals import worker_init, worker_ready, worker_shutdown
from celery.worker import state

from labctl.campaign.worker_files import Pulse, Wanted, WorkerFiles, files_of_this_worker
from workers.owner import owner_lives

LOOK_SECONDS = 1.0


@worker_init.connect  # type: ignore[untyped-decorator]
def _watch_owner(**_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    """Before it has reached the broker: which may take for ever, when the broker has died together with the owner."""
    files = files_of_this_worker()
    if files is not None:
        threading.Thread(target=_end_in_time, args=(files,), name="owner", daemon=True).start()


@worker_ready.connect  # type: ignore[untyped-decorator]
def _serve_owner(sender: Any, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    """Once it consumes: look after the owner's wishes in a thread."""
    files = files_of_this_worker()
    if files is not None:
        files.beat(Pulse(beats=0, busy=0, taken=0))
        threading.Thread(target=_look_after, args=(sender, files), name="wishes", daemon=True).start()


@worker_shutdown.connect  # type: ignore[untyped-decorator]
def _end_at_once(**_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    """Its attempts have ended and its connections are closed: all that would follow is Celery's pool, which waits some
    seconds for children that are gone."""
    logging.shutdown()
    os._exit(os.EX_OK)


def _end_in_time(files: WorkerFiles) -> None:
    """Wait until an end is wanted or the owner is gone; then end warmly: attempts in progress hear of it by their heartbeats
    and clean up.

    Celery's own handler of SIGTERM prints a line first, and when that fails, as it does on a full disk, forgets to end.
    So the wish is noted here, and the signal only wakes the main loop up.
    """
    while owner_lives() and not files.takes_no_more:
        time.sleep(LOOK_SECONDS)
    state.should_stop = os.EX_OK
    if not owner_lives():
        shutil.rmtree(files.directory.parent, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)


def _look_after(consumer: Any, files: WorkerFiles) -> None:  # noqa: ANN401 - Celery's consumer
    """Give a pulse and hear what is wanted, until an end is wanted."""
    heard, beats = files.wanted(), 0
    while owner_lives() and not files.takes_no_more:
        beats += 1
        files.beat(Pulse(beats=beats, busy=len(state.active_requests), taken=state.all_total_count[0]))
        wanted = files.wanted()
        if wanted is not None and wanted != heard:
            heard = wanted
            consumer.call_soon(_change, consumer, wanted)
        time.sleep(LOOK_SECONDS)


def _change(consumer: Any, wanted: Wanted) -> None:  # noqa: ANN401 - Celery's consumer
    """In the event loop: serve further queues, with further slots. Nothing is ever taken away from a worker. One that ends
    has no pool any more, and is still asked: what waits for the loop is done when the loop is closed."""
    if state.should_stop is not None:
        return
    for queue in wanted.queues:
        if queue not in consumer.app.amqp.queues.consume_from:
            # Without a connection it is remembered: whoever connects anew takes from all queues that are known.
            with suppress(*consumer.connection_errors):
                consumer.add_task_queue(queue)
    more = wanted.slots - consumer.pool.num_processes
    if more > 0:
        consumer.pool.grow(more)
