"""How fast runs that take no time are dispatched, and what one costs however many there are.

    python -m tests.benchmarks.dispatch [--runs 20000] [--hosts 200] [--bare 20000] [--large 100000] [--window 2000]

Everything is as a user has it: `labctl submit`, then `labctl worker` with two processes over a real Redis. Only the hosts
are simulated, and their VMs and answers take no time. Each run is a whole attempt: two VMs recorded, created, verified,
used for a transfer, which takes no time either, and destroyed, and its result stored with its raw outputs. Beside
it, on the same machine and before and after, as many tasks of a bare Celery with as large messages.

What is measured lies between the first twentieth of the runs and the last, so that no start and no end is among it.
Processor time is that of all that work: service, Celery, its processes, Redis. It hardly depends on what else the machine
does, so it is what costs are compared by.
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import redis
from celery import Celery

from labctl.campaign.versions import code_version
from workers.hypervisors.simulated.figures import Figures, write_figures

LABCTL = [sys.executable, "-c", "from labctl.cli.main import main; main()"]
PROCESSES = 2
SMALL = 1000
MEGABYTE = 1_000_000
_REPEATS = 100
_DONE = 0.9
"""What share of a large campaign is done before it is measured."""
_EDGE = 0.05
"""What share of the runs at either end is not measured."""
_LOOK_SECONDS = 0.1
_PATIENCE_SECONDS = 3600.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What so many runs, or tasks, took: wall seconds, and processor seconds of all that worked."""

    count: int
    wall: float
    processor: float

    @property
    def rate(self) -> float:
        """How many a second."""
        return self.count / self.wall

    @property
    def cost(self) -> float:
        """Processor milliseconds of one."""
        return self.processor / self.count * 1000

    def __add__(self, other: Measured) -> Measured:
        return Measured(
            count=self.count + other.count, wall=self.wall + other.wall, processor=self.processor + other.processor
        )


@dataclass(frozen=True, kw_only=True)
class Broker:
    """A Redis of the benchmark's own."""

    url: str
    client: redis.Redis
    pid: int

    @property
    def most_memory(self) -> int:
        """Bytes that it has used at the most."""
        return int(self.client.info("memory")["used_memory_peak"])  # type: ignore[index]  # awaitable only with asyncio


@contextmanager
def a_redis() -> Iterator[Broker]:
    """A Redis on a unix socket, for as long as the block runs."""
    with tempfile.TemporaryDirectory(prefix="labctl-bench-redis-") as directory:
        socket = Path(directory) / "redis.sock"
        process = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", directory],
            stdout=subprocess.DEVNULL,
        )
        client = redis.Redis(unix_socket_path=str(socket))
        try:
            wait_until(socket.exists)
            yield Broker(url=f"redis+socket://{socket}", client=client, pid=process.pid)
        finally:
            client.close()
            process.terminate()
            process.wait()


