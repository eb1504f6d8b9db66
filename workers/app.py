"""The Celery app and its settings, nothing else.

Why the settings are what they are: a transfer may take hours, and the database is the truth.

- Messages are acknowledged early (`task_acks_late` off). A late acknowledgement would have Redis deliver a message again
  once the visibility timeout is over although its attempt still runs; here a lost message only costs the time until the
  attempt is given up as unclaimed, and the store refuses a second claim anyway.
- `worker_prefetch_multiplier` 1 and `worker_disable_prefetch`: no attempt waits, with its hosts leased, behind another.
- Results are ignored: results are written to the store, under the attempt's token.
- No time limits of Celery: every step has a deadline of its own, and a killed child could not clean its VMs.
- Prefork pool; connections (libvirt, database) are made in the child that uses them, never before the fork.
- The connection to Redis is retried for ever, with health checks and keepalive.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import worker_ready
from celery.worker import state

from workers.owner import owner_lives, owner_wants_an_end

VISIBILITY_SECONDS = 24 * 3600

app = Celery("labctl-workers", broker=os.environ.get("LABCTL_BROKER", "redis://localhost:6379/0"))
app.conf.update(
    imports=("workers.tasks",),
    task_serializer="json",
    result_serializer="json",
    accept_content=["json"],
    task_ignore_result=True,
    task_acks_late=False,
    task_reject_on_worker_lost=False,
    task_create_missing_queues=True,
    worker_prefetch_multiplier=1,
    worker_disable_prefetch=True,
    worker_hijack_root_logger=False,
    worker_send_task_events=False,
    worker_proc_alive_timeout=30,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={
        "visibility_timeout": VISIBILITY_SECONDS,
        "health_check_interval": 10,
        "socket_keepalive": True,
    },
    result_backend_transport_options={"visibility_timeout": VISIBILITY_SECONDS},
    visibility_timeout=VISIBILITY_SECONDS,
)


OWNER_LOOK_SECONDS = 2.0


@worker_ready.connect  # type: ignore[untyped-decorator]
def _tell_owner(**_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    """Tell the command that started this worker for itself that it consumes, and end when that command is gone."""
    ready = os.environ.get("LABCTL_READY")
    if ready:
        Path(ready).touch()
    if os.environ.get("LABCTL_OWNER"):
        threading.Thread(target=_end_with_owner, name="owner", daemon=True).start()


def _end_with_owner() -> None:
    """End warmly when the owner is gone or asks for it: attempts in progress hear of it by their heartbeat and clean up.

    Celery's own handler of SIGTERM prints a line first, and when that fails, as it does on a full disk, forgets to end.
    So the wish is noted here, and the signal only wakes the main loop up.
    """
    while owner_lives() and not owner_wants_an_end():
        time.sleep(OWNER_LOOK_SECONDS)
    state.should_stop = os.EX_OK
    if not owner_lives():
        shutil.rmtree(Path(os.environ["LABCTL_READY"]).parent, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
