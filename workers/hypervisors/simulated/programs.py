"""Programs that run in simulated endpoints: servers and clients of transfer tools."""

from __future__ import annotations

from zlib import crc32

from labctl import clock
from workers.channels.base import ChannelError
from workers.channels.simulated import Said
from workers.hypervisors.simulated import iperf3_output, iperf_output
from workers.hypervisors.simulated.asked import Asked
from workers.hypervisors.simulated.faults import FaultKind
from workers.hypervisors.simulated.lines import Listener, Move, Side
from workers.hypervisors.simulated.network import path_rate
from workers.hypervisors.simulated.talk import Talk
from workers.hypervisors.simulated.traffic import Traffic, traffic
from workers.hypervisors.simulated.world import World

_LEAST_LOSS = 0.0001
"""The share of datagrams that are lost on a path that could carry more."""
_FIRST_PORT = 32_768


class Other:
    """A program that the model knows nothing of: it is there until its lifetime is over, and prints nothing."""

    pid = 4000

    def __init__(self, ends: float) -> None:
        self._ends = ends

    def ends(self) -> float | None:
        """When its lifetime is over."""
        return self._ends

    def said(self) -> Said:
        """Nothing."""
        return Said()

    def kill(self) -> None:
        """It ends now."""
        self._ends = min(self._ends, clock.monotonic())


class Server:
    """A server of a transfer tool: it serves one client and ends with it.

    That is so for iperf 2 too, whose real server serves on: waiting half a second for nothing after every transfer would
    only cost time.
    """

    def __init__(self, world: World, side: Side, order: Asked, port: int) -> None:
        self._world = world
        self._address = side.address
        self._listener = Listener(tool=order.tool, side=side)
        taken = world.lines.listeners.setdefault((side.address, port), self._listener)
        if taken is not self._listener:
            raise ChannelError(
                f"{order.tool} did not come up.",
                kind="command-failed",
                why=f"unable to start listener for connections: Address already in use: {port}",
            )
        self._port = port
        self.pid = _pid(side, port)

    def ends(self) -> float | None:
        """When its client has ended; None without one."""
        return self._listener.ended

    def said(self) -> Said:
        """What it has printed for its client."""
        return Said(exit_code=143 if self._listener.killed else 0, stdout=self._listener.output)

    def kill(self) -> None:
        """It ends now, and its port is free."""
        now = clock.monotonic()
        if self._listener.ended is None or self._listener.ended > now:
            self._listener.ended, self._listener.killed = now, True
        self._world.lines.listeners.pop((self._address, self._port), None)


class Client:
    """A client of a transfer tool. What it moved is reckoned up when it is asked for, with all that happened meanwhile."""

    def __init__(self, world: World, side: Side, order: Asked) -> None:
        self._world = world
        self._side = side
        self._order = order
        self._began = clock.monotonic()
        self._started = clock.now()
        self._said: Said | None = None
        self._killed: float | None = None
        self._listener = world.lines.listeners.pop((order.server, order.port), None)
        here = side.end(self._began).host
        self._zero = self._began + world.figures.connect * world.slowness(here)
        self._lost = world.faults.changes(FaultKind.CONNECTION_LOST, "start", here, side.vm)
        self.pid = _pid(side, order.port)
        if self._listener is not None:
            self._listener.ended = self._natural_end()

    def ends(self) -> float | None:
        """When it ends by itself: at once when nobody listens."""
        return self._natural_end() if self._killed is None else self._killed

    def said(self) -> Said:
        """What it has printed."""
        if self._killed is not None:
            return Said(exit_code=143)
        if self._said is None:
            self._said = self._finish()
        return self._said

    def kill(self) -> None:
        """It ends now, and so does its server."""
        now = clock.monotonic()
        if self._natural_end() > now and self._killed is None:
            self._killed = now
            if self._listener is not None:
                self._listener.ended = now

    def _natural_end(self) -> float:
        if self._listener is None:
            return self._began
        share = self._world.figures.transfer * (0.5 if self._lost else 1.0)
        return self._zero + self._order.seconds * share

    def _finish(self) -> Said:
        order, listener = self._order, self._listener
        if listener is None or listener.tool != order.tool:
            return self._refused()
        talk = self._talk(listener)
        if order.tool == "iperf3":
            listener.output = iperf3_output.server_output(talk)
            return Said(stdout=iperf3_output.client_output(talk))
        listener.output = iperf_output.server_output(talk)
        stderr = b"" if talk.moved.lost_at is None else iperf_output.LOST
        return Said(stdout=iperf_output.client_output(talk), stderr=stderr)

    def _refused(self) -> Said:
        if self._order.tool == "iperf3":
            return Said(exit_code=1, stdout=iperf3_output.refused())
        text = iperf_output.refused(self._order.server, self._order.port)
        return Said(exit_code=1, stdout=text, stderr=iperf_output.REFUSED)

    def _talk(self, listener: Listener) -> Talk:
        order, other = self._order, listener.side
        if not other.alive():
            self._lost = True
        sender, receiver = (other, self._side) if order.reverse else (self._side, other)
        moved, lost = self._moved(sender, receiver)
        return Talk(
            asked=order,
            client=self._side.address,
            server=order.server,
            port=_FIRST_PORT + self.pid % 20_000,
            moved=moved,
            lost=lost,
            started=self._started,
            pid=self.pid,
        )

    def _moved(self, sender: Side, receiver: Side) -> tuple[Traffic, float]:
        """What moved, and which share of it was lost on the way."""
        order, world = self._order, self._world
        limit = order.limit

        def carried(moment: float) -> float:
            return path_rate(
                world, sender.end(moment), receiver.end(moment), streams=order.streams, window=order.window
            )

        def rate_at(moment: float) -> float:
            return carried(moment) if limit is None else min(limit, carried(moment))

        lost = 0.0
        if order.udp and limit is not None:
            lost = max(_LEAST_LOSS, 1 - carried(self._zero) / limit)
        moves: tuple[Move, ...] = (
            *world.lines.moves.get(sender.vm, ()),
            *world.lines.moves.get(receiver.vm, ()),
        )
        ends = (sender.end(self._zero).name, receiver.end(self._zero).name)
        moved = traffic(
            zero=self._zero,
            seconds=order.seconds,
            interval=order.interval,
            rate_at=rate_at,
            moves=moves,
            seed=f"{world.seed}:{ends}:{order.port % 100}",
            noise=0.0 if limit is not None else world.figures.between_transfers,
            drift=world.figures.drift,
            lost_at=order.seconds / 2 if self._lost else None,
        )
        return moved, lost


def _pid(side: Side, port: int) -> int:
    """A process id that is the same in every rehearsal."""
    return 1000 + crc32(f"{side.address}:{port}".encode()) % 30_000
