"""How long simulated things take, and how fast simulated links are. A world may have figures of its own in a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

FILE = "figures.json"


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Seconds, bit/s and shares. The seconds are about those that plans reckon with (`labctl.plan.estimate.Costs`)."""

    create: float = 0.5
    """From asking a host for a VM until it has one."""
    boot: float = 3.5
    """From then until the guest answers, give or take a tenth."""
    command: float = 0.25
    """One command inside an endpoint."""
    connect: float = 0.25
    """From the start of a client until data flows."""
    destroy: float = 0.5
    transfer: float = 1.0
    """What share of the asked seconds passes in a transfer, whose output tells of all of them."""
    wire: float = 9.41e9
    """What the network between two hosts carries, in bit/s."""
    migration: float = 8e9
    """What a migration moves when it is not limited, in bit/s."""
    dirty: float = 1e9
    """What a VM that is sending or receiving writes into its memory anew, in bit/s."""
    between_hosts: float = 0.04
    """Standard deviation of one host's figures to another's, as a share; so are the next two."""
    between_boots: float = 0.03
    between_transfers: float = 0.01
    drift: float = 0.0
    """By how much all figures rise and fall again in the course of a day, as a share."""

    @classmethod
    def instant(cls) -> Figures:
        """Nothing takes any time, except what is asked for: transfers."""
        return cls(create=0.0, boot=0.0, command=0.0, connect=0.0, destroy=0.0)


def read_figures(directory: Path) -> Figures:
    """The figures of a world; the ordinary ones when it has no file of its own."""
    return _figures(content_of(f"{directory}/{FILE}"))


def content_of(path: str) -> bytes:
    """What is in a file of a world; nothing when it isn't there. Asked for at the beginning of every attempt."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs more than the file
            return file.read()
    except FileNotFoundError:
        return b""


@lru_cache(maxsize=8)
def _figures(content: bytes) -> Figures:
    return Figures(**json.loads(content)) if content else Figures()


def write_figures(directory: Path, figures: Figures) -> None:
    """Give a world figures of its own."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / FILE).write_text(json.dumps(asdict(figures), indent=1))
