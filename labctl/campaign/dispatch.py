"""Messages to workers. Redis is transport: a lost message costs time, never a run.

Tasks are named by string, because the control side never imports the execution side. A message holds the id and the token
of an attempt and the version of the code that sent it, a few hundred bytes; all else is in the store.
"""

from __future__ import annotations

from typing import Protocol

import redis
from celery import Celery
from kombu.exceptions import OperationalError
from redis import exceptions

from labctl.campaign.broker import Broker, trouble, waiting_among
from labctl.campaign.queues import queue_of
from labctl.campaign.versions import code_version
from labctl.model.lab import Lab
from labctl.store import AttemptHandle

TASK_ATTEMPT = "workers.attempt"
TASK_CLEAN = "workers.clean"


class Dispatcher(Protocol):
    """What sends work to the workers of a lab. Raises `LabError` (`broker`) when it can't be sent."""

    def attempt(self, lab: Lab, handle: AttemptHandle) -> None:
        """Ask for an attempt to be carried out."""

    def clean(self, lab: Lab, campaign_id: int) -> None:
        """Ask for the VMs of a campaign to be removed that no attempt in progress uses."""


class CeleryDispatcher:
    """Sends over a Celery broker."""

    def __init__(self, broker: Broker) -> None:
        self.sent: set[int] = set()
        """Ids of the attempts that were sent; whoever watches over them forgets those that were claimed."""
        self._broker = broker
        self._version = code_version()
        self._app = Celery("labctl", set_as_current=False)
        self._app.conf.update(
            broker.settings(),
            task_serializer="json",
            accept_content=["json"],
            task_ignore_result=True,
            broker_connection_retry_on_startup=True,
        )
        self._app.conf.broker_transport_options = broker.settings()["broker_transport_options"] | {"socket_timeout": 5}

    def attempt(self, lab: Lab, handle: AttemptHandle) -> None:
        """Ask for an attempt to be carried out."""
        arguments = {"attempt_id": handle.id, "token": handle.token, "version": self._version}
        self.sent.add(handle.id)
        self._send(lab, TASK_ATTEMPT, arguments, name=message_name(handle.id))

    def clean(self, lab: Lab, campaign_id: int) -> None:
        """Ask for the VMs of a campaign to be removed that no attempt in progress uses."""
        self._send(lab, TASK_CLEAN, {"campaign_id": campaign_id})

    def close(self) -> None:
        """Close connections to the broker."""
        self._app.close()

    def _send(self, lab: Lab, task: str, arguments: dict[str, object], *, name: str | None = None) -> None:
        try:
            self._app.send_task(
                task, kwargs=arguments, queue=queue_of(lab), task_id=name, argsrepr="", kwargsrepr="",
                retry=True, retry_policy={"max_retries": 2, "interval_start": 0.1, "interval_step": 0.2},
            )  # fmt: skip
        except (OperationalError, exceptions.RedisError, OSError) as error:
            raise trouble(self._broker, error) from error


def message_name(attempt_id: int) -> str:
    """What the message of an attempt is called."""
    return f"attempt-{attempt_id}"


def still_waiting(client: redis.Redis, queues: tuple[str, ...], attempt_ids: tuple[int, ...]) -> frozenset[int]:
    """Those of the attempts whose messages wait in one of the queues: nothing is lost, all slots are busy."""
    return waiting_among(client, queues, {message_name(attempt_id): attempt_id for attempt_id in attempt_ids})
