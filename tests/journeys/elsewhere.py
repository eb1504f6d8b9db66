"""A desk for labs whose hosts are simulators of the test's own process, and whose guests are namespaces of a world: the
commands are real, as are libraries, connections and transfers, and only the hypervisor isn't."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labctl.model.result import AttemptResult, CampaignRecord
from labctl.report.data import report_of
from labctl.report.json import render_json
from labctl.report.pretence import SIMULATED_HYPERVISOR
from labctl.spec.lab import parse_lab
from labctl.spec.source import parse_document
from tests.desk import SMALL, Desk, Ended

CAMPAIGNS = Path(__file__).parents[2] / "configs" / "campaigns"

SHORT = {"tool": "iperf", "seconds": 0.6, "interval": 0.2, "rate": "500M"}
"""A transfer that shows all that a long one does, without taking the whole machine."""
MOVING = {"seconds": 3, "interval": 0.1}
"""The shortest transfer that a migration can be seen in."""


class FarDesk(Desk):
    """A desk at which labs are far away. `seen` lists the VMs that the hypervisors still have, past labctl."""

    def __init__(self, document: Mapping[str, Any], directory: Path, *, seen: Callable[[], list[str]]) -> None:
        self._document = dict(document)
        self._seen = seen
        super().__init__(parse_lab(json.dumps(document), base=directory), directory)

    def embedded_lab(self) -> dict[str, Any]:
        """What the lab file says."""
        return self._document

    def leftovers(self) -> list[str]:
        """See `Desk.leftovers`."""
        left = [f"process {pid}: {line}" for pid, line in self.processes().items()]
        left += [f"temporary file {path}" for path in self.temporary.iterdir()]
        left += [f"lease of {line.resource}" for line in self.store.leases(self.lab.name)]
        left += [f"VM recorded as {vm.state}: {vm.name}" for vm in self.store.live_vms()]
        return left + [f"VM {name}" for name in self._seen()]

    def close(self) -> None:
        """See `Desk.close`."""
        for command in self.commands:
            if command.process.poll() is None:
                command.kill()
        self.store.close()

    def shortened(self, name: str, **changes: Any) -> Path:
        """A campaign that comes along, with transfers of a second; other keys are changed as said, settings one by one."""
        path = CAMPAIGNS / f"{name}.yaml"
        document: dict[str, Any] = parse_document(
            path.read_text(), file=str(path), what="campaign", base=path.parent
        ).plain()
        for setting in ("streams", "copy", "size", "medium", "cache"):
            document["settings"].pop(setting, None)
        settings = document["settings"] | SHORT | changes.pop("settings", {})
        moving = [{"when": {"scenario": "during-migration"}, "set": MOVING}]
        moving = moving if "during-migration" in document["scenarios"] else []
        return self.file(path.name, document | SMALL | {"settings": settings, "overrides": moving} | changes)

    def whole(self, campaign: Path, *, lab: Path | None = None) -> CampaignRecord:
        """Run a campaign to its end: every run of it has a figure, and its report says that the hypervisor was simulated."""
        ended = self.run(campaign, lab=lab).wait()
        assert ended.code == 0, ended.said
        assert SIMULATED_HYPERVISOR in ended.out.replace("\n", " ")
        record = self.record(self.newest())
        results = [result_of(record, cell.levels) for cell in record.cells if cell.applicable]
        assert all(result.transfers[-1].reading.ok for result in results), [result.detail for result in results]
        page = (self.state / "reports" / f"campaign-{record.id}.html").read_text()
        assert SIMULATED_HYPERVISOR in page
        assert json.loads(render_json(report_of(record)))["pretence"] == SIMULATED_HYPERVISOR
        return record

    def newest(self) -> int:
        """The number of the newest campaign."""
        ((number,),) = self.query("SELECT max(id) FROM campaigns")
        return int(number)

    def check(self, *, code: int) -> list[dict[str, Any]]:
        """What `labctl lab check --json` says, after it ended with this exit code."""
        ended: Ended = self.labctl("lab", "check", self.lab_file, "--json")
        assert ended.code == code, ended.said
        found: list[dict[str, Any]] = json.loads(ended.out)
        return found


def result_of(record: CampaignRecord, levels: Mapping[str, Any]) -> AttemptResult:
    """The result of the only run of the cell with exactly these levels."""
    (cell,) = [cell for cell in record.cells if cell.levels == levels]
    (run,) = [run for run in record.runs if run.cell == cell.id]
    assert run.result is not None
    return run.result


def fact(result: AttemptResult, subject: str, when: str, name: str) -> Any:
    """A fact of one endpoint or host."""
    found = [
        item.facts[name] for item in result.facts if (item.subject, item.when) == (subject, when) and name in item.facts
    ]
    assert found, (subject, when, name)
    return found[0]


@contextmanager
def a_far_desk(document: Mapping[str, Any], directory: Path, *, seen: Callable[[], list[str]]) -> Iterator[FarDesk]:
    """A desk; at the end nothing of what was done at it may be left."""
    desk = FarDesk(document, directory, seen=seen)
    try:
        yield desk
        desk.assert_nothing_left()
    finally:
        desk.close()
