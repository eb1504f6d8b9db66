"""The conductor of a rehearsal: keeps its clock, and moves it on when everybody waits (see `labctl.virtual_clock`)."""

from __future__ import annotations

import mmap
import selectors
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from labctl.errors import LabError
from labctl.virtual_clock import SOCKET, TIME_FILE, TIMES


@dataclass(kw_only=True)
class Player:
    """A process that works under the clock. `works_on` is empty while it rests; `waits` is None while it is busy."""

    socket: socket.socket
    works_on: str = ""
    waits: float | None = None
    heard: bytes = b""
    """The beginning of a line whose end has not come yet."""


class Conductor:
    """The clock of one rehearsal, in a directory of its own. Used by one thread."""

    def __init__(self, directory: Path, *, wall: float) -> None:
        """`wall` is the wall time at which the rehearsal begins, in seconds since the Unix epoch. Monotonic time is 0.

        Raises `LabError` (`clock`) when the directory's path is too long for a Unix socket.
        """
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / TIME_FILE
        path.write_bytes(TIMES.pack(0.0, wall))
        with path.open("r+b") as file:
            self._times = mmap.mmap(file.fileno(), TIMES.size)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(str(directory / SOCKET))
        except OSError as error:
            raise LabError(
                f"The clock of the rehearsal can't be kept in {directory}.",
                kind="clock",
                why=str(error),
                todo="Set TMPDIR to a directory with a shorter path: a Unix socket's takes about 100 characters.",
            ) from error
        self._listener.listen(1024)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._players: dict[int, Player] = {}

    @property
    def moment(self) -> float:
        """Monotonic seconds since the rehearsal began."""
        return float(TIMES.unpack_from(self._times)[0])

    @property
    def wall(self) -> float:
        """Wall time, seconds since the Unix epoch."""
        moment, ahead = TIMES.unpack_from(self._times)
        return float(moment + ahead)

    def hear(self, seconds: float) -> bool:
        """Take in what processes say, waiting at most so many real seconds for the first word. False: none came."""
        ready = self._selector.select(seconds)
        for key, _ in ready:
            if key.fileobj is self._listener:
                self._welcome()
            else:
                self._listen(self._players[key.fd])
        return bool(ready)

    @property
    def working(self) -> frozenset[str]:
        """What is being worked on, busily or waiting."""
        return frozenset(player.works_on for player in self._players.values() if player.works_on)

    @property
    def at_work(self) -> int:
        """How many processes work on something."""
        return sum(bool(player.works_on) for player in self._players.values())

    @property
    def busy(self) -> frozenset[str]:
        """What somebody works on who does not wait."""
        return frozenset(
            player.works_on for player in self._players.values() if player.works_on and player.waits is None
        )

    @property
    def earliest(self) -> float | None:
        """The earliest moment that anybody waits for; None when nobody waits."""
        return min((player.waits for player in self._players.values() if player.waits is not None), default=None)

    def go_on(self, moment: float) -> None:
        """Move the clock on to a moment, and let those go on who wait for it. It is never moved back."""
        self._set(moment=max(moment, self.moment))
        for player in self._players.values():
            if player.waits is not None and player.waits <= self.moment:
                player.waits = None
                with suppress(OSError):
                    player.socket.sendall(b"go\n")

    def step_wall(self, seconds: float) -> None:
        """Step wall time, as somebody does who sets a clock; monotonic time knows nothing of it."""
        self._set(ahead=TIMES.unpack_from(self._times)[1] + seconds)

    def close(self) -> None:
        """Let everybody go. Those who still wait are told by the end of their connection."""
        self._selector.close()
        for player in self._players.values():
            player.socket.close()
        self._players.clear()
        self._listener.close()
        self._times.close()

    def _set(self, *, moment: float | None = None, ahead: float | None = None) -> None:
        before = TIMES.unpack_from(self._times)
        TIMES.pack_into(self._times, 0, before[0] if moment is None else moment, before[1] if ahead is None else ahead)

    def _welcome(self) -> None:
        connection, _ = self._listener.accept()
        self._players[connection.fileno()] = Player(socket=connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _listen(self, player: Player) -> None:
        try:
            heard = player.socket.recv(65_536)
        except OSError:
            heard = b""
        if not heard:
            self._forget(player)
            return
        *lines, player.heard = (player.heard + heard).split(b"\n")
        for line in lines:
            word, _, rest = line.decode().partition(" ")
            if word == "work":
                player.works_on = rest
            elif word == "rest":
                player.works_on = ""
            player.waits = float(rest) if word == "wait" else None

    def _forget(self, player: Player) -> None:
        """A process is gone, or its machine; whatever it waited for, nobody waits for it any more."""
        del self._players[player.socket.fileno()]
        self._selector.unregister(player.socket)
        player.socket.close()
