"""The owner of a worker: the service (`labctl worker`, `labctl run`) that has started it, and its wishes for the end.

A worker whose owner has died ends.
"""

from __future__ import annotations

import os
import signal

from labctl.campaign.processes import has_died
from labctl.campaign.worker_files import OWNER_VARIABLE, files_of_this_worker


def owner_lives() -> bool:
    """Whether the service that started this worker still runs; true for workers that nobody owns, and while it can't be
    told."""
    return not has_died(os.environ.get(OWNER_VARIABLE, ""))


def owner_wants_an_end() -> bool:
    """Whether the owner asks for all attempts to be ended now. It says so by a file, because it also does when neither
    the store nor the broker can be used any more."""
    files = files_of_this_worker()
    return files is not None and files.end_is_wanted


def owner_wants_parking() -> bool:
    """Whether VMs may be left for the next attempt: not when nobody may come to make one."""
    files = files_of_this_worker()
    return owner_lives() and (files is None or not files.parks_no_more)


def refuse_to_work(why: str) -> None:
    """End the whole worker, because it can't work here at all, and tell the owner why."""
    files = files_of_this_worker()
    if files is not None:
        files.refuse(why)
        os.kill(os.getppid(), signal.SIGTERM)
