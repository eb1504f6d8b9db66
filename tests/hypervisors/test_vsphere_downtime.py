"""Which stop of a VM's log is the downtime of a vMotion, with clocks as they are."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.errors import LabError
from workers.hypervisors.vsphere import downtime
from workers.hypervisors.vsphere.downtime import Downtime, read_downtime
from workers.hypervisors.vsphere.files import DatastoreFile, TransferError

BEGAN, ENDED = 1_796_040_000.0, 1_796_040_008.0
"""By the clock of vCenter."""


def stop(at: float, microseconds: int, *, migration: int = 7) -> str:
    moment = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return (
        f"{moment} In(05) vmx - Received migrate 'from' request for mid id {migration}, src ip <192.0.2.1>.\n"
        f"{moment} In(05) vcpu-0 - Checkpoint_Unstun: vm stopped for {microseconds} us\n"
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[DatastoreFile]:
    """What was asked for; tests set what is there by `told`."""
    files: list[DatastoreFile] = []
    monkeypatch.setattr(downtime, "fetch_datastore_file", lambda _session, file, *, timeout: fetch(file, timeout))
    monkeypatch.setattr(downtime, "property_of", lambda _session, _ref, name: PROPERTIES.get(name))

    def fetch(file: DatastoreFile, timeout: float) -> bytes:
        assert timeout > 0
        files.append(file)
        if isinstance(PROPERTIES["log"], Exception):
            raise PROPERTIES["log"]
        return str(PROPERTIES["log"]).encode()

    return files


PROPERTIES: dict[str, Any] = {}


def told(log: object, *, path: str = "[ssd] labctl-x/labctl-x.vmx", clock_off: float | None = None) -> Downtime:
    """What is made of a log. `clock_off`: the host's clock is so much ahead; None: the host can't be asked."""
    system = SimpleNamespace(QueryDateTime=lambda: datetime.fromtimestamp(BEGAN + (clock_off or 0.0), UTC))
    PROPERTIES.clear()
    PROPERTIES.update({"log": log, "config.files.vmPathName": path})
    if clock_off is not None:
        PROPERTIES["configManager.dateTimeSystem"] = system
    session: Any = SimpleNamespace(now=lambda: BEGAN)
    machine: Any = object()
    return read_downtime(session, machine, machine, datacenter="/folder/dc 1", since=BEGAN, until=ENDED)


def test_v6_the_log_is_beside_the_vms_files(asked: list[DatastoreFile]) -> None:
    """V6: read over `/folder`, by datastore and datacenter."""
    assert told(stop(ENDED - 0.5, 411_683)).milliseconds == 412
    assert asked == [DatastoreFile(datacenter="folder/dc 1", datastore="ssd", path="labctl-x/vmware.log")]


def test_v6_an_earlier_vmotion_of_the_log_is_not_taken_for_this_one(asked: list[DatastoreFile]) -> None:
    """V6: a VM that moves there and back."""
    log = stop(BEGAN - 3, 1_000_000) + stop(ENDED - 0.5, 200_000, migration=8)
    assert told(log).milliseconds == 200
    assert told(stop(BEGAN - 600, 1_000_000)).milliseconds is None


def test_v6_the_clock_of_the_host_is_asked_for(asked: list[DatastoreFile]) -> None:
    """V6: the log has the host's time, the task vCenter's."""
    log = stop(BEGAN - 3 + 500, 1_000_000) + stop(ENDED - 0.5 + 500, 200_000, migration=8)
    assert told(log, clock_off=500.0).milliseconds == 200
    assert told(log, clock_off=0.0).milliseconds is None


def test_v6_a_host_whose_clock_is_off_and_unknown_is_believed_if_there_is_one_stop_only(
    asked: list[DatastoreFile],
) -> None:
    """V6: unknown is None, never a guess between two."""
    assert told(stop(ENDED + 60, 200_000)).milliseconds == 200
    twice = told(stop(ENDED + 60, 200_000) + stop(ENDED + 70, 300_000, migration=8))
    assert twice.milliseconds is None
    assert "or of several" in twice.why


@pytest.mark.parametrize(
    ("log", "path", "why"),
    [
        ("", "[ssd] x/x.vmx", "no such stop"),
        (TransferError("https://vc:443 answered 403 Forbidden."), "[ssd] x/x.vmx", "403 Forbidden"),
        (LabError("vCenter vc doesn't answer.", kind="host-unreachable"), "[ssd] x/x.vmx", "doesn't answer"),
        ("", "", "no files"),
    ],
)
def test_v6_what_can_not_be_had_is_none_with_the_reason(
    asked: list[DatastoreFile], log: object, path: str, why: str
) -> None:
    """V6: NULL when logs are not reachable, and where the figure would be."""
    answer = told(log, path=path)
    assert (answer.milliseconds, answer.source) == (None, "")
    assert why in answer.why
    assert "Checkpoint_Unstun" in answer.why
