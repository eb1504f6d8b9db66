"""How a worker takes messages: one for each slot that is free."""

from __future__ import annotations

from types import MethodType
from typing import Any

from celery.bootsteps import StartStopStep
from celery.worker import state
from celery.worker.consumer.tasks import Tasks


class OneEach(StartStopStep):  # type: ignore[misc]  # Celery has no types
    """Has the consumer take a message only while a slot is free, also after it has lost its connection.

    When a connection is lost Celery 5.6 forgets which messages it has taken and which of its children are at work, but
    attempts go on. So those that run are counted too, and no child is given a message while it carries out another one. A
    message that is not taken stays in Redis, for a worker that has a slot.
    """

    requires = (Tasks,)

    def start(self, parent: Any) -> None:  # noqa: ANN401 - Celery's consumer
        """Called whenever the consumer begins on a new connection."""
        channel_qos = parent.task_consumer.channel.qos
        within_prefetch = channel_qos.can_consume

        def can_consume(_: Any) -> bool:  # noqa: ANN401 - kombu's QoS
            taken = set(state.reserved_requests) | set(state.active_requests)
            return bool(len(taken) < parent.pool.num_processes and within_prefetch())

        channel_qos.can_consume = MethodType(can_consume, channel_qos)
        _remember_who_works(parent.pool._pool)
        _read_always(parent.connection.transport.cycle)


def _remember_who_works(pool: Any) -> None:  # noqa: ANN401 - Celery's pool of processes
    """Mark the children as busy that are: else messages are written into the pipe of one that is at work for hours."""
    working = (job._write_to for job in pool._cache.values() if job._accepted and not job.ready())
    pool._busy_workers.update(child.inqW_fd for child in working if child is not None)


def _read_always(cycle: Any) -> None:  # noqa: ANN401 - kombu's poller of the channels of a connection
    """Read from a connection whenever there is something to read.

    kombu asks first whether a message may be taken. While none may, nothing is asked of Redis, so all that there can be to
    read is the end of the connection; unread it would wake the event loop again and again, and keep a core busy beside the
    measurements for as long as all slots are.
    """

    def on_readable(fileno: int) -> None:
        channel, kind = cycle._fd_to_chan[fileno]
        channel.handlers[kind]()

    cycle.on_readable = on_readable