def wait_until(came: Callable[[], bool]) -> float:
    """Wait until it is so, and say when it was (monotonic seconds)."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not came():
        if time.monotonic() > deadline:
            raise SystemExit("the benchmark waited in vain")
        time.sleep(_LOOK_SECONDS)
    return time.monotonic()


def processor_seconds(*roots: int) -> float:
    """Processor seconds that these processes, and those that they started and that still run, have used (proc(5))."""
    parents, used = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)], used[int(entry.name)] = int(words[1]), int(words[11]) + int(words[12])
    ours = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(used.get(pid, 0) for pid in ours) / _TICKS


class Bench:
    """A lab, a store and a broker for campaigns of runs that take no time."""

    def __init__(self, directory: Path, broker: Broker, *, hosts: int) -> None:
        self.state = directory / "state"
        self.broker = broker
        world = directory / "world"
        write_figures(world, replace(Figures.instant(), transfer=0.0))
        self.lab = directory / "lab.yaml"
        self.lab.write_text(f"lab: bench\nsimulated:\n  hosts: {hosts}\n  directory: {world}\n")
        self._directory = directory

    def submit(self, runs: int) -> None:
        """Submit a campaign of so many runs, a hundred in each cell."""
        buffers = [1024 * number for number in range(1, max(1, runs // _REPEATS) + 1)]
        file = self._directory / "campaign.yaml"
        file.write_text(
            f"campaign: dispatch\nscenarios: [same-host]\nfactors:\n  buffer: {buffers}\n"
            f"settings:\n  tool: iperf\n  seconds: 0.005\n  interval: 0.005\nrepeats: {_REPEATS}\nwarmups: 0\n"
        )
        command = [*LABCTL, *self._options, "submit", str(file), "--lab", str(self.lab), "--max-runs", str(runs)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def measure(self, runs: int) -> Measured:
        """Dispatch so many more runs, and stop in the middle of what is left."""
        edge = max(50, int(runs * _EDGE))
        first = self.attempts() + edge
        with self._worker() as pid:
            wait_until(lambda: self.attempts() >= first)
            began, count, used = time.monotonic(), self.attempts(), processor_seconds(pid, self.broker.pid)
            ended = wait_until(lambda: self.attempts() >= first + runs - 2 * edge)
            used = processor_seconds(pid, self.broker.pid) - used
            return Measured(count=self.attempts() - count, wall=ended - began, processor=used)

    def attempts(self) -> int:
        """How many attempts were started."""
        with self._database() as database:
            return int(database.execute("SELECT coalesce(max(id), 0) FROM attempts").fetchone()[0])

    def be_done(self, share: float) -> None:
        """Have this share of the runs done, past the store, in the way in which the first one was done."""
        with self._database() as database:
            database.executescript(_BE_DONE.format(share=share))

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.state / "labctl.sqlite", timeout=60)) as database:
            yield database

    @contextmanager
    def _worker(self) -> Iterator[int]:
        process = subprocess.Popen(
            [*LABCTL, *self._options, "worker", "--slots", str(PROCESSES)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()

    @property
    def _options(self) -> list[str]:
        return ["--state", str(self.state), "--broker", self.broker.url]


_BE_DONE = """
BEGIN IMMEDIATE;
CREATE TEMP TABLE done AS
  SELECT id, campaign_id, cell_id, row_number() OVER (ORDER BY sequence) AS position FROM runs
  WHERE state = 'pending' AND NOT EXISTS (SELECT 1 FROM attempts WHERE attempts.run_id = runs.id)
  ORDER BY sequence LIMIT CAST((SELECT count(*) FROM runs) * {share} AS INTEGER);
CREATE TEMP TABLE sample AS SELECT * FROM attempts WHERE outcome = 'ok' LIMIT 1;
CREATE TEMP TABLE base AS SELECT max(id) AS attempt FROM attempts;
INSERT INTO attempts (id, run_id, campaign_id, number, token, state, hosts, estimate, beats, blamed, order_document, worker,
    phase, created, claimed, heartbeat, ended, outcome, kind, result_document)
  SELECT base.attempt + position, done.id, done.campaign_id, 1, lower(hex(randomblob(16))), 'ended', hosts, estimate, beats,
    blamed, order_document, worker, phase, created, claimed, heartbeat, ended, outcome, kind, result_document
  FROM done, sample, base;
INSERT INTO vms (uuid, name, lab, host, campaign_id, run_id, attempt_id, role, mac, address, shape, state, migrations,
    created, gone)
  SELECT lower(hex(randomblob(16))), name, lab, host, done.campaign_id, done.id, base.attempt + position, role, mac, address,
    shape, 'gone', migrations, created, gone
  FROM done, base, (SELECT * FROM vms WHERE attempt_id = (SELECT id FROM sample)) AS made;
UPDATE runs SET state = 'done', outcome = 'ok', tries = 1,
    accepted_attempt = (SELECT base.attempt + position FROM done, base WHERE done.id = runs.id)
  WHERE id IN (SELECT id FROM done);
UPDATE cells SET timed = (SELECT count(*) FROM runs WHERE cell_id = cells.id AND state = 'done'),
    seconds = 0.05 * (SELECT count(*) FROM runs WHERE cell_id = cells.id AND state = 'done');
