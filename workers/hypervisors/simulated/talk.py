"""One client and its server, with what moved between them: what both tools' outputs are printed from."""

from __future__ import annotations

from dataclasses import dataclass

from workers.hypervisors.simulated.asked import Asked
from workers.hypervisors.simulated.traffic import Stretch, Traffic


@dataclass(frozen=True, kw_only=True)
class Talk:
    """A transfer as both sides know it. `moved` is what the receiver got; `lost` the share of datagrams that it did not
    get. `started` is the wall time of the client's start, `pid` a number for both processes."""

    asked: Asked
    client: str
    server: str
    port: int
    """Of the client's first connection; the others follow."""
    moved: Traffic
    lost: float
    started: float
    pid: int

    @property
    def client_sends(self) -> bool:
        """Whether data flows from the client to the server."""
        return not self.asked.reverse

    def streams(self, stretch: Stretch) -> tuple[Stretch, ...]:
        """The stretch divided among the connections, to the byte."""
        count = self.asked.streams
        if count == 1:
            return (stretch,)
        each, rest = divmod(stretch.bytes, count)
        again, more = divmod(stretch.retransmits, count)
        return tuple(
            Stretch(
                start=stretch.start,
                end=stretch.end,
                bytes=each + (number < rest),
                retransmits=again + (number < more),
            )
            for number in range(count)
        )

    @property
    def whole(self) -> Stretch:
        """All of it as one stretch."""
        moved = self.moved
        return Stretch(start=0.0, end=moved.seconds, bytes=moved.bytes, retransmits=moved.retransmits)


def bits_per_second(stretch: Stretch) -> float:
    """The rate of a stretch; 0 for one of no length."""
    seconds = stretch.end - stretch.start
    return stretch.bytes * 8 / seconds if seconds > 0 else 0.0
