"""The fixed times of the engine, shortened: a night of these tests takes seconds, and ten minutes of patience are one.

What is in `labctl.model.patience` is shortened by its environment variable, as anybody may. The rest are constants, whose
proportions are kept: what is longer than something else in the field is longer here.
"""

from __future__ import annotations

import inspect
import json
from importlib import import_module

from kombu import Connection

PATIENCE = json.dumps(
    {
        "beat": 0.2,
        "silent": 2.0,
        "fresh": 0.4,
        "unclaimed": 3.0,
        "clean_again": 0.6,
        "check_first": 0.6,
        "check_longest": 2.0,
        "checks": 3,
    }
)
"""For `LABCTL_PATIENCE`."""

CALL_SECONDS = 1.0
"""Deadline of an ordinary call of a simulated host."""

_TIMES = {
    "labctl.campaign.service:LOOK_SECONDS": 0.2,
    "labctl.campaign.service:REVIEW_SECONDS": 0.6,
    "labctl.campaign.service:_STORE_PAUSE_SECONDS": 0.3,
    "labctl.campaign.service:_PARKED_SECONDS": 5.0,
    "labctl.campaign.session:START_SECONDS": 20.0,
    "labctl.campaign.session:LAST_SECONDS": 12.0,
    "labctl.campaign.session:_LOOK_SECONDS": 0.2,
    "labctl.campaign.session:_SILENT_SECONDS": 1.5,
    "labctl.campaign.supervisor:_ILL_LOOK_SECONDS": 0.2,
    "labctl.campaign.supervisor:_STEADY_SECONDS": 3.0,
    "labctl.campaign.supervisor:_LONGEST_PAUSE": 1.0,
    "labctl.campaign.registration:_BEAT_SECONDS": 0.5,
    "labctl.campaign.registration:_GONE_SECONDS": 5.0,
    "labctl.campaign.liveness:_AGAIN_AT_MOST": 3.0,
    "labctl.campaign.housekeeping:LOOK_SECONDS": 0.5,
    "labctl.store.engines:PATIENCE_SECONDS": 2.0,
    "workers.main_process:LOOK_SECONDS": 0.2,
    "workers.process:_LOOK_SECONDS": 0.2,
    "workers.transferring:_SPARE_SECONDS": 0.5,
    "workers.channels.simulated:_CALL_SECONDS": CALL_SECONDS,
}
TASK_TIMES = {
    "workers.tasks:PATIENCE_SECONDS": 4.0,
    "workers.tasks:RETRY_SECONDS": 0.2,
}
"""Of the module that only Celery's process may import, because it makes the app for the broker of its environment."""
PERSON_TIMES = {"labctl.store.engines:PATIENCE_SECONDS": 0.2}
"""Of the process that conducts a night: it has other things to do while the store is locked, and asks again."""


def shorten(times: dict[str, float] | None = None) -> None:
    """Make the times of this process short ones. Raises `AttributeError` for one that is not there any more."""
    for where, seconds in (times or _TIMES).items():
        module, _, name = where.partition(":")
        found = import_module(module)
        getattr(found, name)
        setattr(found, name, seconds)


def reconnect_quickly() -> None:
    """Have this process try again sooner to reach a Redis that is gone: kombu waits 2, 4, ... 30 s."""
    ensure = Connection._ensure_connection
    names = inspect.getfullargspec(ensure).args[-len(ensure.__defaults__) :]
    shorter = {"interval_start": 0.2, "interval_step": 0.2, "interval_max": 1.0}
    ensure.__defaults__ = tuple(
        shorter.get(name, value) for name, value in zip(names, ensure.__defaults__, strict=True)
    )
