"""The steps of an attempt's life, as tests of the store take them."""

from __future__ import annotations

from labctl.model.campaign import PlannedCell
from labctl.model.order import RunOrder
from labctl.model.outcome import Purpose
from labctl.model.result import AttemptResult
from labctl.store import After, AttemptHandle, AttemptStart, Store
from tests.values import a_campaign, a_cell, a_lab, an_order

ONE = frozenset({"host:a", "machine:one"})


def submit(store: Store, *, replicates: int = 2) -> int:
    cells = [
        PlannedCell(cell=a_cell(nic_model="virtio")),
        PlannedCell(cell=a_cell(nic_model="vt-d"), reason="no device"),
        PlannedCell(cell=a_cell(nic_model="e1000")),
    ]
    return store.submit(
        a_campaign(),
        a_lab(),
        campaign_text="campaign: small\n",
        lab_text="lab: lab\n",
        versions={"labctl": "0"},
        cells=cells,
        order=[(position, 1 + at, Purpose.MEASURE) for at in range(replicates) for position in (1, 0)],
    )


def start(store: Store, campaign: int, *, resources: frozenset[str] = ONE) -> AttemptHandle:
    run = store.pending_runs(campaign, limit=1)[0]
    handle = start_run(store, run.id, resources)
    assert handle is not None
    return handle


def start_run(
    store: Store, run_id: int, resources: frozenset[str], *, lab: str = "lab", order: RunOrder | None = None
) -> AttemptHandle | None:
    """Start one attempt."""
    asked = AttemptStart(run_id=run_id, order=order or an_order(), resources=resources, estimate=10.0)
    (handle,) = store.start_attempts(lab, [asked])
    return handle


def accept(store: Store, handle: AttemptHandle, result: AttemptResult, *, again: bool) -> bool:
    """Hand a result in."""
    return store.accept(handle, result, After(again=again)) is not None


def started_and_claimed(store: Store, campaign: int, **more: frozenset[str]) -> AttemptHandle:
    handle = start(store, campaign, **more)
    assert store.claim(handle, worker="w:1") is not None
    return handle


def vm_for(handle: AttemptHandle, campaign: int, uuid: str, shape: str = "s") -> dict[str, object]:
    return {
        "uuid": uuid, "name": f"labctl-{uuid}", "lab": "lab", "host": "a", "campaign_id": campaign, "run_id": 1,
        "attempt_id": handle.id, "role": "sender", "mac": "52:54:00:00:00:01", "shape": shape, "state": "live",
    }  # fmt: skip
