"""The chooser, by what must hold whatever the lab, the leases and the campaigns are, and by small worked cases."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.plan.choose import Contender, Places, Resources, Start, Timetable, WaitingRun, choose

NOW = 1_790_000_000.0
MOST_HOSTS = 6


@dataclass
class Ground:
    """Hosts `0`, `1`, ..., two to a machine when `shared`, with the places of runs that need one host, two, or two and a
    turn to migrate."""

    hosts: int
    shared: bool = False
    slots: int = 1
    resources: Resources = field(default_factory=Resources)

    def __post_init__(self) -> None:
        one = [self.leased(host) for host in range(self.hosts)]
        two = [self.leased(*pair) for pair in permutations(range(self.hosts), 2)]
        slots = [f"migration:{number}" for number in range(1, self.slots + 1)]
        self.one = Places(self.resources, one)
        self.two = Places(self.resources, two or one)
        self.moving = Places(self.resources, two or one, slots=slots)
        self.all = (self.one, self.two, self.moving)
        for host in range(self.hosts):
            self.resources.number(f"host:{host}")

    def leased(self, *hosts: int) -> frozenset[str]:
        machines = {f"machine:{host // 2 if self.shared else host}" for host in hosts}
        return frozenset(f"host:{host}" for host in hosts) | machines

    def contender(self, number: int, runs: Iterable[tuple[int, float]], **values: object) -> Contender:
        """A campaign with these runs, each as (which of the places, seconds)."""
        read = (
            WaitingRun(id=number * 1000 + at, places=self.all[kind], seconds=seconds, wish=at)
            for at, (kind, seconds) in enumerate(runs)
        )
        return Contender(id=number, runs=read, places=frozenset(self.all), **values)  # type: ignore[arg-type]

    def timetable(self, leases: dict[str, float] | None = None, closed: Iterable[int] = ()) -> Timetable:
        return Timetable(self.resources, NOW, leases or {}, [f"host:{host}" for host in closed])


def chosen(starts: Sequence[Start]) -> list[tuple[int, tuple[str, ...]]]:
    """(run, hosts) of each start."""
    return [
        (
            start.run.id,
            tuple(sorted(name.removeprefix("host:") for name in start.resources if name.startswith("host:"))),
        )
        for start in starts
    ]


@dataclass
class Case:
    """Something to choose from, kept so that it can be looked at afterwards."""

    ground: Ground
    leases: dict[str, float]
    closed: set[int]
    runs: dict[int, list[tuple[int, float]]]
    left: dict[int, float]
    priorities: dict[int, int]
    shares: dict[int, float]
    health: set[int]

    def contenders(self) -> list[Contender]:
        return [
            self.ground.contender(
                number,
                runs,
                seconds_left=self.left[number],
                priority=self.priorities[number],
                share=self.shares[number],
                health=number in self.health,
            )
            for number, runs in self.runs.items()
        ]


seconds = st.sampled_from([1.0, 5.0, 60.0, 600.0])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    ground = Ground(draw(st.integers(2, MOST_HOSTS)), shared=draw(st.booleans()), slots=draw(st.integers(1, 2)))
    leases: dict[str, float] = {}
    for host in draw(st.sets(st.integers(0, ground.hosts - 1))):
        leases |= dict.fromkeys(ground.leased(host), NOW + draw(st.floats(-100, 1000)))
    if draw(st.booleans()):
        leases["migration:1"] = NOW + draw(st.floats(-100, 1000))
    numbers = range(1, draw(st.integers(1, 4)) + 1)
    return Case(
        ground=ground,
        leases=leases,
        closed=draw(st.sets(st.integers(0, ground.hosts - 1), max_size=2)),
        runs={number: draw(st.lists(st.tuples(st.integers(0, 2), seconds), max_size=8)) for number in numbers},
        left={number: draw(st.sampled_from([inf, inf, 30.0])) for number in numbers},
        priorities={number: draw(st.sampled_from([0, 0, 0, 5])) for number in numbers},
        shares={number: draw(st.floats(0, 1000)) for number in numbers},
        health=draw(st.sampled_from([set(), set(), {1}])),
    )


@given(cases())
def test_nothing_is_given_twice_nor_what_is_held_nor_a_host_that_is_not_good(case: Case) -> None:
    starts = choose(case.contenders(), case.ground.timetable(case.leases, case.closed))
    taken = [name for start in starts for name in start.resources]
    assert len(taken) == len(set(taken))
    assert not set(taken) & set(case.leases)
    closed = {f"host:{host}" for host in case.closed}
    assert not any(start.resources & closed for start in starts if start.campaign not in case.health)
    assert len({start.run.id for start in starts}) == len(starts)


@given(cases())
def test_every_start_is_what_its_run_needs_and_fits_before_the_window_closes(case: Case) -> None:
    for start in choose(case.contenders(), case.ground.timetable(case.leases, case.closed)):
        hosts = {name for name in start.resources if name.startswith("host:")}
        slots = {name for name in start.resources if name.startswith("migration:")}
        assert len(hosts) == (1 if start.run.places is case.ground.one else 2)
        assert len(slots) == (1 if start.run.places is case.ground.moving else 0)
        assert start.run.seconds <= case.left[start.campaign]


@given(cases())
def test_no_host_idles_that_a_run_could_have_without_delaying_another_that_waits(case: Case) -> None:
    contenders = case.contenders()
    starts = choose(contenders, case.ground.timetable(case.leases, case.closed))
    started = {start.run.id for start in starts}
    busy = set(case.leases) | {name for start in starts for name in start.resources}
    busy |= {f"host:{host}" for host in case.closed}
    kept: dict[str, float] = {}
    for contender in contenders:
        if contender.kept is not None:
            # Any slot may be the one that was kept: it is not looked at here.
            for name in contender.kept.run.places.names(contender.kept.position):
                kept[name] = min(kept.get(name, inf), contender.kept.begins)
    for number, runs in case.runs.items():
        for at, (kind, length) in enumerate(runs):
            if number * 1000 + at in started or length > case.left[number] or number in case.health:
                continue
            if kind == 2 and (
                any(each.kept and each.kept.run.places.slots != (0,) for each in contenders)
                or len([name for name in busy if name.startswith("migration:")]) == case.ground.slots
            ):
                continue
            places = case.ground.all[kind]
            for position in range(len(places)):
                names = places.names(position)
                delays = any(NOW + length > kept.get(name, inf) for name in names)
                assert names & busy or delays, f"run {number * 1000 + at} could have been started on {sorted(names)}"


@given(cases())
def test_what_is_kept_can_be_had_when_it_says_and_ends_before_the_window_does(case: Case) -> None:
    contenders = case.contenders()
    starts = choose(contenders, case.ground.timetable(case.leases, case.closed))
    ends = dict(case.leases)
    for start in starts:
        ends |= dict.fromkeys(start.resources, NOW + start.run.seconds)
    for contender in contenders:
        if contender.kept is not None:
            kept, places = contender.kept, contender.kept.run.places
            assert all(ends.get(name, NOW) <= kept.begins for name in places.names(kept.position))
            assert kept.begins + kept.run.seconds <= NOW + case.left[contender.id]
            assert kept.run.id not in {start.run.id for start in starts}


@given(cases())
def test_a_campaign_of_higher_priority_gets_what_it_would_get_alone(case: Case) -> None:
    highest = max(case.priorities[number] for number in case.runs)
    first = [number for number in case.runs if case.priorities[number] == highest or number in case.health]
    together = choose(case.contenders(), case.ground.timetable(case.leases, case.closed))
    alone = choose(
        [each for each in case.contenders() if each.id in first], case.ground.timetable(case.leases, case.closed)
    )
    assert [start for start in chosen(together) if start[0] // 1000 in first] == chosen(alone)


@given(cases())
def test_the_same_question_has_the_same_answer(case: Case) -> None:
    answers = [chosen(choose(case.contenders(), case.ground.timetable(case.leases, case.closed))) for _ in range(2)]
    assert answers[0] == answers[1]


def test_campaigns_of_equal_priority_take_turns_within_one_call() -> None:
    ground = Ground(4)
    contenders = [ground.contender(number, [(0, 60.0)] * 9) for number in (1, 2)]
    starts = choose(contenders, ground.timetable())
    assert [start.campaign for start in starts] == [1, 2, 1, 2]
    assert [each.share for each in contenders] == [120.0, 120.0]


def test_whoever_was_given_less_catches_up_first() -> None:
    ground = Ground(3)
    contenders = [ground.contender(1, [(0, 60.0)] * 9, share=500.0), ground.contender(2, [(0, 60.0)] * 9, share=380.0)]
    assert [start.campaign for start in choose(contenders, ground.timetable())] == [2, 2, 1]


def test_a_host_goes_to_whoever_can_use_it() -> None:
    ground = Ground(2)
    contenders = [ground.contender(1, [(1, 60.0)], priority=5), ground.contender(2, [(0, 60.0)] * 3)]
    leases = dict.fromkeys(ground.leased(0), NOW + 100)
    assert chosen(choose(contenders, ground.timetable(leases))) == [(2000, ("1",))], "it ends before host 0 is free"


def test_what_would_outlast_the_wait_of_a_two_host_run_is_not_started_beside_it() -> None:
    ground = Ground(2)
    leases = dict.fromkeys(ground.leased(0), NOW + 100)
    contenders = [ground.contender(1, [(1, 60.0), (0, 101.0), (0, 99.0)])]
    assert chosen(choose(contenders, ground.timetable(leases))) == [(1002, ("1",))]
    assert contenders[0].waiting is not None
    assert contenders[0].waiting.id == 1000
    assert contenders[0].kept is not None
    assert contenders[0].kept.begins == NOW + 100


def test_an_overdue_lease_counts_as_ending_any_moment() -> None:
    ground = Ground(3)
    leases = dict.fromkeys(ground.leased(0), NOW - 500) | dict.fromkeys(ground.leased(1), NOW + 1000)
    contenders = [ground.contender(1, [(1, 60.0), (0, 0.001)])]
    assert choose(contenders, ground.timetable(leases)) == ()
    assert contenders[0].kept is not None
    names = contenders[0].kept.run.places.names(contenders[0].kept.position)
    assert names == ground.leased(0, 2)


def test_nothing_is_kept_for_a_run_that_would_not_end_before_its_window() -> None:
    ground = Ground(2)
    leases = dict.fromkeys(ground.leased(0), NOW + 100)
    contenders = [
        ground.contender(1, [(1, 60.0)], seconds_left=120.0, priority=5),
        ground.contender(2, [(0, 600.0)]),
    ]
    assert chosen(choose(contenders, ground.timetable(leases))) == [(2000, ("1",))]


def test_a_health_check_comes_first_and_may_use_a_host_that_is_not_good() -> None:
    ground = Ground(2, shared=True)
    contenders = [
        ground.contender(1, [(0, 60.0)], priority=100),
        Contender(id=2, runs=iter([WaitingRun(id=7, places=ground.one, seconds=5.0)]), places=frozenset({ground.one}),
                  health=True),
    ]  # fmt: skip
    assert chosen(choose(contenders, ground.timetable(closed=[0]))) == [(7, ("0",))], "both hosts are on one machine"


def test_no_more_runs_migrate_at_once_than_the_lab_allows() -> None:
    ground = Ground(6, slots=2)
    starts = choose([ground.contender(1, [(2, 60.0)] * 5 + [(1, 60.0)])], ground.timetable())
    assert [start.run.id for start in starts] == [1000, 1001, 1005]
    slots = [name for start in starts for name in start.resources if name.startswith("migration:")]
    assert slots == ["migration:1", "migration:2"]


def test_a_replicate_gets_the_placement_that_it_wishes_for_or_the_next_one_that_is_free() -> None:
    ground = Ground(4)
    runs = [WaitingRun(id=at, places=ground.one, seconds=9.0, wish=wish) for at, wish in enumerate((2, 2, 7, 0))]
    contender = Contender(id=1, runs=iter(runs), places=frozenset({ground.one}))
    assert chosen(choose([contender], ground.timetable())) == [(0, ("2",)), (1, ("3",)), (2, ("0",)), (3, ("1",))]


def test_runs_are_read_only_as_far_as_there_is_something_to_be_had() -> None:
    ground = Ground(2)
    read: list[int] = []

    def endless() -> Iterator[WaitingRun]:
        at = 0
        while True:
            read.append(at)
            yield WaitingRun(id=at, places=ground.one, seconds=60.0)
            at += 1

    contender = Contender(id=1, runs=endless(), places=frozenset({ground.one}))
    assert len(choose([contender], ground.timetable())) == 2
    assert len(read) == 3


@dataclass
class World:
    """A lab that goes on: runs start as chosen, and end when they do, whatever was estimated."""

    ground: Ground
    now: float = NOW
    running: list[tuple[float, float, Start]] = field(default_factory=list)
    shares: dict[int, float] = field(default_factory=dict)

    def step(self, contenders: Sequence[Contender], lasts: dict[int, float]) -> tuple[Start, ...]:
        """Start what is chosen, then go on to the next end of a run. `lasts` says how long runs really take."""
        leases = {name: expected for _, expected, start in self.running for name in start.resources}
        starts = choose(contenders, Timetable(self.ground.resources, self.now, leases))
        for start in starts:
            self.running.append((self.now + lasts[start.run.id], self.now + start.run.seconds, start))
        self.shares = {each.id: each.share for each in contenders}
        if self.running:
            self.running.sort(key=lambda item: item[0])
            self.now = max(self.now, self.running.pop(0)[0])
        return starts


@given(st.integers(2, MOST_HOSTS), st.integers(0, 10**6), st.booleans(), st.sampled_from([0.01, 0.5, 1.0, 4.0]))
def test_a_two_host_run_is_not_starved_by_a_stream_of_one_host_runs(
    hosts: int, seed: int, one_campaign: bool, wrong: float
) -> None:
    """`wrong` is by how much estimates miss at the most: runs last from that share of it to so many times as long."""
    source, ground = random.Random(seed), Ground(hosts)
    world = World(ground)
    low, high = sorted((wrong, 1 / wrong))
    longest = 10.0 * high
    stream = [WaitingRun(id=at, places=ground.one, seconds=source.uniform(1, 10)) for at in range(1, 400)]
    lasts = {run.id: min(longest, run.seconds * source.uniform(low, high)) for run in stream}
    pair = WaitingRun(id=0, places=ground.two, seconds=5.0)
    lasts[0] = 5.0
    begun: set[int] = set()
    # The hosts are full of one-host runs before the pair comes.
    world.step([Contender(id=1, runs=iter(stream), places=frozenset({ground.one}))], lasts)
    begun |= {start.run.id for *_, start in world.running}
    arrived = world.now
    while 0 not in begun:
        waiting = [run for run in stream if run.id not in begun]
        assert waiting, "the stream has passed the pair by"
        assert world.now - arrived <= 3 * longest, "every host has ended what it had, and one more, since"
        if one_campaign:
            contenders = [Contender(id=1, runs=iter([pair, *waiting]), places=frozenset(ground.all))]
        else:
            mine = Contender(id=2, runs=iter([pair]), places=frozenset({ground.two}), share=world.shares.get(2, 0.0))
            theirs = Contender(id=1, runs=iter(waiting), places=frozenset({ground.one}), share=world.shares.get(1, 0.0))
            contenders = [mine, theirs]
        begun |= {start.run.id for start in world.step(contenders, lasts)}


@given(st.integers(1, MOST_HOSTS), st.integers(0, 10**6))
def test_shares_of_campaigns_that_can_use_any_host_stay_within_one_run(hosts: int, seed: int) -> None:
    source, ground = random.Random(seed), Ground(hosts)
    world = World(ground, shares=dict.fromkeys((1, 2, 3), 0.0))
    left = {
        number: [
            WaitingRun(id=number * 1000 + at, places=ground.one, seconds=source.uniform(1, 60)) for at in range(99)
        ]
        for number in world.shares
    }
    lasts = {run.id: run.seconds * source.uniform(0.5, 2) for runs in left.values() for run in runs}
    for _ in range(60):
        contenders = [
            Contender(id=number, runs=iter(left[number]), places=frozenset({ground.one}), share=share)
            for number, share in world.shares.items()
        ]
        for start in world.step(contenders, lasts):
            left[start.campaign].remove(start.run)
        assert max(world.shares.values()) - min(world.shares.values()) <= 60.0


@pytest.mark.parametrize("hosts", [200])
def test_a_large_lab_is_no_other_case(hosts: int) -> None:
    ground = Ground(hosts)
    leases = {name: NOW + 60 for host in range(hosts - 3) for name in ground.leased(host)}
    starts = choose([ground.contender(1, [(1, 30.0), (1, 30.0), (0, 30.0)])], ground.timetable(leases))
    assert [len(hosts) for _, hosts in chosen(starts)] == [2, 1]
    assert {name for _, hosts in chosen(starts) for name in hosts} == {"197", "198", "199"}
