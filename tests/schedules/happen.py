"""How troubles are made: each is one function, which says whether it could be made now."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress

from labctl.campaign import commands
from labctl.campaign.broker import broker_of
from labctl.campaign.dispatch import CeleryDispatcher
from labctl.campaign.hosts import release_host, take_host_out
from labctl.errors import SpecError
from labctl.model.outcome import Outcome
from labctl.store import AttemptHandle
from tests.schedules.night import Night
from tests.schedules.programs import step_clocks
from tests.schedules.schedule import Happening, Trouble

COPIES = 2
"""How often a message is delivered again."""


def happen(night: Night, happening: Happening) -> bool:
    """Make one thing happen. False when that is not possible yet."""
    return _MAKERS[happening.trouble](night, happening)


# To processes


def _kill_worker(night: Night, happening: Happening) -> bool:
    pid = _working(night, happening.pick)
    return pid is not None and night.crew.kill(pid)


def _kill_all_workers(night: Night, happening: Happening) -> bool:
    killed = [night.crew.kill(pid) for pid in night.crew.workers()]
    return any(killed)


def _stop_worker(night: Night, happening: Happening) -> bool:
    pid = _working(night, happening.pick)
    if pid is None:
        return False
    night.crew.stop(pid, happening.seconds)
    return True


def _kill_main(night: Night, happening: Happening) -> bool:
    return _killed(night, night.crew.mains(), happening)


def _stop_main(night: Night, happening: Happening) -> bool:
    return _stopped(night, night.crew.mains(), happening)


def _kill_service(night: Night, happening: Happening) -> bool:
    night.crew.pause = happening.seconds
    return _killed(night, _services(night), happening)


def _stop_service(night: Night, happening: Happening) -> bool:
    return _stopped(night, _services(night), happening)


def _restart_service(night: Night, happening: Happening) -> bool:
    running = [service for service in night.crew.services if service.process is not None]
    if not running:
        return False
    service = running[happening.pick % len(running)]
    assert service.process is not None
    service.process.terminate()
    return True


def _kill_everything(night: Night, happening: Happening) -> bool:
    night.crew.pause = happening.seconds
    shared = night.schedule.shared_redis
    for pid in night.crew.left():
        night.crew.kill(pid)
    if shared:
        night.crew.end_redis()
        night.after(happening.seconds, night.crew.start_redis)
    return True


# To what they share


def _kill_redis(night: Night, happening: Happening) -> bool:
    if night.schedule.shared_redis:
        night.crew.end_redis()
        night.after(happening.seconds, night.crew.start_redis)
        return True
    return _killed(night, night.crew.redis_processes(), happening)


def _redis_gone(night: Night, happening: Happening) -> bool:
    """A private Redis is started again at once by its service, so there it is killed again and again."""
    if night.schedule.shared_redis:
        return _kill_redis(night, happening)
    deadline = time.monotonic() + happening.seconds

    def again() -> None:
        for pid in night.crew.redis_processes():
            night.crew.kill(pid)
        if time.monotonic() < deadline:
            night.after(0.3, again)

    again()
    return True


def _stop_redis(night: Night, happening: Happening) -> bool:
    return _stopped(night, night.crew.redis_processes(), happening)


def _flush_redis(night: Night, happening: Happening) -> bool:
    clients = night.crew.clients()
    for client in clients:
        with closing(client):
            client.flushall()
    return bool(clients)


def _deliver_again(night: Night, happening: Happening, states: tuple[str, ...]) -> bool:
    """Send messages again, as a broker does that lost sight of who got them."""
    found = _query(night, f"SELECT id, token FROM attempts WHERE state IN ({','.join('?' * len(states))})", *states)
    sockets = night.crew.sockets()
    if not found or not sockets:
        return False
    for at, (attempt_id, token) in enumerate(found):
        dispatcher = CeleryDispatcher(broker_of(f"redis+socket://{sockets[at % len(sockets)]}"))
        with closing(dispatcher):
            for _ in range(COPIES):
                dispatcher.attempt(night.lab, AttemptHandle(id=attempt_id, token=token))
    night.note(f"delivered again: the messages of attempts {[attempt_id for attempt_id, _ in found]}")
    return True


def _deliver_early(night: Night, happening: Happening) -> bool:
    return _deliver_again(night, happening, ("sent", "claimed"))


def _deliver_late(night: Night, happening: Happening) -> bool:
    return _deliver_again(night, happening, ("ended", "lost"))


def _lock_store(night: Night, happening: Happening) -> bool:
    """Be another program that has the database for itself, as backups and people do."""
    ready, opened = threading.Event(), threading.Event()

    def hold() -> None:
        with closing(sqlite3.connect(night.crew.state / "labctl.sqlite", timeout=10, isolation_level=None)) as database:
            with suppress(sqlite3.OperationalError):
                database.execute("BEGIN IMMEDIATE")
                opened.set()
            ready.set()
            time.sleep(happening.seconds)

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()
    if not opened.is_set():
        thread.join()
        return False
    night.after(happening.seconds, thread.join)
    return True


def _step_clock(night: Night, happening: Happening) -> bool:
    """The clocks of services, of workers, or of both are stepped: they may be on several machines."""
    engines, workers = ((1, 0), (0, 1), (1, 1))[happening.pick % 3]
    step_clocks(night.directory, engines=engines * happening.amount, workers=workers * happening.amount)
    if happening.seconds:
        night.after(happening.seconds, lambda: step_clocks(night.directory, engines=0.0, workers=0.0))
    return True


# By people


def _cancel(night: Night, happening: Happening) -> bool:
    return _asked(night, lambda campaign: commands.cancel(night.store, campaign), happening)


def _cancel_now(night: Night, happening: Happening) -> bool:
    return _asked(night, lambda campaign: commands.cancel(night.store, campaign, now=True), happening)


def _pause(night: Night, happening: Happening) -> bool:
    return _paused(night, happening, now=False)


def _pause_now(night: Night, happening: Happening) -> bool:
    return _paused(night, happening, now=True)


def _pause_for_good(night: Night, happening: Happening) -> bool:
    def pause(campaign: int) -> None:
        commands.pause(night.store, campaign, now=happening.pick % 2 == 0)
        night.paused_for_good.add(campaign)

    return _asked(night, pause, happening)


def _retry(night: Night, happening: Happening) -> bool:
    def retry(campaign: int) -> None:
        retried = commands.retry(night.store, campaign, (Outcome.FAILED, Outcome.LAB_ERROR), stopped=True)
        night.reopened += bool(retried.runs)

    return _asked(night, retry, happening)


def _set_priority(night: Night, happening: Happening) -> bool:
    return _asked(
        night, lambda campaign: commands.set_priority(night.store, campaign, int(happening.amount)), happening
    )


def _take_host_out(night: Night, happening: Happening) -> bool:
    names = list(night.lab.hosts)
    host = names[happening.pick % len(names)]
    if not night.campaigns:
        return False
    take_host_out(night.store, night.lab.name, host, why="somebody works on it")
    night.after(happening.seconds, lambda: release_host(night.store, night.lab.name, host))
    return True


def _paused(night: Night, happening: Happening, *, now: bool) -> bool:
    def pause(campaign: int) -> None:
        commands.pause(night.store, campaign, now=now)
        night.after(happening.seconds, lambda: _resume(night, campaign))

    return _asked(night, pause, happening)


def _resume(night: Night, campaign: int) -> None:
    with suppress(SpecError):
        if campaign not in night.paused_for_good:
            commands.resume(night.store, campaign)


def _asked(night: Night, ask: Callable[[int], object], happening: Happening) -> bool:
    """Ask something of one of the campaigns; a refusal is an answer, too."""
    if not night.campaigns:
        return False
    campaign = night.campaigns[happening.pick % len(night.campaigns)]
    try:
        ask(campaign)
    except SpecError as refusal:
        night.note(f"refused: {refusal}")
    else:
        night.note(f"asked of campaign {campaign}: {happening.trouble}")
    return True


# Whom it happens to


def _working(night: Night, pick: int) -> int | None:
    """One of the processes that carry out an attempt now."""
    alive = night.crew.workers()
    found = [int(item.worker.split(":")[1]) for item in night.store.active_attempts() if item.worker]
    pids = [pid for pid in found if pid in alive]
    return pids[pick % len(pids)] if pids else None


def _services(night: Night) -> list[int]:
    return [service.process.pid for service in night.crew.services if service.process is not None]


def _killed(night: Night, pids: list[int], happening: Happening) -> bool:
    return bool(pids) and night.crew.kill(pids[happening.pick % len(pids)])


def _stopped(night: Night, pids: list[int], happening: Happening) -> bool:
    if not pids:
        return False
    night.crew.stop(pids[happening.pick % len(pids)], happening.seconds)
    return True


def _query(night: Night, statement: str, *values: object) -> list[tuple[int, str]]:
    path = f"file:{night.crew.state}/labctl.sqlite?mode=ro"
    with closing(sqlite3.connect(path, uri=True)) as database:
        return database.execute(statement, values).fetchall()


_MAKERS: dict[Trouble, Callable[[Night, Happening], bool]] = {
    Trouble.WORKER_STOPPED: _stop_worker,
    Trouble.WORKER_STOPPED_BRIEFLY: _stop_worker,
    Trouble.WORKER_KILLED: _kill_worker,
    Trouble.ALL_WORKERS_KILLED: _kill_all_workers,
    Trouble.MAIN_KILLED: _kill_main,
    Trouble.MAIN_STOPPED: _stop_main,
    Trouble.SERVICE_KILLED: _kill_service,
    Trouble.SERVICE_STOPPED: _stop_service,
    Trouble.SERVICE_RESTARTED: _restart_service,
    Trouble.EVERYTHING_KILLED: _kill_everything,
    Trouble.REDIS_KILLED: _kill_redis,
    Trouble.REDIS_GONE: _redis_gone,
    Trouble.REDIS_STOPPED: _stop_redis,
    Trouble.REDIS_FLUSHED: _flush_redis,
    Trouble.DELIVERED_TWICE_EARLY: _deliver_early,
    Trouble.DELIVERED_TWICE_LATE: _deliver_late,
    Trouble.STORE_LOCKED: _lock_store,
    Trouble.STORE_LOCKED_FOR_LONG: _lock_store,
    Trouble.CLOCK_STEPPED: _step_clock,
    Trouble.CLOCK_STEPPED_AND_BACK: _step_clock,
    Trouble.CANCEL: _cancel,
    Trouble.CANCEL_NOW: _cancel_now,
    Trouble.PAUSE: _pause,
    Trouble.PAUSE_NOW: _pause_now,
    Trouble.PAUSE_FOR_GOOD: _pause_for_good,
    Trouble.RETRY: _retry,
    Trouble.PRIORITY: _set_priority,
    Trouble.HOST_TAKEN_OUT: _take_host_out,
}
"""All but those to which hosts and processes come by themselves."""
