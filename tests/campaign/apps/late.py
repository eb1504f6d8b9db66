"""labctl's worker as it must not be: it acknowledges late, with a visibility timeout of 2 s that nobody refuses."""

from __future__ import annotations

from celery.signals import celeryd_init

from workers.app import app, refuse_short_visibility

SECONDS = 2

celeryd_init.disconnect(refuse_short_visibility)
app.conf.update(
    task_acks_late=True,
    visibility_timeout=SECONDS,
    broker_transport_options=app.conf.broker_transport_options | {"visibility_timeout": SECONDS},
    result_backend_transport_options={"visibility_timeout": SECONDS},
)
