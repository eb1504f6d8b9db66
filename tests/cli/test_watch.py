"""`labctl watch`: in a terminal, in a pipe, for programs, in several terminals at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from labctl import clock
from labctl.model.outcome import CampaignState, HostState, Outcome
from tests.cli.screen import Screen
from tests.cli.terminal import Terminal

Watching = Callable[..., Screen]


@pytest.fixture
def watching(terminal: Terminal) -> Iterator[Watching]:
    """Starts `labctl watch`; whatever still runs at the end is ended."""
    screens: list[Screen] = []

    def start(*arguments: object, pipe: bool = False, rows: int = 40) -> Screen:
        screens.append(Screen(terminal.state, "watch", *arguments, terminal=not pipe, rows=rows))
        return screens[-1]

    yield start
    for screen in screens:
        screen.close()


def test_a_terminal_shows_what_goes_on_until_the_campaign_has_ended(terminal: Terminal, watching: Watching) -> None:
    campaign = terminal.submitted()
    screen = watching(campaign)
    screen.until("0 of 4 runs done (4 waiting)")
    screen.until("No worker serves queue here.kvm: start `labctl worker`.")
    terminal.worker()
    terminal.worker("engine", queues=())
    screen.until("worker@host:1: 1 of 2 slots are busy")
    handle = terminal.begin(campaign, "b", phase="transfer 1")
    at = screen.until("b  scenario=same-host")
    screen.until("transfer 1", after=at)
    terminal.store.set_host(
        "night", "a", HostState.QUARANTINED, why="3 lab-errors in a row", next_check=clock.now() + 60
    )
    screen.until("host a is quarantined since")
    terminal.end(handle)
    terminal.store.set_hold(campaign, "window opens Mon 22:00 Europe/Dublin")
    screen.until("waiting: window opens Mon 22:00 Europe/Dublin")
    screen.until("1 of 4 runs done (1 ok")
    terminal.finish(campaign)
    assert screen.wait() == 0
    assert screen.moved, "it draws in place"
    assert "Campaign 1 is done: 4 ok." in screen.shown
    assert "labctl report 1" in screen.shown


def test_a_pipe_gets_a_line_for_each_change(terminal: Terminal, watching: Watching) -> None:
    campaign = terminal.submitted()
    screen = watching(pipe=True)
    screen.until("0/4 runs, 4 waiting;")
    terminal.end(terminal.begin(campaign))
    screen.until("1/4 runs, 1 ok, 3 waiting;")
    handle = terminal.begin(campaign, phase="transfer 1")
    terminal.said("pause", campaign, "--why", "the lab is needed")
    screen.until("paused; 1/4 runs")
    screen.until("the lab is needed")
    terminal.said("resume", campaign)
    terminal.said("cancel", campaign, "--why", "enough")
    screen.until("cancelled; ")
    assert screen.process.poll() is None, "what is in progress has not ended yet"
    terminal.end(handle)
    assert screen.wait() == 1
    assert "Campaign 1 is cancelled: 2 ok, 2 cancelled. enough" in screen.shown
    assert not screen.moved
    assert "\x1b" not in screen.shown


def test_programs_get_a_document_for_each_change(terminal: Terminal, watching: Watching) -> None:
    campaign = terminal.submitted()
    screen = watching(campaign, "--json", pipe=True)
    screen.until('"done": 0')
    handle = terminal.begin(campaign, phase="boot")
    screen.until('"phase": "boot"')
    terminal.store.heartbeat(handle, phase="transfer 1")
    screen.until('"phase": "transfer 1"')
    terminal.end(handle, Outcome.FAILED, kind="connection-lost")
    terminal.finish(campaign)
    assert screen.wait() == 1, "a run failed"
    documents = [json.loads(line) for line in screen.shown.splitlines()]
    assert [document["state"] for document in documents][-1] == "done"
    assert documents[-1]["runs"] == {"failed": 1, "ok": 3}
    assert [document["done"] for document in documents] == sorted(document["done"] for document in documents)
    assert len({json.dumps(_lasting(document)) for document in documents}) == len(documents), "nothing is said twice"


def _lasting(document: dict[str, object]) -> dict[str, object]:
    return {key: document[key] for key in ("state", "hold", "runs", "bad_hosts", "unserved", "beside")} | {
        "phases": [(attempt["id"], attempt["phase"]) for attempt in document["attempts"]]  # type: ignore[attr-defined]
    }


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_ctrl_c_ends_the_watching_and_not_the_campaign(
    terminal: Terminal, watching: Watching, options: tuple[str, ...]
) -> None:
    campaign = terminal.submitted()
    screen = watching(campaign, *options)
    screen.until("4 waiting" if not options else '"pending": 4')
    screen.interrupt()
    assert screen.wait() == 130
    assert "Campaign 1 is left alone; `labctl watch 1` shows it again." in screen.shown
    assert "Traceback" not in screen.shown
    assert terminal.store.state(campaign) is CampaignState.ACTIVE


def test_several_terminals_see_the_same(terminal: Terminal, watching: Watching) -> None:
    campaign = terminal.submitted()
    screens = [watching(campaign), watching(campaign, pipe=True), watching(campaign, "--json", pipe=True)]
    for screen, words in zip(screens, ("4 runs done (4 waiting)", "0/4 runs", '"pending": 4'), strict=True):
        screen.until(words)
    terminal.finish(campaign)
    assert [screen.wait() for screen in screens] == [0, 0, 0]


def test_more_than_the_terminal_has_room_for_is_counted(terminal: Terminal, watching: Watching) -> None:
    terminal.lab(simulated={"hosts": 12, "directory": str(terminal.directory / "world")})
    campaign = terminal.submitted(repeats=8)
    for number in range(1, 13):
        terminal.begin(campaign, f"host-{number}")
    screen = watching(campaign, rows=16)
    screen.until("host-1 ")
    screen.until("and 7 more")
    assert "host-12" not in screen.shown


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [((), 0), ((Outcome.FAILED,), 1), ((Outcome.LAB_ERROR,), 1)],
    ids=["ok", "failed", "lab-error"],
)
def test_its_exit_code_says_how_the_campaign_ended(
    terminal: Terminal, outcomes: tuple[Outcome, ...], code: int
) -> None:
    terminal.submitted(name="older")
    terminal.finish(terminal.submitted(retries=0), *outcomes)
    assert "Campaign 2 is done" in terminal.said("watch", code=code), "the newest campaign"


def test_a_stopped_campaign_says_why(terminal: Terminal) -> None:
    campaign = terminal.submitted()
    terminal.store.set_state(campaign, CampaignState.STOPPED, why="Most cells fail alike.")
    assert "Campaign 1 is stopped: 4 waiting. Most cells fail alike." in terminal.said("watch", campaign, code=1)


def test_mistakes_are_said(terminal: Terminal) -> None:
    assert "There is no store in" in terminal.said("watch", code=2)
    terminal.submitted()
    assert "There is no campaign 9" in terminal.said("watch", 9, code=2)
