"""A lab that is not quiet, on real guests: it is waited for, then measured and marked, or skipped; and people are told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.desk import Desk, outcomes

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Every core of this machine computes, whenever nobody else wants it."""
    burn = ["nice", "-n", "19", sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(burn) for _ in range(os.cpu_count() or 1)]
    yield
    for burner in burners:
        burner.kill()
        burner.wait()


@contextmanager
def web_hook() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """The URL of a real web hook, and what was posted to it."""
    posted: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"json://127.0.0.1:{server.server_port}/hush", posted
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("busy_machine")
def test_a_busy_lab_is_measured_and_marked_or_skipped_as_the_campaign_says(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = desk.file("quiet.yaml", desk.embedded_lab() | {"quiet": {"cpu": "50%", "other_vms": 0}})
    settings = {"scenarios": ["vm-to-host"], "settings": {"seconds": 1}, "retries": 0}
    with web_hook() as (url, posted):
        monkeypatch.setenv("NEWS_OF_THE_NIGHT", url)
        marked = desk.campaign("marked.yaml", quiet={"wait": "2 s"}, notify=["env:NEWS_OF_THE_NIGHT"], **settings)
        ended = desk.run(marked, lab=lab).wait()
    assert ended.code == 0, ended.said
    record = desk.record(1)
    assert outcomes(record) == {"ok": 1}
    assert_marked(desk, record.runs[0].result.transfers[0].noisy if record.runs[0].result else "")
    assert_told(desk, posted)

    skipped = desk.campaign("skipped.yaml", quiet={"wait": "1 s", "then": "skip"}, **settings)
    ended = desk.run(skipped, lab=lab).wait()
    assert ended.code == 1, ended.said
    (run,) = desk.record(2).runs
    assert run.result is not None
    detail = run.result.detail
    assert (detail.outcome, detail.kind, detail.phase) == ("lab-error", "not-quiet", "settle")
    assert detail.host in desk.lab.hosts
    assert "processors are busy" in detail.why
    assert run.result.transfers == ()
    desk.assert_nothing_left()


def assert_marked(desk: Desk, noise: str) -> None:
    """The mark is in the record, in the report for people, and in the one for programs."""
    assert "processors are busy (limit 0.5)" in noise
    assert "other VMs" not in noise, "the attempt's own VM is no other"
    ended = desk.labctl("report", "1", "--json")
    assert ended.code == 0, ended.said
    (row,) = json.loads(ended.out)["rows"]
    assert [flag["kind"] for flag in row["flags"]] == ["noisy"]
    facts = [item for item in desk.record(1).runs[0].result.facts if "quiet.cpu" in item.facts]  # type: ignore[union-attr]
    assert [(item.when, float(str(item.facts["quiet.cpu"])) > 0.5) for item in facts] == [("before", True)]
    assert float(str(facts[0].facts["quiet.waited"])) >= 2.0


def assert_told(desk: Desk, posted: list[dict[str, str]]) -> None:
    """Who asked for news got the beginning and the end, with where the report is."""
    assert [message["title"].rpartition(") ")[2] for message in posted] == ["has started", "has ended"]
    end = posted[-1]["message"]
    assert "1 ok" in end
    page = Path(end.rpartition("Report: ")[2].strip())
    assert page == desk.state / "reports" / "campaign-1.html"
    assert "noisy" in page.read_text()
