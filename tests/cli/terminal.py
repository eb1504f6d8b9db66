"""A terminal for tests of commands that need the store alone: files, commands, and runs that are made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from labctl.campaign import judgement
from labctl.cli.main import main
from labctl.model.order import EndpointOrder, Placement, RunOrder
from labctl.model.outcome import CampaignState, Outcome
from labctl.model.scenario import Side
from labctl.store import AttemptHandle, AttemptStart, Store, WorkerRecord, open_store
from tests.values import a_result, an_order

SMALL = {
    "scenarios": ["same-host"],
    "factors": {"nic_model": ["virtio", "e1000"]},
    "settings": {"seconds": 10},
    "repeats": 2,
    "back_off": "0s",
}
"""Four runs."""


class Terminal:
    """A state directory, and commands on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = directory / "state"
        self.lab_file = self.lab()
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        """The store of the state directory."""
        if self._store is None:
            self._store = open_store(self.state)
        return self._store

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    # Files

    def lab(self, name: str = "night", *, file: str = "lab.yaml", **keys: object) -> Path:
        """A lab file: a simulated lab of two hosts."""
        simulated = {"hosts": ["a", "b"], "directory": str(self.directory / "world")}
        return self._file(file, {"lab": name, "site": "here", "simulated": simulated} | keys)

    def lab_of(self, keys: dict[str, object], *, name: str = "night") -> Path:
        """A lab file with these keys."""
        return self._file("written-out.yaml", {"lab": name, "site": "here"} | keys)

    def campaign(self, name: str = "small", *, file: str | None = None, **keys: object) -> Path:
        """A campaign file."""
        return self._file(file or f"{name}.yaml", {"campaign": name} | SMALL | keys)

    def _file(self, name: str, content: object) -> Path:
        path = self.directory / name
        path.write_text(json.dumps(content, indent=1))
        return path

    # Commands

    def type(self, *arguments: object) -> Result:
        """Run a command."""
        environment = {"COLUMNS": "250", "LABCTL_STATE": str(self.state)}
        return CliRunner(env=environment).invoke(main, [str(argument) for argument in arguments])

    def said(self, *arguments: object, code: int = 0) -> str:
        """What a command prints, on one line; it must end with this code."""
        result = self.type(*arguments)
        assert result.exit_code == code, result.output
        return " ".join((result.stdout if code in (0, 1) else result.stderr).split())

    def facts(self, *arguments: object, code: int = 0) -> Any:
        """What a command prints for programs."""
        result = self.type(*arguments, "--json")
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    def submitted(self, *arguments: object, **keys: object) -> int:
        """Submit a campaign file with these keys. Returns its id."""
        (facts,) = self.facts("submit", self.campaign(**keys), "--lab", self.lab_file, *arguments)
        return int(facts["id"])

    # The lab at work

    def begin(self, campaign: int, host: str = "a", *, phase: str = "", claimed: bool = True) -> AttemptHandle:
        """The next run of a campaign in progress on a host; not `claimed`: its message is still on its way."""
        run = self.store.pending_runs(campaign, limit=1)[0]
        machine = self.store.head(campaign).lab.hosts[host].machine
        resources = frozenset({f"host:{host}", f"machine:{machine}"})
        asked = AttemptStart(run_id=run.id, order=_on(host), resources=resources, estimate=15.0)
        (handle,) = self.store.start_attempts(self.store.head(campaign).lab.name, [asked])
        assert handle is not None
        if not claimed:
            return handle
        assert self.store.claim(handle, worker="w:1") is not None
        if phase:
            assert self.store.heartbeat(handle, phase=phase) == ""
        return handle

    def end(self, handle: AttemptHandle, outcome: Outcome = Outcome.OK, *, kind: str = "") -> None:
        """The end of a run in progress."""
        assert judgement.accept(self.store, handle, a_result(outcome, kind=kind))

    def finish(self, campaign: int, *outcomes: Outcome, kind: str = "connection-lost") -> None:
        """All runs of a campaign, which end so; those without a word end `ok`."""
        words = list(outcomes)
        while self.store.pending_runs(campaign, limit=1):
            self.end(self.begin(campaign), words.pop(0) if words else Outcome.OK, kind=kind)
        self.store.set_state(campaign, CampaignState.DONE)

    def worker(
        self, role: str = "worker", *, queues: tuple[str, ...] = ("here.kvm",), process: str = "host:1"
    ) -> WorkerRecord:
        """A process that works."""
        machine, pid, *_ = process.split(":")
        record = WorkerRecord(
            name=f"{role}@{process}", role=role, machine=machine, pid=int(pid), version="0", queues=queues, slots=2,
            started=0.0,
        )  # fmt: skip
        self.store.register_worker(record)
        self.store.beat_worker(record.name, doing="1 of 2 slots are busy")
        return record


def _on(host: str) -> RunOrder:
    order = an_order(host)
    placement = Placement(
        sender=EndpointOrder(side=Side.SENDER, host=host, vm=True),
        receiver=EndpointOrder(side=Side.RECEIVER, host=host, vm=True),
    )
    return RunOrder(**(order.__dict__ | {"placement": placement}))
