from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from labctl.model.lab import Lab
from tests.desk import Desk, a_desk, domains, outcomes

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "labctl-test", str(path)], check=True)
    yield path
    subprocess.run(["umount", str(path)], check=True)


def fill(path: Path) -> Path:
    """Take all the room that is left."""
    ballast = path / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"\1" * 4096)
    return ballast


def test_a_full_disk_is_said_and_the_campaign_goes_on_when_there_is_room(
    embedded_lab: Lab, tmp_path: Path, small_disk: Path
) -> None:
    with a_desk(embedded_lab, tmp_path, state=small_disk / "state") as desk:
        command = desk.run(desk.campaign(scenarios=["same-host"], settings={"seconds": 6}))
        desk.phase(command, "transfer")
        ballast = fill(small_disk)
        ended = command.wait()
        assert ended.code == 3, ended.said
        assert "full" in ended.err
        assert "Free space" in ended.err
        assert "labctl run --resume" in ended.err
        assert "Traceback" not in ended.err
        for host in embedded_lab.hosts:
            assert domains(embedded_lab, host) == (), "guests are removed, whatever the store can hold"
        assert desk.processes() == {}
        assert_a_new_one_is_refused(desk)
        ballast.write_bytes(b"no folder")
        ended = desk.start("run", "--resume", "1", "-o", ballast / "report.html").wait()
        assert ended.code == 0, ended.said
        assert "The report can't be written" in ended.out, "the results are no less good for it"
        assert outcomes(desk.record()) == {"ok": 1}
        desk.assert_nothing_left()


def assert_a_new_one_is_refused(desk: Desk) -> None:
    ended = desk.run(desk.directory / "campaign.yaml").wait()
    assert ended.code == 3, ended.said
    assert "full" in ended.err
    assert "Traceback" not in ended.err
