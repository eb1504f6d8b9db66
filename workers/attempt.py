"""The procedure of an attempt, to be read top to bottom: place, verify, settle, transfer (migrate), collect, release.

Its hosts are leased before it begins (`labctl.campaign.scheduler.advance`) and freed when its result is accepted.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from labctl import clock
from labctl.errors import AttemptCancelled, LabctlError, LabError, SystemUnderTestError
from labctl.model.outcome import Outcome, OutcomeDetail
from labctl.model.result import AttemptResult, Fact, FactSet, MigrationResult
from labctl.model.scenario import Side
from labctl.model.tools import program
from labctl.store import ClaimedAttempt, Store
from workers import leftovers
from workers.asked import Asked
from workers.guard import Guard
from workers.hypervisors.base import MigrationOutcome, OwnedVm
from workers.journal import Journal
from workers.leftovers import Whose
from workers.machines import Machines
from workers.owner import owner_wants_parking
from workers.placing import Endpoint, Placed, place, release
from workers.settling import settle
from workers.stack import hosts as host_stacks
from workers.together import together
from workers.transferring import roles, transfer
from workers.verification import differences, prepare, read_machine, verify_vm
from workers.whereabouts import check_incidents, check_placement, expected_host

log = logging.getLogger(__name__)


class Attempt:
    """One try at executing a run."""

    def __init__(self, claimed: ClaimedAttempt, *, store: Store, guard: Guard) -> None:
        self._claimed = claimed
        self._order = claimed.order
        self._store = store
        self._guard = guard
        self._journal = Journal()
        self._machines = Machines(claimed.lab, store=store.identity, guard=guard)
        self._began = clock.now()

    def phase(self) -> str:
        """What it is doing now, in a word."""
        return self._journal.current

    def carry_out(self) -> AttemptResult:
        """Do all of it. Never raises: whatever happened is in the result, and nothing of the attempt is left behind."""
        with clock.working(f"attempt {self._claimed.id}"):
            detail = self._outcome()
            try:
                with self._journal.phase("release"):
                    self._release(park=self._order.reuse and detail.outcome is Outcome.OK and owner_wants_parking())
            finally:
                self._machines.close()
        return self._journal.result(detail)

    def _outcome(self) -> OutcomeDetail:
        """The work, with every error turned into an outcome by who must act."""
        try:
            self._work()
        except AttemptCancelled as stop:
            return self._detail(Outcome.CANCELLED, kind="cancelled", error=stop)
        except SystemUnderTestError as error:
            return self._detail(Outcome.FAILED, kind=error.kind, error=error)
        except LabError as error:
            if self._guard.stopped:
                return self._detail(Outcome.CANCELLED, kind="cancelled", error=error)
            return self._detail(Outcome.LAB_ERROR, kind=error.kind, error=error, host=error.host)
        except Exception as error:
            log.exception("attempt %s: a bug of labctl", self._claimed.id)
            self._journal.keep("traceback", traceback.format_exc().encode())
            return OutcomeDetail(
                outcome=Outcome.LAB_ERROR,
                kind="bug",
                what=f"labctl itself failed: {type(error).__name__}: {error}",
                why="This is a bug of labctl, not of your lab.",
                todo="Report it with the raw output `traceback` of the attempt.",
                phase=self._journal.current,
            )
        return OutcomeDetail(outcome=Outcome.OK)

    def _work(self) -> None:
        journal, order = self._journal, self._order
        with journal.phase("place"):
            self._check_path()
            self._began = clock.now()
            self._facts_of_hosts("before", host_stacks.set_up(self._claimed, self._machines, self._store, self._guard))
            placed = place(self._claimed, self._machines, self._store, self._guard)
        with journal.phase("verify"):
            self._verify(placed)
        who = roles(order, placed)
        noisy = self._settle(placed) if order.warmups else ""
        for index in range(1, order.warmups + 1):
            with journal.phase("warm-up"):
                fault = transfer(
                    order, order.warmup, who, journal, self._guard,
                    attempt=self._claimed.id, index=index, counted=False, noisy=noisy,
                )  # fmt: skip
            self._judge_transfer(placed, fault)
        for index in range(order.warmups + 1, order.warmups + order.transfers + 1):
            if index > 1:
                with journal.phase("verify"):
                    together(placed.both, self._inside)
            noisy = self._settle(placed)
            with journal.phase("transfer"):
                fault = transfer(
                    order, order.transfer, who, journal, self._guard, attempt=self._claimed.id, index=index,
                    counted=True, noisy=noisy, event=self._event(placed, index),
                )  # fmt: skip
            self._judge_migrations(placed, index)
            self._judge_transfer(placed, fault)
        with journal.phase("collect"):
            self._collect(placed)

    # Place

    def _check_path(self) -> None:
        """Whether the VM that is to migrate could: asked before anything is made."""
        if self._order.migration is None:
            return
        source, destination = self._migration_path()
        why = self._machines.driver(source).check_migration(source, destination)
        if why:
            raise LabError(
                f"A VM can't be migrated from {source} to {destination}.",
                kind="migration-impossible",
                why=why,
                todo="Mend the path, or take the pair out of `migration` in the lab file.",
                host=destination,
            )

    # Settle

    def _settle(self, placed: Placed) -> str:
        """Wait for quiet hosts, where the lab has limits for that. Returns what they still do beyond these."""
        lab, wait = self._machines.lab, self._order.quiet
        if wait is None or lab.quiet is None:
            return ""
        with self._journal.phase("settle"):
            return settle(
                wait,
                lab.quiet,
                [name for name in self._order.placement.hosts if name in lab.hosts],
                self._machines,
                self._guard,
                ours={endpoint.vm.uuid for endpoint in placed.both if endpoint.vm is not None},
                keep=lambda host, facts: self._fact(f"host:{host}", "before", facts),
            )

    # Verify and collect

    def _verify(self, placed: Placed) -> None:
        together(placed.both, self._verify_endpoint)
        self._check_placement(placed, when="before")
        self._check_company()
        for host in dict.fromkeys(name for name in self._order.placement.hosts if name in self._machines.lab.hosts):
            self._fact(f"host:{host}", "before", self._machines.driver(host).host_facts(host))

    def _check_placement(self, placed: Placed, *, when: str) -> None:
        check_placement(
            placed, self._machines, self._journal, keep=lambda subject, facts: self._fact(subject, when, facts)
        )

    def _check_company(self) -> None:
        """Look for VMs that are not this attempt's on its physical machines. What others of this store left there is
        removed. Leases keep campaigns of one store apart, and nothing but this keeps those of two. It is done after
        placing, so that of two at least one sees the other."""
        lab = self._machines.lab
        used = {lab.hosts[name].machine: name for name in self._order.placement.hosts if name in lab.hosts}
        for host in (host for host in lab.hosts.values() if host.machine in used):
            for found in leftovers.on_host(self._machines, self._store, host.name, besides=self._claimed.id):
                if found.whose is Whose.LEFT:
                    log.warning("VM %s was left behind on host %s; it is removed", found.vm.name, host.name)
                    leftovers.remove(found, self._machines, self._store)
                elif found.vm.active and found.whose is Whose.ANOTHER_STORE:
                    raise _shared(found.vm, used[host.machine])
                elif found.vm.active and found.whose is Whose.UNRECORDED:
                    raise leftovers.strange(found.vm, used[host.machine])

    def _verify_endpoint(self, endpoint: Endpoint) -> None:
        if endpoint.vm is not None:
            with _blaming(endpoint.host):
                prepare(endpoint.channel, self._order)
            self._read_back(endpoint)
        self._read_inside(endpoint, when="before")

    def _read_back(self, endpoint: Endpoint) -> None:
        """What the hypervisor says it made: kept as facts, and compared with what was asked for."""
        assert endpoint.vm is not None
        assert self._order.vm is not None
        facts = dict(self._machines.driver(endpoint.vm.host).read_back(endpoint.vm))
        for name in ("domain_xml", "qemu_arguments", "console_tail"):
            if name in facts:
                self._journal.keep(f"vm-{endpoint.side}/{name}", str(facts.pop(name)).encode())
        self._fact(endpoint.subject, "created", facts)
        different = differences(self._order.vm, facts)
        if different:
            raise LabError(
                f"VM {endpoint.vm.name} was not made as it was asked for.",
                kind="vm-mismatch",
                why="; ".join(different),
                todo="The hypervisor ignores what it was asked for: leave out that level, or mend the host.",
                host=endpoint.vm.host,
            )

    def _read_inside(self, endpoint: Endpoint, *, when: str) -> None:
        self._fact(endpoint.subject, when, self._inside(endpoint, set_up=when == "before"))

    def _inside(self, endpoint: Endpoint, *, set_up: bool = False) -> Mapping[str, Fact]:
        """What is true inside an endpoint now. Raises `LabError` where that is not what was asked for."""
        timeout, tool = self._order.timeouts.command, program(self._order.transfer)
        with _blaming(expected_host(endpoint.vm, self._journal) if endpoint.vm is not None else endpoint.host):
            if endpoint.vm is None:
                return read_machine(endpoint.channel, tool=tool, timeout=timeout)
            assert self._order.vm is not None
            given = endpoint.vm.address if self._machines.lab.network().is_static else endpoint.address
            asked = Asked(mac=endpoint.vm.mac, address=str(given), shape=self._order.vm, tool=tool)
            return verify_vm(endpoint.channel, asked, timeout=timeout, guard=self._guard, set_up=set_up)

    def _judge_transfer(self, placed: Placed, fault: LabctlError | None) -> None:
        """Raise for a transfer that is worth nothing: one that others disturbed, whatever it brought, or that failed."""
        check_incidents(placed, self._machines, self._journal, since=self._began)
        if fault is not None:
            raise fault
        check_placement(placed, self._machines, self._journal)

    def _collect(self, placed: Placed) -> None:
        self._check_placement(placed, when="after")
        for endpoint in placed.both:
            if endpoint.vm is not None and self._order.migration is not None:
                self._read_inside(endpoint, when="after")
        self._facts_of_hosts("after", host_stacks.verify(self._claimed, self._machines))

    def _facts_of_hosts(self, when: str, facts: Mapping[str, Mapping[str, Fact]]) -> None:
        for host, of_host in facts.items():
            self._fact(f"host:{host}", when, of_host)

    def _fact(self, subject: str, when: str, facts: Mapping[str, Fact]) -> None:
        self._journal.facts.append(FactSet(subject=subject, when=when, facts=dict(facts)))

    # Migration

    def _migration_path(self) -> tuple[str, str]:
        assert self._order.migration is not None
        placement = self._order.placement
        mover = placement.sender if self._order.migration.mover is Side.SENDER else placement.receiver
        return mover.host, placement.destination

    def _event(self, placed: Placed, index: int) -> Callable[[float], None] | None:
        """What happens during a counted transfer: nothing, or a migration (and another one back)."""
        order = self._order.migration
        if order is None:
            return None

        def migrate(began: float) -> None:
            seconds = self._order.transfer.seconds
            source, destination = self._migration_path()
            self._sleep_until(began + order.at * seconds)
            there = self._migrate(placed, source, destination, index)
            if order.back and there.completed:
                self._sleep_until(began + (order.at + (1 - order.at) / 2) * seconds)
                self._migrate(placed, destination, source, index)

        return migrate

    def _sleep_until(self, moment: float) -> None:
        self._guard.sleep(max(0.0, moment - clock.monotonic()))

    def _migrate(self, placed: Placed, source: str, destination: str, index: int) -> MigrationOutcome:
        order = self._order.migration
        assert order is not None
        endpoint = placed.side(order.mover)
        assert endpoint.vm is not None
        self._journal.current = f"migrating to {destination}"
        outcome = self._machines.driver(source).migrate(endpoint.vm, destination, order)
        if outcome.completed:
            self._store.change_vm(endpoint.vm.uuid, host=destination, migrated=True)
        record = self._store.vm(endpoint.vm.uuid)
        made = record.migrations if record is not None else 0
        self._journal.migrations.append(
            MigrationResult(
                domain=endpoint.vm.name,
                mover=order.mover,
                source=source,
                destination=destination,
                started=outcome.started,
                ended=outcome.ended,
                completed=outcome.completed,
                transfer_index=index,
                ordinal=made if outcome.completed else made + 1,
                error=f"{outcome.error_kind}: {outcome.error}" if outcome.error_kind else "",
                total_ms=outcome.total_ms,
                downtime_ms=outcome.downtime_ms,
                no_downtime=outcome.no_downtime,
                setup_ms=outcome.setup_ms,
                bytes_moved=outcome.bytes_moved,
                iterations=outcome.iterations,
                stats_source=outcome.stats_source,
                queued_ms=outcome.queued_ms,
                samples=outcome.samples,
            )
        )
        self._journal.current = "transfer"
        return outcome

    def _judge_migrations(self, placed: Placed, index: int) -> None:
        """Raise for a migration that did not come about, after the transfer around it has been kept and the VM found
        where it was before."""
        for item in self._journal.migrations:
            if item.transfer_index != index or item.completed:
                continue
            kind, _, error = item.error.partition(": ")
            what = f"VM {item.domain} was not migrated from {item.source} to {item.destination}."
            if kind == "cancelled":
                self._guard.check()
            if kind == "deadline":
                self._check_placement(placed, when="after")
                raise SystemUnderTestError(what, kind="migration-timeout", why=error)
            raise LabError(
                what, kind=f"migration-{kind or 'failed'}", why=error, todo="Check the migration path.",
                host=item.destination,
            )  # fmt: skip

    # Release

    def _release(self, *, park: bool) -> None:
        """Let go of the VMs, also after a cancel: with machines of its own, whose guard nobody stops."""
        guard = Guard(self._guard.fence)
        machines = Machines(self._claimed.lab, store=self._store.identity, guard=guard)
        claimed, store = self._claimed, self._store
        try:
            self._let_go("VMs", lambda: release(claimed, machines, store, park=park))
            self._let_go("settings of the hosts", lambda: host_stacks.release(claimed, machines, store, guard))
        finally:
            with suppress(LabError):
                machines.close()

    def _let_go(self, what: str, let_go: Callable[[], tuple[str, ...]]) -> None:
        """One part of the release. The result is worth more than a clean end: what is left is recorded, and cleaning finds
        it."""
        try:
            self._journal.warnings.extend(let_go())
        except AttemptCancelled as void:
            log.warning("attempt %s: its %s are left to who cleans after it: %s", self._claimed.id, what, void.why)
        except Exception as error:
            log.exception("attempt %s: release failed", self._claimed.id)
            self._journal.warnings.append(f"The {what} could not be released: {getattr(error, 'what', error)}")

    def _detail(self, outcome: Outcome, *, kind: str, error: Exception, host: str = "") -> OutcomeDetail:
        return OutcomeDetail(
            outcome=outcome,
            kind=kind,
            what=str(getattr(error, "what", error)),
            why=str(getattr(error, "why", "")),
            todo=str(getattr(error, "todo", "")),
            host=host,
            phase=self._journal.current,
        )


@contextmanager
def _blaming(host: str) -> Iterator[None]:
    """Lab-errors in the block that name no host are this one's."""
    try:
        yield
    except LabError as error:
        error.host = error.host or host
        raise


def _shared(vm: OwnedVm, host: str) -> LabError:
    """It can't be measured on this host, whose physical machine the VM runs on."""
    return LabError(
        f"Another labctl uses host {vm.host}: the VM {vm.name} runs there.",
        kind="host-shared",
        why=f"It belongs to campaign {vm.mark.campaign} of a store in another state directory "
        f"({vm.mark.store}), and two campaigns would measure each other.",
        todo="Wait until that campaign has ended, or use one state directory for both: then they take turns.",
        host=host,
    )
