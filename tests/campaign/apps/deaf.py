"""labctl's worker as some versions of Celery make it when Redis was restarted: it lives, and takes no messages.

It is deaf while there is a file `deaf` beside its state directory.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import MethodType
from typing import Any

from celery.bootsteps import StartStopStep

from workers.app import app
from workers.consumption import OneEach

DEAF = Path(os.environ["LABCTL_STATE"]).with_name("deaf")


class Deaf(StartStopStep):
    requires = (OneEach,)

    def start(self, parent: Any) -> None:
        channel_qos = parent.task_consumer.channel.qos
        can_consume = channel_qos.can_consume
        channel_qos.can_consume = MethodType(lambda _: not DEAF.exists() and can_consume(), channel_qos)


app.steps["consumer"].add(Deaf)
