"""News told through a real web hook and a real mail server; dead ones hold nobody up; no secret is ever said."""

from __future__ import annotations

import email
import io
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email import policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from labctl import clock
from labctl.campaign.delivery import Delivery, Message, send_now
from labctl.campaign.notify import TOLD, News
from labctl.errors import LabError
from labctl.model.lab import SecretRef
from labctl.model.outcome import CampaignState, Outcome
from labctl.store import AttemptStart, Event, Store, open_store
from tests.campaign.outbox import carry_out, submitted
from tests.values import a_result, an_order

TOKEN = "s3cr3t-t0ken"
PLACE = SecretRef(scheme="env", locator="LABCTL_TEST_NEWS")
OTHER = SecretRef(scheme="env", locator="LABCTL_TEST_OTHER_NEWS")
MESSAGE = Message(title="labctl: campaign 1 (small) has ended", text="Runs: 4 ok.\nReport: /r/campaign-1.html")
PATIENCE = 30.0


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


@dataclass
class Hook:
    """A web hook: what was posted to it, and what it answers."""

    server: ThreadingHTTPServer
    got: list[dict[str, Any]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    """Status codes of the next answers; 200 when there are no more."""
    asked: int = 0

    @property
    def url(self) -> str:
        return f"json://127.0.0.1:{self.server.server_port}/{TOKEN}"

    @property
    def ends(self) -> list[str]:
        """What was said of ends."""
        return [message["message"] for message in self.got if message["title"].endswith("has ended")]

    @property
    def titles(self) -> list[str]:
        return [message["title"] for message in self.got]


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            code = made.answers.pop(0) if made.answers else 200
            made.asked += 1
            if code == 200:
                made.got.append(json.loads(body))
            self.send_response(code)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = Hook(server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv(PLACE.locator, made.url)
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


@dataclass
class Mailbox:
    """A mail server's only mailbox."""

    port: int = 0
    mails: list[email.message.EmailMessage] = field(default_factory=list)

    async def handle_DATA(self, server: object, session: object, envelope: Any) -> str:
        self.mails.append(email.message_from_bytes(envelope.content, policy=policy.default))
        return "250 taken"


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    made = Mailbox()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        made.port = free.getsockname()[1]
    controller = Controller(made, hostname="127.0.0.1", port=made.port)
    controller.start()
    yield made
    controller.stop()


@pytest.fixture
def silence() -> Iterator[int]:
    """The port of a server that takes connections and never says anything."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(8)
        yield server.getsockname()[1]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """All that is logged, down to the last detail, as a program would have it that logs so."""
    text, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(text), root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield text
    root.setLevel(level)
    root.removeHandler(handler)


def tell(store: Store, kind: str, *, campaign: int | None = None, scope: str = "", key: str = "") -> None:
    scope = scope or f"campaign-{campaign}"
    event = Event(scope=scope, key=key or kind, kind=kind, what=f"what {kind} is", at=clock.now(), campaign_id=campaign)
    assert store.tell(event)


def no_report(campaign_id: int) -> str:
    return f"report of {campaign_id}"


def told(store: Store, write_report: Callable[[int], str] = no_report) -> None:
    """Tell everything, and wait until it is."""
    news = News(write_report)
    news.send(store, seconds=PATIENCE)
    news.close(PATIENCE)


# One message


def test_a_web_hook_gets_title_text_and_urgency(hook: Hook) -> None:
    send_now(PLACE, Message(title="t", text="line 1\nline 2 <b>&", urgency="warning"))
    (got,) = hook.got
    assert (got["title"], got["message"], got["type"]) == ("t", "line 1\nline 2 <b>&", "warning")


def test_mail_arrives(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"mailto://127.0.0.1:{mailbox.port}?from=labctl@example.org&to=night@example.org&mode=insecure&format=text"
    monkeypatch.setenv(PLACE.locator, url)
    send_now(PLACE, MESSAGE)
    (mail,) = mailbox.mails
    assert mail["subject"] == MESSAGE.title
    assert "night@example.org" in mail["to"]
    body = mail.get_body(("plain",))
    assert body is not None
    assert "Report: /r/campaign-1.html" in body.get_content()


@pytest.mark.parametrize("url", ["nonsense://host/word", "no url at all", "", "mailto://", "json://"])
def test_what_is_no_url_for_messages_is_said_without_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLACE.locator, url)
    with pytest.raises(LabError) as caught:
        send_now(PLACE, MESSAGE)
    assert caught.value.kind == "notify-url"
    assert str(PLACE) in caught.value.what
    if url:
        assert url not in str(caught.value)


def test_a_secret_that_is_not_there_is_said() -> None:
    with pytest.raises(LabError) as caught:
        send_now(SecretRef(scheme="env", locator="LABCTL_TEST_UNSET"), MESSAGE)
    assert caught.value.kind == "secret-unavailable"


@pytest.mark.parametrize(
    "url",
    [
        "json://127.0.0.1:9/hidden-token?key=hidden-value",
        "json://hidden-user:hidden%20password@127.0.0.1:9/",
        "mailto://hidden-user:hidden-password@127.0.0.1:9?to=hidden@example.org&from=hidden@example.org",
        "slack://hiddenaaa/hiddenbbb/hiddencccccccccccccccccc",
        "nonsense://hidden-host/hidden-token",
    ],
)
def test_nothing_of_a_url_is_said_when_it_fails(
    url: str, monkeypatch: pytest.MonkeyPatch, log: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(PLACE.locator, url)
    delivery = Delivery(waits=(), seconds=PATIENCE)
    delivery.put(PLACE, MESSAGE)
    assert delivery.close(PATIENCE)
    said = log.getvalue()
    assert "was not told" in said
    assert str(PLACE) in said
    said += "".join(capfd.readouterr())
    assert "hidden" not in said
    assert "127.0.0.1" not in said


def test_a_server_that_never_answers_is_given_up_in_time(silence: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLACE.locator, f"json://127.0.0.1:{silence}/{TOKEN}?rto=60")
    with pytest.raises(LabError, match=str(PLACE)) as caught:
        send_now(PLACE, MESSAGE, seconds=0.2)
    assert caught.value.kind == "notify-failed"
    assert "no answer within 0.2 s" in caught.value.why


# Many messages


def test_a_message_is_tried_again(hook: Hook) -> None:
    hook.answers = [500, 503]
    delivery = Delivery(waits=(0.0, 0.0))
    delivery.put(PLACE, MESSAGE)
    wait_until(lambda: hook.got)
    assert delivery.close(PATIENCE)
    assert hook.titles == [MESSAGE.title]
    assert hook.asked == 3


def test_one_that_can_never_be_sent_is_logged_and_those_after_it_are_sent(
    hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    hook.answers = [500, 500, 500]
    delivery = Delivery(waits=(0.0, 0.0))
    for title in ("first", "second", "third"):
        delivery.put(PLACE, Message(title=title, text=title))
    wait_until(lambda: len(hook.got) == 2)
    assert delivery.close(PATIENCE)
    assert hook.titles == ["second", "third"]
    assert "'first' was not told" in caplog.text
    assert TOKEN not in caplog.text


def test_a_dead_place_holds_up_neither_the_others_nor_whoever_tells(
    hook: Hook, silence: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OTHER.locator, f"json://127.0.0.1:{silence}/{TOKEN}?rto=60")
    delivery = Delivery()
    for number in range(5):
        delivery.put(OTHER, MESSAGE)
        delivery.put(PLACE, Message(title=str(number), text="x"))
    wait_until(lambda: len(hook.got) == 5)
    assert hook.titles == ["0", "1", "2", "3", "4"]
    assert not delivery.close(0.0), "the dead one is still being waited for"


def test_at_the_end_back_offs_are_cut_short(hook: Hook) -> None:
    hook.answers = [500]
    delivery = Delivery(waits=(3600.0,))
    delivery.put(PLACE, MESSAGE)
    wait_until(lambda: hook.asked)
    assert delivery.close(PATIENCE)
    assert hook.titles == [MESSAGE.title]


# Which news, and to whom


def test_every_kind_that_is_told_is_told_once_and_the_others_never(store: Store, hook: Hook) -> None:
    campaign = submitted(store, notify=(PLACE,))
    for kind in (*TOLD, "submitted", "host-back", "cell-stopped", "window-closed", "version", "disk-back"):
        tell(store, kind, campaign=campaign.id)
    told(store)
    told(store)
    assert [title.removeprefix("labctl: campaign 1 (small) ") for title in hook.titles] == [
        words for words, _ in TOLD.values()
    ]
    assert [message["message"] for message in hook.got] == [f"what {kind} is" for kind in TOLD]
    assert store.untold() == ()
    assert len(store.events(campaign.id)) == len(TOLD) + 6, "events stay when they are told"


def test_two_engines_tell_once(store: Store, hook: Hook, tmp_path: Path) -> None:
    campaign = submitted(store, notify=(PLACE,))
    for number in range(20):
        tell(store, "first-failure", campaign=campaign.id, key=str(number))
    stores = [open_store(tmp_path) for _ in range(3)]
    news = [News(no_report) for _ in stores]
    threads = [threading.Thread(target=one.send, args=(its,)) for one, its in zip(news, stores, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, its in zip(news, stores, strict=True):
        one.close(PATIENCE)
        its.close()
    assert len(hook.got) == 20


def test_all_places_of_a_campaign_are_told_and_nobody_of_another_one(
    store: Store, hook: Hook, monkeypatch: pytest.MonkeyPatch, mailbox: Mailbox
) -> None:
    monkeypatch.setenv(OTHER.locator, f"mailto://127.0.0.1:{mailbox.port}?from=a@b.org&to=c@d.org&mode=insecure")
    both = submitted(store, notify=(PLACE, OTHER))
    one = submitted(store, name="other", notify=(PLACE,))
    silent = submitted(store, name="silent")
    for campaign in (both, one, silent):
        tell(store, "started", campaign=campaign.id)
    told(store)
    assert sorted(hook.titles) == [
        "labctl: campaign 1 (small) has started",
        "labctl: campaign 2 (other) has started",
    ]
    assert [mail["subject"] for mail in mailbox.mails] == ["labctl: campaign 1 (small) has started"]


def test_what_happens_in_a_lab_is_told_to_every_campaign_that_uses_it(store: Store, hook: Hook) -> None:
    campaign = submitted(store, notify=(PLACE,))
    submitted(store, name="other", notify=(PLACE,))
    tell(store, "quarantine", scope="lab-lab", key="quarantine-a-1")
    tell(store, "host-out", scope="lab-lab", key="out-a-1", campaign=campaign.id)
    tell(store, "quarantine", scope="lab-another", key="quarantine-a-1")
    told(store)
    assert hook.titles == ["labctl: lab lab has a host in quarantine", "labctl: lab lab has a host that is out"]


# The end of a campaign


def worked_off(store: Store, **changes: object) -> int:
    """A campaign with two runs, one of them failed, that is done."""
    head = submitted(store, factors={"nic_model": ("virtio",)}, **changes)
    for outcome in (Outcome.OK, Outcome.FAILED):
        carry_out(store, start(store, head.id), a_result(outcome))
    store.set_state(head.id, CampaignState.DONE)
    return head.id


def start(store: Store, campaign_id: int) -> Any:
    run = store.pending_runs(campaign_id, limit=1)[0]
    resources = frozenset({f"run:{run.id}"})
    return store.start_attempts("lab", [AttemptStart(run_id=run.id, order=an_order(), resources=resources)])[0]


def test_an_end_is_told_once_with_counts_and_where_the_report_is(store: Store, hook: Hook) -> None:
    campaign = worked_off(store, notify=(PLACE,))
    written: list[int] = []

    def write_report(campaign_id: int) -> str:
        written.append(campaign_id)
        return "virtio is 3 times faster.\nReport: https://reports/campaign-1.html"

    told(store, write_report)
    told(store, write_report)
    (end,) = hook.ends
    assert end.splitlines() == [
        "Runs: 1 failed, 1 ok.",
        "virtio is 3 times faster.",
        "Report: https://reports/campaign-1.html",
    ]
    assert written == [campaign], "a report is written once for an end"


def test_an_end_that_nobody_was_there_to_tell_is_told_a_day_long(
    store: Store, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked_off(store, notify=(PLACE,))
    now = time.time()
    with monkeypatch.context() as later:
        later.setattr(clock, "now", lambda: now + 25 * 3600)
        told(store)
    assert hook.ends == []
    told(store)
    assert len(hook.ends) == 1


def test_a_campaign_that_goes_on_and_ends_again_is_told_again(store: Store, hook: Hook) -> None:
    campaign = worked_off(store, notify=(PLACE,))
    news = News(no_report)
    news.send(store, seconds=PATIENCE)
    store.set_state(campaign, CampaignState.ACTIVE)
    news.send(store, seconds=PATIENCE)
    store.set_state(campaign, CampaignState.DONE)
    news.send(store, seconds=PATIENCE)
    news.close(PATIENCE)
    assert len(hook.ends) == 2


def test_a_stopped_campaign_says_why_when_its_last_attempt_has_ended(store: Store, hook: Hook) -> None:
    head = submitted(store, notify=(PLACE,))
    handle = start(store, head.id)
    assert store.claim(handle, worker="w:1") is not None
    store.set_state(head.id, CampaignState.STOPPED, why="all cells fail alike.")
    news = News(no_report)
    news.send(store, seconds=PATIENCE)
    assert "finished" not in [event.kind for event in store.events(head.id)], "an attempt is still in progress"
    store.lose_attempts([handle.id], a_result(Outcome.CANCELLED).detail)
    news.send(store, seconds=PATIENCE)
    news.close(PATIENCE)
    (end,) = hook.ends
    assert end.splitlines()[0].endswith("It was stopped: all cells fail alike.")


def test_nothing_is_said_of_what_a_person_ended(store: Store, hook: Hook) -> None:
    head = submitted(store, notify=(PLACE,))
    store.set_state(head.id, CampaignState.CANCELLED)
    told(store)
    assert hook.got == []


def test_a_report_that_cannot_be_written_keeps_nobody_from_being_told(store: Store, hook: Hook) -> None:
    worked_off(store, notify=(PLACE,))

    def write_report(campaign_id: int) -> str:
        raise ZeroDivisionError

    told(store, write_report)
    assert "could not be written" in hook.ends[0]


def test_reports_are_written_for_campaigns_that_tell_nobody(store: Store) -> None:
    campaign = worked_off(store)
    written: list[int] = []

    def write_report(campaign_id: int) -> str:
        written.append(campaign_id)
        return ""

    news = News(write_report)
    news.send(store, seconds=PATIENCE)
    news.send(store, seconds=PATIENCE)
    assert written == [campaign]


def test_a_report_that_takes_long_holds_up_nothing_else_and_is_written_once(store: Store, hook: Hook) -> None:
    slow, other = worked_off(store, notify=(PLACE,)), worked_off(store, notify=(PLACE,))
    go_on, written = threading.Event(), []

    def write_report(campaign_id: int) -> str:
        assert go_on.wait(PATIENCE)
        written.append(campaign_id)
        return f"report of {campaign_id}"

    news = News(write_report)
    for _ in range(3):
        news.send(store)
    tell(store, "quarantine", campaign=slow)
    news.send(store)
    wait_until(lambda: "quarantine" in str(hook.got))
    assert hook.ends == []
    news.send(store, seconds=0.01)
    assert hook.ends == [], "whoever is asked to end waits for it no longer than that"
    go_on.set()
    news.send(store, seconds=PATIENCE)
    news.close(PATIENCE)
    assert [end.splitlines()[-1] for end in hook.ends] == [f"report of {slow}", f"report of {other}"]
    assert written == [slow, other]
