"""Which code this is, and whether it stands on what it was tested with.

Engines and workers of one store must be of one version: an attempt that one of them starts is understood by all.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import metadata

from labctl.store.schema import NEWEST

TRIPLE = ("celery", "kombu", "redis")
"""Tested together: with other versions of them workers died, or fell silent, when Redis was restarted."""


@cache
def code_version() -> str:
    """The version of labctl and of the store that it works on, as messages to workers carry it: `0.1.0/0002`."""
    return f"{metadata.version('labctl')}/{NEWEST}"


def untested() -> tuple[str, ...]:
    """A sentence for each library of the triple that isn't installed in the version that labctl was tested with."""
    pins = (_PIN.match(line) for line in metadata.requires("labctl") or ())
    pinned = {pin.group(1): pin.group(2) for pin in pins if pin}
    said = []
    for name in TRIPLE:
        installed, tested = metadata.version(name), pinned.get(name, "")
        if tested and installed != tested:
            said.append(
                f"{name} {installed} is installed, but labctl was tested with {tested}: a restart of Redis may stop workers. "
                f"`make setup` installs the tested ones."
            )
    return tuple(said)


_PIN = re.compile(r"([a-z0-9_.-]+)==([^\s;]+)")
