"""A post: services in processes of their own, with a store and a simulated lab, for tests that break them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from labctl.campaign import commands
from labctl.campaign.processes import pid_of
from labctl.model.campaign import Campaign
from labctl.model.lab import Lab
from labctl.model.outcome import AttemptState, CampaignState
from labctl.model.scenario import Scenario
from labctl.store import ActiveAttempt, Store, open_store
from tests.desk import LABCTL, Command, Ended, processes_of, until
from tests.simulated import a_simulated_lab, vms_left
from workers.hypervisors.simulated.faults import Fault
from workers.hypervisors.simulated.figures import Figures

PATIENT = {"beat": 0.5, "silent": 10, "unclaimed": 30, "clean_again": 1}
"""Short, and still long enough for a machine that is busy with something else."""
ROOT = Path(__file__).parents[2]


class Post:
    """A state directory, a simulated lab in which only transfers take time, and services."""

    def __init__(self, directory: Path, *, hosts: Sequence[str] = ("a", "b"), faults: Sequence[Fault] = ()) -> None:
        self.directory = directory
        self.state = directory / "state"
        self.temporary = directory / "tmp"
        self.temporary.mkdir(parents=True)
        self.store: Store = open_store(self.state)
        self.lab: Lab = a_simulated_lab(directory / "world", hosts=hosts, figures=Figures.instant(), faults=faults)
        self.commands: list[Command] = []

    def submit(self, *, seconds: float = 1.0, runs: int = 1, lab: Lab | None = None, **changes: object) -> int:
        """A campaign of so many runs in one cell, each with one transfer of so many seconds."""
        values: dict[str, object] = {
            "name": "small",
            "scenarios": (Scenario.SAME_HOST,),
            "factors": {},
            "settings": {"tool": "iperf", "seconds": float(seconds), "interval": min(seconds, 0.5)},
            "repeats": runs,
            "warmups": 0,
            "back_off": 0.01,
        }
        campaign = Campaign(**(values | changes))  # type: ignore[arg-type]
        return commands.submit(self.store, campaign, lab or self.lab, campaign_text="", lab_text="")

    def start(self, *arguments: str, patience: dict[str, float] | None = None, **environment: str) -> Command:
        """Start `labctl` with these arguments."""
        return self.program(str(LABCTL), *arguments, patience=patience, **environment)

    def program(self, *line: str, patience: dict[str, float] | None = None, **environment: str) -> Command:
        """Start a program as services are started here."""
        number = len(self.commands)
        out, err = self.directory / f"{number}.out", self.directory / f"{number}.err"
        mine = {
            "LABCTL_STATE": str(self.state),
            "LABCTL_PATIENCE": json.dumps(PATIENT | (patience or {})),
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=os.environ | mine | environment,
                start_new_session=True,
            )  # fmt: skip
        self.commands.append(Command(process, out, err))
        return self.commands[-1]

    def serve(self, *arguments: str, patience: dict[str, float] | None = None, **environment: str) -> Command:
        """Start `labctl worker`, and wait until its worker takes messages."""
        return self.serving(self.start, "worker", *arguments, patience=patience, **environment)

    def serve_with(self, app: str, *, patience: dict[str, float] | None = None) -> Command:
        """Start a service whose worker is another Celery app, and wait until it takes messages."""
        return self.serving(self.program, *self._line(app), patience=patience)

    def serving_fails(self, app: str) -> Ended:
        """How a service ends whose worker is a Celery app that can't work."""
        return self.program(*self._line(app)).wait()

    def _line(self, app: str) -> tuple[str, ...]:
        return sys.executable, "-m", "tests.campaign.apps.serve", f"tests.campaign.apps.{app}", str(self.state)

    def serving(self, start: Callable[..., Command], *arguments: str, **options: Any) -> Command:
        """Start something that serves, and wait until its worker takes messages."""
        known = {row.name for row in self.store.workers()}
        command = start(*arguments, **options)

        def serves() -> bool:
            assert command.process.poll() is None, command.said
            return any(row.role == "worker" and row.name not in known for row in self.store.workers())

        until("the worker serves", serves)
        return command

    def end(self, command: Command) -> None:
        """End a service as a person does, and see that all is well."""
        command.process.send_signal(signal.SIGTERM)
        ended = command.wait()
        assert ended.code == 0, ended.said

    def lab_of(self, *hosts: str) -> Lab:
        """The lab with only some of its hosts."""
        return replace(self.lab, hosts={name: self.lab.hosts[name] for name in hosts}, migration_pairs=frozenset())

    def kill_all(self) -> None:
        """As if the machine lost its power; of the temporary files nothing is left either."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        until("all are gone", lambda: not self.processes())
        for command in self.commands:
            command.process.wait()
        for path in self.temporary.iterdir():
            shutil.rmtree(path)

    # What is going on

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Rows of the database itself."""
        with closing(sqlite3.connect(f"file:{self.state}/labctl.sqlite?mode=ro", uri=True)) as database:
            return database.execute(statement).fetchall()

    @property
    def main(self) -> int:
        """The main process of the only worker."""
        (pid,) = [row.pid for row in self.store.workers() if row.role == "worker"]
        return pid

    @property
    def redis(self) -> int:
        """The private Redis of the only service."""
        (pid,) = [pid for pid, line in self.processes().items() if "redis-server" in line]
        return pid

    def claimed(self, phase: str = "", *, count: int = 1) -> tuple[ActiveAttempt, ...]:
        """So many attempts that are being carried out, in a phase that begins so; waits for them."""

        def found() -> tuple[ActiveAttempt, ...]:
            active = self.store.active_attempts()
            fit = tuple(item for item in active if item.state is AttemptState.CLAIMED and item.phase.startswith(phase))
            return fit if len(fit) >= count else ()

        attempts: tuple[ActiveAttempt, ...] = until(f"{count} attempts in phase {phase!r}", found)
        return attempts

    def done(self, campaign_id: int, **outcomes: int) -> None:
        """Wait until a campaign is done, and see how its runs ended."""

        working = [command for command in self.commands if command.process.poll() is None]

        def ended() -> bool:
            for command in working:
                assert command.process.poll() in (None, 0), command.said
            return self.store.state(campaign_id).ended

        until("the campaign has ended", ended)
        assert self.store.state(campaign_id) is CampaignState.DONE
        assert self.store.run_counts(campaign_id) == outcomes, self.attempts()
        self.assert_one_result_each(campaign_id)

    def assert_one_result_each(self, campaign_id: int) -> None:
        """Every run that is done has exactly one accepted attempt, and no other of it ended as a figure."""
        for run in self.store.record(campaign_id).runs:
            figures = [result for result in (run.result, *run.earlier) if result and result.detail.outcome == "ok"]
            assert len(figures) <= 1, run

    def attempts(self) -> list[tuple[object, ...]]:
        """What became of all attempts, for messages."""
        found = []
        for line in self.store.campaigns():
            for run in self.store.record(line.id).runs:
                tried = [*run.earlier, *([run.result] if run.result is not None else [])]
                found.append((line.id, run.id, run.state, [(item.detail.outcome, item.detail.kind) for item in tried]))
        return found

    def children(self) -> dict[int, str]:
        """Processes of attempts in progress: their ids, with the names of the processes."""
        return {pid_of(item.worker) or 0: item.worker for item in self.store.active_attempts() if item.worker}

    # What is left

    def processes(self) -> dict[int, str]:
        """Processes that were started here and that still run."""
        return processes_of(self.state, self.temporary)

    def leftovers(self) -> list[str]:
        """Whatever should not be there after everything has ended; empty when all is clean."""
        left = [f"process {pid}: {line}" for pid, line in self.processes().items()]
        left += [f"temporary file {path}" for path in self.temporary.iterdir()]
        left += [f"lease of {line.resource}" for line in self.store.leases()]
        left += [f"VM recorded as {vm.state}: {vm.name}" for vm in self.store.live_vms()]
        left += [f"VM {name}" for name in vms_left(self.lab)]
        left += [f"registered: {row.name}" for row in self.store.workers()]
        return left

    def close(self) -> None:
        """End whatever a failed test left, so that it spoils no other."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
        for command in self.commands:
            command.process.wait()
        self.store.close()


@contextmanager
def a_post(directory: Path, *, hosts: Sequence[str] = ("a", "b"), faults: Sequence[Fault] = ()) -> Iterator[Post]:
    """A post; at the end its services are told to end, and nothing of theirs may be left."""
    post = Post(directory, hosts=hosts, faults=faults)
    try:
        yield post
        for command in post.commands:
            if command.process.poll() is None:
                post.end(command)
        left = post.leftovers()
        assert not left, "\n".join(["left behind:", *left])
    finally:
        post.close()
