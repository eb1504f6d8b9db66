"""Which machine this is, told robustly: names of machines may be equal, and containers come and go."""

from __future__ import annotations

import hashlib
import hmac
import json
import platform
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

_ID_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")
_MULTICAST = 1 << 40
"""Set in a node number that Python made up because it found no network adapter (RFC 4122, 4.5)."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine: `id` outlives a restart of it, `boot` is one from its start to its end, also in containers on it. Either
    is empty when it can't be told."""

    id: str
    boot: str
    name: str
    """For people."""

    def is_also(self, other: Machine) -> bool:
        """Whether both are one machine, as far as can be told."""
        if self.boot and self.boot == other.boot:
            return True
        return not self.id or not other.id or self.id == other.id

    def to_text(self) -> str:
        """For the store."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: str) -> Machine:
        """What `to_text` wrote."""
        return Machine(**json.loads(text))


def this_machine() -> Machine:
    """The machine that this process runs on."""
    return Machine(id=_id(), boot=_first_line(_BOOT_FILE), name=platform.node())


def _id() -> str:
    """Machine ids are confidential (machine-id(5)), so only what can't be turned back is stored."""
    found = next(filter(None, map(_first_line, _ID_FILES)), "")
    if not found:
        node = uuid.getnode()
        found = "" if node & _MULTICAST else f"{node:012x}"
    return hmac.new(found.encode(), b"labctl", hashlib.sha256).hexdigest()[:32] if found else ""


def _first_line(path: Path) -> str:
    try:
        return path.read_text().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError):
        return ""
