"""Messages to workers. Redis is transport: a lost message costs time, never a run.

Tasks are named by string, because the control side never imports the execution side.
"""

from __future__ import annotations

from typing import Protocol

from celery import Celery
from kombu.exceptions import OperationalError

from labctl.errors import LabError
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


def queue_of(lab: Lab) -> str:
    """The queue of a lab, `site.hypervisor`, so that workers sit next to the machines that they drive."""
    kinds = sorted({host.hypervisor.value for host in lab.hosts.values()}) or ["none"]
    return f"{lab.site}.{'+'.join(kinds)}"


class CeleryDispatcher:
    """Sends over a Celery broker."""

    def __init__(self, broker: str) -> None:
        self._app = Celery("labctl", broker=broker, set_as_current=False)
        self._app.conf.update(
            task_serializer="json",
            accept_content=["json"],
            task_ignore_result=True,
            broker_connection_retry_on_startup=True,
            broker_transport_options={"socket_timeout": 10, "socket_connect_timeout": 5},
        )

    def attempt(self, lab: Lab, handle: AttemptHandle) -> None:
        """Ask for an attempt to be carried out."""
        self._send(lab, TASK_ATTEMPT, {"attempt_id": handle.id, "token": handle.token})

    def clean(self, lab: Lab, campaign_id: int) -> None:
        """Ask for the VMs of a campaign to be removed that no attempt in progress uses."""
        self._send(lab, TASK_CLEAN, {"campaign_id": campaign_id})

    def close(self) -> None:
        """Close connections to the broker."""
        self._app.close()

    def _send(self, lab: Lab, task: str, arguments: dict[str, object]) -> None:
        queue, policy = queue_of(lab), {"max_retries": 3}
        try:
            self._app.send_task(task, kwargs=arguments, queue=queue, retry=True, retry_policy=policy)
        except OperationalError as error:
            raise LabError(
                "The broker takes no messages.",
                kind="broker",
                why=str(error),
                todo="Nothing is lost: `labctl run --resume ID` goes on with the campaign.",
            ) from error
