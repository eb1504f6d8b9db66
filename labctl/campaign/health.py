"""Health checks: a small run of labctl's own finds out whether a quarantined host works again.

A check is a campaign of one run, put in through the ordinary engine, so that leases, tokens and recovery hold for it as for
any other. It is made, and run, only while a campaign that uses the lab may run: outside of its windows nobody touches the
hosts.
"""

from __future__ import annotations

from dataclasses import replace

from labctl import clock
from labctl.campaign import commands
from labctl.campaign.policy import Blame, rule_of
from labctl.errors import SpecError
from labctl.model.campaign import Campaign
from labctl.model.lab import Lab
from labctl.model.nic import Hypervisor
from labctl.model.outcome import HostState, Outcome, OutcomeDetail, Purpose
from labctl.model.patience import patience
from labctl.model.scenario import Scenario
from labctl.model.settings import Level
from labctl.plan.windows import opening_at
from labctl.store import CampaignHead, Event, HostRecord, Store

CHECK_SECONDS = 1.0
"""How long the transfer of a check lasts."""
_FACT = "health-check"
"""The fact that a check gives the host in its copy of the lab, so that its run can be placed nowhere else."""
_QUARANTINE = "quarantine"
"""The label of a check that says for which quarantine it was made."""
_OF_THE_VM = ("image", "memory", "vcpus", "machine_type", "tool")
"""The settings that a check takes over from the campaign that waits for the host: another VM might not boot at all."""
_USUAL_NIC = {Hypervisor.KVM: "virtio", Hypervisor.VSPHERE: "vmxnet3", Hypervisor.HYPERV: "synthetic"}


def due(store: Store) -> None:
    """Put in the health checks that are due, and settle those that have ended. Of several engines only one makes each."""
    quarantined = [host for host in store.hosts() if host.state is HostState.QUARANTINED]
    if not quarantined:
        return
    working = _working(store)
    for host in quarantined:
        newest = store.newest_of_name(host.lab, name_of(host.host), Purpose.HEALTH)
        if newest is not None and settle(store, newest):
            continue
        waits = next((head for head in working if head.lab.name == host.lab and host.host in head.lab.hosts), None)
        if waits is not None and _is_due(host) and not _in_progress(store, newest):
            _check(store, host, waits)


def settle(store: Store, campaign_id: int) -> bool:
    """Let the host in again that a check found good, or count that it failed. True when the host's state has changed.

    Any number of times, by anyone: what a check found counts once, and only for the quarantine that it was made for.
    """
    head = store.head(campaign_id)
    labels = head.campaign.labels
    host = _quarantined(store, head.lab.name, labels.get(_FACT, ""))
    if host is None or labels.get(_QUARANTINE) != _quarantine(host):
        return False
    found = _found(store, campaign_id)
    if found is None:
        return False
    if found.outcome is Outcome.OK:
        return _let_in(store, host, why="A health check has passed.")
    if not _tells_of_host(found):
        return False
    return _count_failure(store, host, campaign_id, found)


def name_of(host: str) -> str:
    """The name of the campaigns that check a host."""
    return f"health check of {host}"


def check_of(host: HostRecord, waits: CampaignHead) -> tuple[Campaign, Lab]:
    """The campaign that checks a host, with VMs like those of the campaign that waits for it, and its copy of the lab."""
    lab, theirs, name = waits.lab, waits.campaign, host.host
    checked = replace(lab.hosts[name], facts={**lab.hosts[name].facts, _FACT: name})
    settings: dict[str, Level] = {"nic_model": _USUAL_NIC[checked.hypervisor], f"host.{_FACT}": name}
    settings |= {"seconds": CHECK_SECONDS, "interval": CHECK_SECONDS}
    for setting in _OF_THE_VM:
        levels = theirs.factors.get(setting, ())
        level = theirs.settings.get(setting, levels[0] if levels else None)
        if level is not None:
            settings[setting] = level
    campaign = Campaign(
        name=name_of(name),
        scenarios=(Scenario.SAME_HOST,),
        factors={},
        settings=settings,
        repeats=1,
        warmups=0,
        timeouts=theirs.timeouts,
        windows=theirs.windows,
        lab_error_retries=0,
        labels={_FACT: name, _QUARANTINE: _quarantine(host)},
        priority=commands.HIGHEST_PRIORITY,
    )
    return campaign, replace(lab, hosts={**lab.hosts, name: checked}, quiet=None)


