"""labctl's worker with a visibility timeout of 2 s, which it refuses."""

from __future__ import annotations

from workers.app import app

app.conf.update(broker_transport_options=app.conf.broker_transport_options | {"visibility_timeout": 2})
