"""`labctl notify`: a trial message, and what is said when there is none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from labctl.cli.main import main


@pytest.fixture
def hook() -> Iterator[tuple[str, list[str]]]:
    """The URL of a real web hook, and the titles that were posted to it."""
    titles: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            titles.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["title"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"json://127.0.0.1:{server.server_port}/hush", titles
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_trial_message_is_sent_to_every_place(hook: tuple[str, list[str]], tmp_path: Path) -> None:
    url, titles = hook
    (tmp_path / "hook").write_text(url + "\n")
    result = CliRunner().invoke(main, ["notify", "env:NEWS", f"file:{tmp_path / 'hook'}"], env={"NEWS": url})
    assert result.exit_code == 0, result.output
    assert titles == ["labctl: a trial"] * 2
    assert "env:NEWS" in result.output
    assert "hush" not in result.output


def test_what_fails_is_said_and_the_others_are_tried(hook: tuple[str, list[str]]) -> None:
    url, titles = hook
    result = CliRunner().invoke(
        main, ["notify", "env:UNSET_NEWS", "env:DEAD", "env:NEWS"], env={"NEWS": url, "DEAD": "json://127.0.0.1:9/hush"}
    )
    assert result.exit_code == 3
    assert titles == ["labctl: a trial"]
    assert "env:UNSET_NEWS is not available" in result.output
    assert "could not be sent to env:DEAD" in result.output
    assert "hush" not in result.output


@pytest.mark.parametrize("reference", ["json://127.0.0.1/hush", "hush", "env:hush hush", "keyring:hush"])
def test_what_is_no_reference_is_refused_unread(reference: str) -> None:
    result = CliRunner().invoke(main, ["notify", reference])
    assert result.exit_code == 2
    assert "hush" not in result.output
    assert "env:NAME" in result.output
