"""Whether an endpoint has a transfer tool is asked of the program that does the work there."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import cast

import pytest

from labctl.model.scenario import Side
from labctl.store import ClaimedAttempt, open_store
from tests.simulators.windows import SimulatedPowerShell, SimulatedWindows
from tests.values import a_lab, an_order
from workers.attempt import Attempt
from workers.channels.windows import WindowsChannel
from workers.guard import Guard
from workers.placing import Endpoint


@pytest.mark.parametrize(
    ("tool", "copy", "program"),
    [
        ("iperf3", "stream", "iperf3"),
        ("ntttcp", "stream", "ntttcp"),
        ("filecopy", "robocopy", "robocopy"),
        ("filecopy", "copy-item", "powershell"),
    ],
)
def test_the_program_behind_a_tool_is_looked_for(tmp_path: Path, tool: str, copy: str, program: str) -> None:
    store, machine = open_store(tmp_path), SimulatedWindows(tmp_path)
    base = an_order()
    order = replace(base, transfer=replace(base.transfer, tool=tool, copy=copy))
    claimed = ClaimedAttempt(id=1, token="t", number=1, run_id=1, campaign_id=1, order=order, lab=a_lab())
    powershell = SimulatedPowerShell(machine.run)
    channel = WindowsChannel(endpoint="host a", powershell=powershell, guard=Guard())
    endpoint = Endpoint(
        side=Side.SENDER, subject="host:a", host="a", channel=channel, address=IPv4Address("198.18.0.1")
    )
    facts = Attempt(claimed, store=store, guard=Guard())._inside(endpoint)
    assert facts["tool"] == machine.tool
    ((_, document),) = powershell.calls
    assert cast(str, document["tool"]) == program
    store.close()
