from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from workers.owner import owner_lives, owner_wants_an_end


def test_a_worker_of_nobodys_has_an_owner_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABCTL_OWNER", raising=False)
    monkeypatch.delenv("LABCTL_STOP", raising=False)
    assert owner_lives()
    assert not owner_wants_an_end()


def test_an_owner_lives_until_it_ends_even_when_nobody_reaps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setenv("LABCTL_OWNER", str(owner.pid))
    try:
        assert owner_lives()
        owner.kill()
        deadline = time.monotonic() + 30
        while owner_lives() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert Path(f"/proc/{owner.pid}").exists(), "it is dead and not yet reaped"
        assert not owner_lives()
    finally:
        owner.kill()
        owner.communicate()
    assert not owner_lives()


def test_an_owner_asks_for_an_end_by_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LABCTL_STOP", str(tmp_path / "worker.stop"))
    assert not owner_wants_an_end()
    (tmp_path / "worker.stop").touch()
    assert owner_wants_an_end()
