"""Celery with nothing around it: what a message costs that only has to be delivered."""

from __future__ import annotations

import os

from celery import Celery

app = Celery("bare", broker=os.environ.get("LABCTL_BROKER"))
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)


@app.task(name="bare.nothing")  # type: ignore[untyped-decorator]
def nothing(*, attempt_id: int, token: str, version: str) -> None:
    """Take a message of the size of labctl's."""
