"""Attempts made by hand: the scheduler's choice of runs and hosts is left out, so that a test says what ends where and how."""

from __future__ import annotations

from dataclasses import replace

from labctl.campaign import judgement
from labctl.model.lab import Host, Lab
from labctl.model.order import EndpointOrder, Placement, RunOrder
from labctl.model.outcome import Outcome, OutcomeDetail
from labctl.model.result import AttemptResult
from labctl.model.scenario import Side
from labctl.store import AttemptHandle, AttemptStart, CampaignHead, Store
from tests.values import a_lab, an_order


def lab_of(*names: str) -> Lab:
    """A lab with so many hosts, each a physical machine of its own."""
    lab = a_lab()
    hosts: dict[str, Host] = {name: replace(lab.hosts["a"], name=name, machine=name) for name in names}
    pairs = frozenset((one, other) for one in names for other in names if one != other)
    return replace(lab, hosts=hosts, migration_pairs=pairs)


def on(*hosts: str) -> RunOrder:
    """An order with its two VMs on one host, or on two."""
    order = an_order(hosts[0])
    receiver = EndpointOrder(side=Side.RECEIVER, host=hosts[-1], vm=True)
    return replace(order, placement=Placement(sender=order.placement.sender, receiver=receiver))


def begin(store: Store, head: CampaignHead, *hosts: str, cell: str = "", worker: str = "w:1") -> AttemptHandle:
    """The next run of the campaign, or of a cell, begun on hosts."""
    runs = [run for run in store.pending_runs(head.id, limit=1000) if cell in ("", run.cell.id)]
    assert runs, "no run waits"
    order = on(*hosts)
    names = frozenset(f"host:{name}" for name in order.placement.hosts)
    (handle,) = store.start_attempts(head.lab.name, [AttemptStart(run_id=runs[0].id, order=order, resources=names)])
    assert handle is not None
    assert store.claim(handle, worker=worker) is not None
    return handle


def end(
    store: Store,
    head: CampaignHead,
    *hosts: str,
    cell: str = "",
    outcome: Outcome = Outcome.LAB_ERROR,
    kind: str = "",
    host: str = "",
) -> None:
    """An attempt on hosts that ended so."""
    handle = begin(store, head, *hosts, cell=cell)
    detail = OutcomeDetail(outcome=outcome, kind=kind, what=f"It was {kind}.", host=host)
    assert judgement.accept(store, handle, AttemptResult(detail=detail))
