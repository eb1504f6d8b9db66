"""`labctl run`, as far as it gets without a lab that is ready."""

from __future__ import annotations

from tests.cli.terminal import Terminal

NOT_THERE = {
    "hosts": {"a": {"hypervisor": "kvm", "uri": "qemu+unix:///system?socket=/nowhere/a", "address": "198.18.0.1/24"}},
    "networks": {"data": {"bridge": "br0", "guest_range": ["198.18.0.16", "198.18.0.31"], "prefix_length": 24}},
    "images": {"probe": {"kind": "kernel", "kernel": "/nowhere/kernel", "initrd": "/nowhere/initrd"}},
}


def test_it_says_that_a_campaign_with_the_same_content_has_not_ended(terminal: Terminal) -> None:
    lab = terminal.lab_of(NOT_THERE)
    terminal.said("submit", terminal.campaign(), "--lab", lab)
    terminal.said("pause", 1)
    result = terminal.type("run", terminal.campaign(), "--lab", lab)
    assert result.exit_code == 3, result.output
    assert "Campaign 1 measures the same and is paused" in result.stdout
    assert "labctl run --resume 1" in result.stdout
    assert "is not ready; nothing was started" in result.stderr
    assert len(terminal.store.campaigns()) == 1
    assert "measures the same" not in terminal.type("run", terminal.campaign("other"), "--lab", lab).stdout
