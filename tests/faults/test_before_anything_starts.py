"""A lab that can't be worked with is refused before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.desk import Desk

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


def test_an_unreachable_libvirt_is_named_and_nothing_is_started(desk: Desk, tmp_path: Path) -> None:
    lab = desk.written_out_lab()
    lab["hosts"]["b"]["uri"] = f"qemu+unix:///system?socket={tmp_path}/nobody.sock"
    ended = desk.run(desk.campaign(scenarios=["same-host"]), lab=desk.file("wrong.yaml", lab)).wait()
    assert ended.code == 3, ended.said
    assert "nothing was started" in ended.err
    assert "b by hypervisor" in ended.err
    assert "nobody.sock" in ended.err
    assert "a by " not in ended.err, "only what is wrong is said"
    assert desk.query("SELECT id FROM campaigns") == []


def test_a_wrong_ssh_key_is_named_and_nothing_is_started(desk: Desk, another_key: Path) -> None:
    lab = desk.written_out_lab()
    lab["hosts"]["a"]["ssh"]["key"] = f"file:{another_key}"
    ended = desk.run(desk.campaign(scenarios=["vm-to-host"]), lab=desk.file("wrong.yaml", lab)).wait()
    assert ended.code == 3, ended.said
    assert "a by ssh" in ended.err
    assert "Authentication failed" in ended.err
    assert "b by ssh" not in ended.err
    assert "PRIVATE KEY" not in ended.said
    assert desk.query("SELECT id FROM campaigns") == []


def test_a_campaign_that_can_run_nowhere_in_the_lab_is_refused(desk: Desk) -> None:
    campaign = desk.campaign(scenarios=["same-host"], settings={"nic_model": "vt-d"})
    ended = desk.run(campaign, lab=desk.lab_file).wait()
    assert ended.code == 2, ended.said
    assert "vt-d" in ended.err
    assert desk.query("SELECT id FROM campaigns") == []