COMMIT;
"""


def bare(count: int) -> Measured:
    """So many tasks of a bare Celery, sent by this process."""
    with a_redis() as broker:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tests.benchmarks.bare", "worker", "--pool", "prefork",
             "--concurrency", str(PROCESSES), "--loglevel", "WARNING"],
            env=os.environ | {"LABCTL_BROKER": broker.url}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        sender = Celery("sender", broker=broker.url, set_as_current=False)
        try:
            _send(sender, 0)
            wait_until(lambda: _left(broker) == 0)
            began, used = time.monotonic(), processor_seconds(os.getpid(), broker.pid)
            for number in range(count):
                _send(sender, number)
            ended = wait_until(lambda: _left(broker) == 0)
            used = processor_seconds(os.getpid(), broker.pid) - used
            return Measured(count=count, wall=ended - began, processor=used)
        finally:
            sender.close()
            process.terminate()
            process.wait()


def _send(sender: Celery, number: int) -> None:
    arguments = {"attempt_id": number, "token": f"{number:032}", "version": code_version()}
    sender.send_task("bare.nothing", kwargs=arguments, ignore_result=True)


def _left(broker: Broker) -> int:
    """How many tasks wait, or were taken and not acknowledged."""
    return int(broker.client.llen("celery")) + int(broker.client.hlen("unacked"))  # type: ignore[arg-type]


def rate(*, runs: int, hosts: int, tasks: int) -> None:
    """Runs a second, beside tasks of a bare Celery."""
    plain = bare(tasks // 2)
    with tempfile.TemporaryDirectory(prefix="labctl-bench-") as name, a_redis() as broker:
        bench = Bench(Path(name), broker, hosts=hosts)
        bench.submit(runs)
        done = bench.measure(runs)
    plain += bare(tasks - tasks // 2)
    print(f"dispatch: bare Celery, {plain.count} tasks: {plain.rate:.0f}/s, {plain.cost:.2f} ms of processor each")
    print(
        f"dispatch: {runs} runs over {hosts} hosts, {PROCESSES} worker processes: {done.rate:.0f}/s (goal: at least 150), "
        f"{done.cost:.2f} ms of processor each; 1/{plain.rate / done.rate:.1f} of bare Celery (goal: at least 1/5)",
        flush=True,
    )


def growth(*, large: int, window: int, hosts: int) -> None:
    """What a run costs in a small campaign, and in the last tenth of a large one."""
    costs: dict[int, Measured] = {}
    for runs in (SMALL, large):
        with tempfile.TemporaryDirectory(prefix="labctl-bench-") as name, a_redis() as broker:
            bench = Bench(Path(name), broker, hosts=hosts)
            bench.submit(runs)
            if runs > SMALL:
                bench.measure(200)
                bench.be_done(_DONE)
            costs[runs] = bench.measure(min(runs, window))
            memory = broker.most_memory
    small, big = costs[SMALL].cost, costs[large].cost
    print(
        f"dispatch: a run of {SMALL} costs {small:.2f} ms of processor, one of {large} {big:.2f} ms: "
        f"{big / small:.2f} times as much (goal: at most 1.3); "
        f"Redis had at most {memory / MEGABYTE:.1f} MB (goal: under 50 MB)",
        flush=True,
    )


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.dispatch")
    parser.add_argument("--runs", type=int, default=20_000, help="runs to dispatch")
    parser.add_argument("--hosts", type=int, default=200, help="simulated hosts")
    parser.add_argument("--bare", type=int, default=20_000, help="tasks of a bare Celery")
    parser.add_argument("--large", type=int, default=100_000, help="runs of the large campaign")
    parser.add_argument("--window", type=int, default=2_000, help="how many of them are dispatched")
    asked = parser.parse_args(arguments)
    rate(runs=asked.runs, hosts=asked.hosts, tasks=asked.bare)
    growth(large=asked.large, window=asked.window, hosts=asked.hosts)


if __name__ == "__main__":
    main(sys.argv[1:])