def delay(failed: int) -> float:
    """Seconds until the next check of a host after so many failed ones."""
    asked = patience()
    return min(asked.check_longest, asked.check_first * 2.0 ** min(failed, 60))


def _working(store: Store) -> list[CampaignHead]:
    """The active campaigns that are no checks and may run now, in order of rank."""
    now = clock.now()
    heads = [store.head(line.id) for line in store.queue() if line.purpose is not Purpose.HEALTH]
    return [head for head in heads if opening_at(head.campaign.windows, now) is not None]


def _is_due(host: HostRecord) -> bool:
    """Whether a check is due. One that lies further ahead than any is put off was timed by a wall clock that was set back
    since."""
    ahead = host.next_check - clock.now()
    return ahead <= 0 or ahead > delay(host.checks + 1)


def _quarantine(host: HostRecord) -> str:
    """What tells a quarantine of a host from its earlier ones."""
    return repr(host.since)


def _in_progress(store: Store, check: int | None) -> bool:
    return check is not None and not store.state(check).ended and store.has_open_runs(check)


def _check(store: Store, host: HostRecord, waits: CampaignHead) -> None:
    until = clock.now() + delay(host.checks + 1)
    if not store.delay_check(host.lab, host.host, expected=host.next_check, until=until):
        return
    campaign, lab = check_of(host, waits)
    try:
        commands.submit(store, campaign, lab, campaign_text="", lab_text="", purpose=Purpose.HEALTH)
    except SpecError as error:
        _let_in(
            store, host, why=f"It can't be checked by a small run ({error.what}), so it is tried again with real ones."
        )


def _quarantined(store: Store, lab: str, name: str) -> HostRecord | None:
    hosts = (host for host in store.hosts(lab) if host.host == name and host.state is HostState.QUARANTINED)
    return next(hosts, None)


def _found(store: Store, campaign_id: int) -> OutcomeDetail | None:
    """How the run of a check ended; None as long as it hasn't, or when it never began."""
    if store.has_open_runs(campaign_id):
        return None
    results = [run.result for run in store.record(campaign_id).runs if run.result is not None]
    return results[0].detail if results else None


def _tells_of_host(found: OutcomeDetail) -> bool:
    """Whether it is the host that can't be used, and not a worker, the store, or somebody who cancelled the check."""
    return found.outcome is Outcome.FAILED or rule_of(found.outcome, found.kind).blame is not Blame.NOBODY


def _let_in(store: Store, host: HostRecord, *, why: str) -> bool:
    if not store.set_host(host.lab, host.host, HostState.GOOD, only_from=(HostState.QUARANTINED,)):
        return False
    _tell(
        store, host, "host-back", f"{host.since:.3f}", f"Host {host.host} of lab {host.lab} is given runs again: {why}"
    )
    return True


def _count_failure(store: Store, host: HostRecord, check: int, found: OutcomeDetail) -> bool:
    key = f"check-failed-{host.host}-{check}"
    if store.has_event(f"lab-{host.lab}", key):
        return False
    said = f"A health check of host {host.host} of lab {host.lab} failed ({found.kind or found.outcome}): {found.what}"
    if not _tell(store, host, "check-failed", str(check), said):
        return False
    failed = host.checks + 1
    state = store.check_failed(
        host.lab, host.host, next_check=clock.now() + delay(failed), out_after=patience().checks,
        why=f"Health check {failed} failed ({found.kind or found.outcome}): {found.what}",
    )  # fmt: skip
    if state is HostState.OUT:
        said = (
            f"Host {host.host} of lab {host.lab} is out: {failed} health checks in a row failed, the last one as "
            f"{found.kind or found.outcome}: {found.what} `labctl hosts release {host.host} --lab {host.lab}` lets it in."
        )
        _tell(store, host, "host-out", f"{host.since:.3f}", said)
    return state is not HostState.QUARANTINED


def _tell(store: Store, host: HostRecord, kind: str, key: str, what: str) -> bool:
    event = Event(scope=f"lab-{host.lab}", key=f"{kind}-{host.host}-{key}", kind=kind, what=what, at=clock.now())
    return store.tell(event)
