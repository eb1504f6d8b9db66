"""labctl's worker as it must not be: it acknowledges late, with a visibility timeout of 2 s that nobody refuses."""

from __future__ import annotations

from functools import partialmethod

from celery.signals import celeryd_init
from kombu.transport.redis import QoS

from workers.app import app, refuse_short_visibility

SECONDS = 2

celeryd_init.disconnect(refuse_short_visibility)
app.conf.update(
    task_acks_late=True,
    visibility_timeout=SECONDS,
    broker_transport_options=app.conf.broker_transport_options | {"visibility_timeout": SECONDS},
    result_backend_transport_options={"visibility_timeout": SECONDS},
)

# Messages to be delivered again are looked for every 10 s, not every 100 s.
QoS.restore_visible = partialmethod(QoS.restore_visible, interval=1)
