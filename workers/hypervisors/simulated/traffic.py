"""What one transfer moves: the bytes of each of its intervals, with a VM migrating in the middle or not."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from workers.hypervisors.simulated.lines import Move

_UNEVEN = 0.02
"""Standard deviation from one interval of a transfer to the next."""
_DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """What moved in one interval; seconds by the tool's clock."""

    start: float
    end: float
    bytes: int
    retransmits: int = 0


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What one transfer moved. `lost_at` is when its connection was lost, by the tool's clock; None: it was not."""

    stretches: tuple[Stretch, ...]
    lost_at: float | None = None

    @property
    def seconds(self) -> float:
        """From the first byte to the last."""
        return self.stretches[-1].end if self.stretches else 0.0

    @property
    def bytes(self) -> int:
        """All of it."""
        return sum(one.bytes for one in self.stretches)

    @property
    def retransmits(self) -> int:
        """Segments that were sent again."""
        return sum(one.retransmits for one in self.stretches)


def traffic(
    *,
    zero: float,
    seconds: float,
    interval: float,
    rate_at: Callable[[float], float],
    moves: tuple[Move, ...],
    seed: str,
    noise: float,
    drift: float,
    lost_at: float | None,
) -> Traffic:
    """What a transfer moves whose clock shows 0 at `zero` seconds of `labctl.clock.monotonic`.

    `rate_at` gives the rate of the path at a moment, in bit/s, as far as placement decides it. The same seed gives the
    same noise.
    """
    chance = random.Random(seed)  # noqa: S311 - noise, not a secret
    level = max(0.2, chance.gauss(1.0, noise)) * (1 + drift * math.sin(2 * math.pi * zero / _DAY))
    last = seconds if lost_at is None else lost_at
    turns = sorted({turn - zero for move in moves for turn in move.turns})
    stretches: list[Stretch] = []
    start = 0.0
    for number in itertools.count(1):
        if start >= last - 1e-9:
            break
        end = min(number * interval, last)
        edges = [start, *(turn for turn in turns if start < turn < end), end]
        bits = 0.0
        for here, there in itertools.pairwise(edges):
            moment = zero + (here + there) / 2
            share = math.prod(move.share_at(moment) for move in moves)
            bits += (there - here) * share * rate_at(moment)
        uneven = level * max(0.0, chance.gauss(1.0, _UNEVEN if noise else 0.0))
        again = chance.randrange(3) if len(edges) == 2 else 20 + chance.randrange(40)
        stretches.append(Stretch(start=start, end=end, bytes=int(bits * uneven / 8), retransmits=again))
        start = end
    return Traffic(stretches=tuple(stretches), lost_at=lost_at)
