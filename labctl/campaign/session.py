"""What a service keeps alive: a worker, and a private Redis when it was given no broker.

A private Redis listens on a unix socket in a directory of its own and keeps nothing on disk: the store is the truth. Both
processes have sessions of their own, so that a Ctrl-C in the terminal reaches only the command itself, and both end when
the command dies, however it dies (PR_SET_PDEATHSIG for Redis; the worker watches its owner).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from labctl.campaign.broker import VARIABLE, Broker, broker_of, check, trouble, waiting
from labctl.campaign.dispatch import CeleryDispatcher, still_waiting
from labctl.campaign.processes import this_process
from labctl.campaign.supervisor import Supervisor, end, group_lives, kill_group, tail
from labctl.campaign.worker_files import DIRECTORY_VARIABLE, OWNER_VARIABLE, Pulse, Wanted, WorkerFiles
from labctl.errors import LabError
from labctl.model.patience import Patience, patience

START_SECONDS = 60.0
_STOP_SECONDS = 10.0
LAST_SECONDS = 45.0
"""How long a worker may take to end its attempts and to remove their VMs."""
_LOOK_SECONDS = 1.0
_SILENT_SECONDS = 5.0
"""A private Redis that gives no answer for so long is ended and started anew."""
_PR_SET_PDEATHSIG = 1


class PrivateRedis:
    """How a private Redis is started, and when it is well."""

    name = "The private Redis"
    kind = "broker"
    start_seconds = START_SECONDS

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = directory / "redis.log"
        socket = directory / "redis.sock"
        self.broker = broker_of(f"redis+socket://{socket}")
        self._socket = socket
        self._client = self.broker.client(seconds=1.0)
        self._answered = 0.0

    def start(self) -> subprocess.Popen[bytes]:
        """Start it. Raises `LabError` (`missing-program`) when it isn't installed."""
        program = shutil.which("redis-server")
        if program is None:
            raise LabError(
                "redis-server is not installed.",
                kind="missing-program",
                why="Without --broker, labctl brings up a private Redis as the broker between itself and its workers.",
                todo="Run `make setup`, or `apt-get install redis-server`, or name a broker.",
            )
        self._directory.mkdir(mode=0o700, exist_ok=True)  # whoever cleans up /tmp may have removed it
        self._socket.unlink(missing_ok=True)
        with self._log.open("wb") as output:
            return subprocess.Popen(
                [program, "--port", "0", "--unixsocket", str(self._socket), "--unixsocketperm", "700", "--save", "",
                 "--appendonly", "no", "--maxmemory-policy", "noeviction", "--daemonize", "no",
                 "--dir", str(self._directory)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                preexec_fn=_end_with_parent,
            )  # fmt: skip

    def ready(self) -> bool:
        """Whether it answers."""
        if self._socket.exists():
            with contextlib.suppress(redis.RedisError, OSError):
                self._client.ping()
                self._answered = time.monotonic()
                return True
        return False

    def ill(self) -> str:
        """Whether it has not answered for too long."""
        if self.ready() or time.monotonic() - self._answered < _SILENT_SECONDS:
            return ""
        return f"gave no answer for {_SILENT_SECONDS:.0f} s"

    def put_down(self, process: subprocess.Popen[bytes]) -> None:
        """End it at once."""
        kill_group(process.pid)
        process.wait()

    def last_words(self) -> str:
        """The end of its log."""
        return tail(self._log)

    def close(self) -> None:
        """Close the connection to it."""
        self._client.close()


class WorkerProcess:
    """How a Celery worker is started, and when it is well.

    Its main process may die or hang and be started again while its children go on with their attempts; what they are
    is remembered, and all of them end with the service.
    """

    name = "The worker"
    kind = "worker-died"
    start_seconds = START_SECONDS

    def __init__(
        self, *, app: str, directory: Path, log: Path, environment: dict[str, str], wanted: Wanted, patient: Patience
    ) -> None:
        self._app = app
        self._directory = directory
        self._log = log
        self._environment = environment
        self._wanted = wanted
        self._silent_seconds = patient.silent
        self._idle_seconds = patient.unclaimed / 2
        self._leaders: list[int] = []
        self._starts = 0
        self.files = WorkerFiles(directory / "worker-0")
        self.waiting: int | None = None
        """How many messages wait in its queues; None while the broker doesn't say."""
        self._pulse: tuple[Pulse | None, float] = (None, 0.0)
        self._taking: tuple[int, float] = (0, 0.0)

    @property
    def wanted(self) -> Wanted:
        """What it serves."""
        return self._wanted

    def serve(self, wanted: Wanted) -> None:
        """Have it serve something else from now on."""
        if wanted != self._wanted:
            self._wanted = wanted
            self.files.want(wanted)

    def start(self) -> subprocess.Popen[bytes]:
        """Start it."""
        self._starts += 1
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self.files = WorkerFiles(self._directory / f"worker-{self._starts}")
        self.files.want(self._wanted)
        self._taking = (0, time.monotonic())
        self._pulse = (None, time.monotonic())
        environment = self._environment | {DIRECTORY_VARIABLE: str(self.files.directory)}
        with self._log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", self._app, "worker", "--pool", "prefork",
                 "--concurrency", str(self._wanted.slots), "--queues", ",".join(self._wanted.queues),
                 "--hostname", f"labctl-{os.getpid()}@%h", "--without-gossip", "--without-mingle", "--without-heartbeat",
                 "--loglevel", "WARNING"],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=self._directory,
                start_new_session=True,
            )  # fmt: skip
        self._leaders = [leader for leader in self._leaders if group_lives(leader)] + [process.pid]
        return process

    def ready(self) -> bool:
        """Whether it takes messages."""
        return self.files.pulse() is not None

    def ill(self) -> str:
        """Whether its main process hangs, or takes no messages though some wait and slots are free."""
        now, pulse = time.monotonic(), self.files.pulse()
        if pulse != self._pulse[0]:
            self._pulse = pulse, now
        if pulse is None or now - self._pulse[1] > self._silent_seconds:
            return f"gave no sign of life for {self._silent_seconds:.0f} s"
        if not self.waiting or pulse.busy >= self._wanted.slots or pulse.taken != self._taking[0]:
            self._taking = pulse.taken, now
        if now - self._taking[1] > self._idle_seconds:
            return f"took none of {self.waiting} messages for {self._idle_seconds:.0f} s though it had free slots"
        return ""

    def put_down(self, process: subprocess.Popen[bytes]) -> None:
        """End its main process at once, and only that: the attempts of its children go on."""
        process.kill()
        process.wait()

    def last_words(self) -> str:
        """The end of its log. Raises `LabError` (`version`) when it refuses to work here."""
        refusal = self.files.refusal()
        if refusal:
            raise LabError(
                "The worker refuses to work here.",
                kind="version",
                why=refusal,
                todo="Install the same version of labctl on all machines that share a store, then start this again.",
            )
        return f"The end of its log: {tail(self._log)}"

    def end(self, process: subprocess.Popen[bytes] | None, *, grace: float, at_once: Callable[[], bool]) -> None:
        """End all of it: attempts may finish for `grace` seconds, then they are to end at their next step and have their
        VMs removed, and what is left after that is forced."""
        self.files.take_no_more()
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
        self._wait(process, grace, at_once)
        self.files.want_end()
        self._wait(process, LAST_SECONDS, lambda: False)
        for leader in self._leaders:
            kill_group(leader)
        if process is not None:
            process.wait()

    def _wait(self, process: subprocess.Popen[bytes] | None, seconds: float, at_once: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not at_once():
            if process is not None:
                process.poll()
            if not any(group_lives(leader) for leader in self._leaders):
                return
            time.sleep(0.05)


class Session:
    """A worker that is kept alive, and the way to send to it and its like."""

    def __init__(
        self,
        broker: Broker,
        worker: WorkerProcess,
        private: Supervisor | None,
        say: Callable[[str], None],
        *,
        for_ever: bool = False,
    ) -> None:
        self.broker = broker
        self.dispatcher = CeleryDispatcher(broker)
        self.worker = worker
        self.kept = Supervisor(worker, say=say, for_ever=for_ever)
        self._private = private
        self._say = say
        self._client = broker.client()
        self._looked = 0.0
        self._since: float | None = None
        self.trouble = ""
        """Why the broker can't be used now, in a sentence for people; empty while it can."""

    @property
    def broker_generation(self) -> int:
        """Grows whenever a private Redis has been started anew, and has forgotten all messages."""
        return self._private.generation if self._private is not None else 0

    def begin(self, *, stopped: Callable[[], bool]) -> None:
        """Start the worker and wait until it is up, or until `stopped` says that nobody wants it any more. A private Redis
        that dies meanwhile is started again."""
        while not self.kept.up and not stopped():
            self.look()
            if not self.kept.up:
                time.sleep(0.02)

    def look(self) -> None:
        """Keep all of it alive: to be called often. Raises `LabError` when it can't be kept alive."""
        if self._private is not None:
            self._private.look()
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._look_at_broker()
        self.kept.look()

    def still_waiting(self, attempt_ids: tuple[int, ...], queues: tuple[str, ...]) -> frozenset[int]:
        """Which of the attempts have messages that wait in these queues. Raises `LabError` (`broker`)."""
        try:
            return still_waiting(self._client, queues, attempt_ids)
        except (redis.RedisError, OSError) as error:
            raise trouble(self.broker, error) from error

    def note(self, error: LabError) -> None:
        """The broker could not be used: say so, once for each time."""
        if self._since is None:
            self._since = time.time()
            self._say(f"{error.what} {error.why} {error.todo}".strip())
        since = time.strftime("%H:%M:%S", time.localtime(self._since))
        self.trouble = f"broker: {error.what.rstrip('.')}, since {since}; it is tried again and again"

    def close(self) -> None:
        """Close connections."""
        self.dispatcher.close()
        self._client.close()

    def _look_at_broker(self) -> None:
        try:
            self._client.set("labctl.alive", "", ex=60)
            self.worker.waiting = waiting(self._client, self.worker.wanted.queues)
        except (redis.RedisError, OSError) as error:
            self.worker.waiting = None
            self.note(trouble(self.broker, error))
            return
        if self._since is not None:
            self._since, self.trouble = None, ""
            self._say("The broker can be used again.")


@contextmanager
def session(
    *,
    state: Path,
    store_url: str,
    broker: str | None,
    wanted: Wanted,
    say: Callable[[str], None],
    grace: float = 0.0,
    at_once: Callable[[], bool] = lambda: False,
    stopped: Callable[[], bool] = lambda: False,
    app: str = "workers.app",
    for_ever: bool = False,
) -> Iterator[Session]:
    """Start a worker, and a private Redis without a `broker` (URL); end both at the end, whatever happens.

    With `for_ever` neither is given up any more once it has been up.

    At the end attempts in progress may finish for `grace` seconds, or until `at_once` says so; then they are ended.
    Raises `LabError` (`missing-program`, `broker`, `worker-died`) when they don't come up.
    """
    logs = state / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    _forget_old(logs)
    with (
        tempfile.TemporaryDirectory(prefix="labctl-", ignore_cleanup_errors=True) as name,
        contextlib.ExitStack() as stack,
    ):
        directory = Path(name)
        private = None
        if broker is None:
            private = stack.enter_context(_private_redis(directory, say, stopped, for_ever))
            where = PrivateRedis(directory).broker
        else:
            where = broker_of(broker)
            for warning in check(where):
                say(warning)
        environment = os.environ | {
            VARIABLE: broker or where.url,
            "LABCTL_STORE": store_url,
            OWNER_VARIABLE: this_process(),
            "TMPDIR": name,  # what a killed process leaves there goes with the directory
            "PYTHONUNBUFFERED": "1",
        }
        worker = WorkerProcess(
            app=app,
            directory=directory,
            log=logs / f"worker-{os.getpid()}.log",
            environment=environment,
            wanted=wanted,
            patient=patience(),
        )
        running = Session(where, worker, private, say, for_ever=for_ever)
        try:
            running.begin(stopped=stopped)
            yield running
        finally:
            worker.end(running.kept.process, grace=grace, at_once=at_once)
            running.close()


@contextmanager
def _private_redis(
    directory: Path, say: Callable[[str], None], stopped: Callable[[], bool], for_ever: bool
) -> Iterator[Supervisor]:
    kept = PrivateRedis(directory)
    supervisor = Supervisor(kept, say=say, for_ever=for_ever)
    try:
        supervisor.begin(stopped=stopped)
        yield supervisor
    finally:
        if supervisor.process is not None:
            end(supervisor.process, seconds=_STOP_SECONDS)
        kept.close()


def _forget_old(logs: Path) -> None:
    """Remove the logs of workers that ended more than a month ago."""
    month_ago = time.time() - 30 * 86_400
    for log in _worker_logs(logs):
        with contextlib.suppress(OSError):
            if log.stat().st_mtime < month_ago:
                log.unlink()


def _worker_logs(logs: Path) -> Iterable[Path]:
    return logs.glob("worker-*.log")


def _end_with_parent() -> None:
    """In the child, before the program starts: be sent SIGTERM when the parent dies (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
