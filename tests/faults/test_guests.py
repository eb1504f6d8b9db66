"""Guests that never come up, fall silent, or whose name somebody else has taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.desk import Desk, outcomes, until, virsh

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

HANGS = bytes.fromhex("fa 31c0 8ed8 be207c baf803 ac 84c0 7403 ee ebf8 ebfe").ljust(0x20, b"\0")
"""A boot sector (at 0x7c00) that prints the text behind it on the first serial port (0x3f8) and then loops for ever:
cli; xor ax,ax; mov ds,ax; mov si,0x7c20; mov dx,0x3f8; lodsb; test al,al; jz +3; out dx,al; jmp -8; jmp -2."""


def a_disk_that_hangs(path: Path, words: bytes) -> Path:
    sector = (HANGS + words).ljust(510, b"\0") + b"\x55\xaa"
    path.write_bytes(sector.ljust(1 << 20, b"\0"))
    return path


def test_a_guest_that_never_boots_is_retried_and_then_the_labs_fault(desk: Desk, tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    lab = desk.written_out_lab()
    lab["images"]["hanging"] = {
        "kind": "disk",
        "disk": str(a_disk_that_hangs(images / "hanging.raw", b"stuck in the boot loader")),
        "drivers": ["virtio"],
    }
    campaign = desk.campaign(
        scenarios=["vm-to-host"], settings={"image": "hanging"}, retries=1, timeouts={"boot": 10, "command": 60}
    )
    ended = desk.run(campaign, lab=desk.file("hanging.yaml", lab)).wait()
    assert ended.code == 1, ended.said
    (run,) = desk.record().runs
    assert run.attempts == 2
    assert run.result is not None
    for result in (run.result, *run.earlier):
        assert (result.detail.outcome, result.detail.kind) == ("lab-error", "boot-timeout")
        assert "did not answer within 10 s" in result.detail.what
        assert "stuck in the boot loader" in result.detail.why, "the end of the console is in the message"
        assert result.detail.phase == "place"
    assert {result.detail.host for result in (run.result, *run.earlier)} == {"a", "b"}, "it is tried again elsewhere"
    assert "did not answer within 10 s" in ended.out, "the report says it"
    desk.assert_nothing_left()
    assert [path.name for path in images.iterdir()] == ["hanging.raw"], "the overlays are gone"
    for host in desk.lab.hosts:
        for pool in virsh(desk.lab, host, "pool-list", "--name").stdout.split():
            virsh(desk.lab, host, "pool-destroy", pool)


def test_a_guest_without_an_agent_is_told_from_one_that_does_not_boot(desk: Desk) -> None:
    lab = desk.written_out_lab()
    spoken = lab["images"]["probe"]["command_line"].replace("quiet loglevel=1 ", "")
    lab["images"]["silent"] = lab["images"]["probe"] | {"command_line": f"{spoken} rdinit=/bin/cat"}
    campaign = desk.campaign(
        scenarios=["vm-to-host"], settings={"image": "silent"}, retries=0, timeouts={"boot": 15, "command": 60}
    )
    ended = desk.run(campaign, lab=desk.file("silent.yaml", lab)).wait()
    assert ended.code == 1, ended.said
    (run,) = desk.record().runs
    assert run.result is not None
    assert run.result.detail.kind == "boot-timeout"
    assert "Run /bin/cat as init process" in run.result.detail.why
    desk.assert_nothing_left()


def test_an_agent_that_falls_silent_in_mid_attempt_is_the_labs_fault(desk: Desk) -> None:
    freeze = "(sleep 0.5; kill -STOP $(pidof qemu-ga)) >/dev/null 2>&1 &"
    campaign = desk.campaign(
        scenarios=["vm-to-host"],
        settings={"seconds": 2},
        prepare=[["/bin/sh", "-c", freeze], ["/bin/sleep", "1"]],
        retries=0,
        timeouts={"boot": 120, "command": 8},
    )
    ended = desk.run(campaign).wait()
    assert ended.code == 1, ended.said
    (run,) = desk.record().runs
    assert run.result is not None
    assert run.result.detail.outcome == "lab-error"
    assert run.result.detail.kind.startswith("channel-"), run.result.detail
    desk.assert_nothing_left()


def test_somebody_elses_vm_of_the_same_name_is_never_touched(desk: Desk) -> None:
    name = f"labctl-{desk.lab.name}-c1-r1-a1-sender"
    foreign = (
        f"<domain type='qemu'><name>{name}</name><memory unit='MiB'>32</memory>"
        "<os><type machine='pc'>hvm</type></os></domain>"
    )
    made = virsh(desk.lab, "a", "create", "/dev/stdin", stdin=foreign)
    assert made.returncode == 0, made.stderr
    identity = virsh(desk.lab, "a", "domuuid", name).stdout
    first_on_a = desk.campaign(scenarios=["vm-to-host"], settings={"seconds": 1}, retries=1, seed=2)
    ended = desk.run(first_on_a).wait()
    assert ended.code == 0, ended.said
    (run,) = desk.record().runs
    assert outcomes(desk.record()) == {"ok": 1}, "the next attempt has names of its own"
    (first,) = run.earlier
    assert first.detail.kind == "name-taken"
    assert name in first.detail.what
    assert "not touched" in first.detail.what
    assert virsh(desk.lab, "a", "domuuid", name).stdout == identity
    assert virsh(desk.lab, "a", "domstate", name).stdout.strip() == "running"
    virsh(desk.lab, "a", "destroy", name)
    until("the foreign VM is gone", lambda: not desk.leftovers())
