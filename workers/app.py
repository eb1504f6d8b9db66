"""The Celery app and its settings, nothing else.

Why the settings are what they are. A transfer may take hours, the database is the truth, and Redis may be gone at any
moment:

- **Early acknowledgement** (`task_acks_late` off). Acknowledged late, a message whose attempt takes longer than the
  visibility timeout is delivered again and again beside it, and with some versions a worker that loses Redis in
  mid-attempt dies of it. Acknowledged early, a message can only be lost; then its attempt is given up as unclaimed after a
  minute and its run goes back. Should one ever come twice all the same, `Store.claim` refuses it.
- **Visibility timeout** of two weeks, in all three places that know one, because of all apps on a broker the shortest wins.
  It only ever matters between a delivery and its acknowledgement, which are milliseconds apart. A worker that finds a
  smaller one than the longest step refuses to start.
- **`task_reject_on_worker_lost` off.** A lost child's message is not delivered again without limit: the attempt is lost in
  the store, counted as a try, and its run is tried again as the outcome policy says.
- **No attempt waits behind another**: `worker_prefetch_multiplier` is 1, and `consumption.OneEach` takes a message only
  while a slot is free. Celery's own `worker_disable_prefetch` forgets what is running whenever it reconnects.
- **Results off**: no backend at all. A result is written to the store, under the attempt's token.
- **No countdown, ETA, retry, chord, group**: what waits, waits in the store.
- **No time limits of Celery**: every step has a deadline of its own, and a killed child could not clean its VMs.
- **Prefork**, started by `fork`: a crash of a C library costs one attempt. Nothing that is connected is made before the fork:
  the store and libvirt are opened by the child that uses them, and both refuse to be used in another process.
  Children outlive a main process that died, until their attempts have ended (`process.py`).
- **Reconnecting for ever** (`broker_connection_max_retries` None), with keepalive and time limits on the connection, and
  without cancelling what runs.
- **Soft shutdown**: on SIGTERM no message is taken any more, and attempts may finish; the service that started the worker
  says when they must end at their next step (`main_process.py`). SIGQUIT, from somebody else, gives them a minute.
- **No remote control, events, gossip, mingle, heartbeats** of Celery's: they are traffic, keys in Redis and ways to lose the
  connection, and what they tell is in the store.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from celery import Celery
from celery.signals import celeryd_init

from labctl.campaign.broker import LONGEST_STEP_SECONDS, VARIABLE, broker_of
from workers.consumption import OneEach

app = Celery("labctl-workers")
app.conf.update(
    broker_of(os.environ.get(VARIABLE) or "redis://localhost:6379/0").settings(),
    imports=("workers.tasks", "workers.main_process", "workers.process"),
    task_serializer="json",
    result_serializer="json",
    accept_content=["json"],
    result_backend=None,
    task_ignore_result=True,
    task_acks_late=False,
    task_reject_on_worker_lost=False,
    task_create_missing_queues=True,
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
    worker_proc_alive_timeout=30,
    worker_lost_wait=1.0,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    worker_soft_shutdown_timeout=60,
    broker_connection_retry=True,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
)
app.steps["consumer"].add(OneEach)


@celeryd_init.connect  # type: ignore[untyped-decorator]
def refuse_short_visibility(conf: Any, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    """Don't start a worker whose messages could be delivered twice because a step takes long. Exits, because Celery goes on
    after any other error of a signal's handler."""
    found = {
        "broker_transport_options": conf.broker_transport_options.get("visibility_timeout"),
        "result_backend_transport_options": conf.result_backend_transport_options.get("visibility_timeout"),
        "visibility_timeout": conf.get("visibility_timeout"),
    }
    for place, seconds in found.items():
        if not seconds or seconds < LONGEST_STEP_SECONDS:
            sys.exit(
                f"The visibility timeout in `{place}` is {seconds} s, less than the longest step of {LONGEST_STEP_SECONDS} s: "
                f"Redis would deliver the message of a long transfer a second time."
            )
