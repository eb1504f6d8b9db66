"""`labctl worker` with another Celery app: `python -m tests.campaign.apps.serve APP STATE`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from labctl.campaign.service import Asked, serve
from labctl.campaign.serving import Serving
from labctl.errors import LabctlError
from labctl.store import open_store
from labctl.store.database import sqlite_url

app, state = sys.argv[1], Path(sys.argv[2])
asked = Asked()
signal.signal(signal.SIGTERM, lambda *_: asked.end.set())
store = open_store(state)
try:
    serving = Serving(state=state, store_url=sqlite_url(state), app=app)
    serve(store, serving, asked=asked, say=lambda text: print(text, flush=True), write_report=lambda _: "")
except LabctlError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
finally:
    store.close()
