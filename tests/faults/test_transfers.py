"""Transfer tools that misbehave: a wrapper around the real tool in real guests does what goes wrong in the field."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.desk import Desk, until
from workers.locallab import namespaces
from workers.locallab.topology import topology

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

WRAPPER = r"""#!/bin/sh
real=/bin/iperf3.real
role= port= previous=
for word; do
  case $word in -s) role=server ;; -c) role=client ;; esac
  [ "$previous" != -p ] || port=$word
  previous=$word
done
in_state() { cat /proc/net/tcp /proc/net/tcp6 | grep -q ":$(printf %04X "$port") [0-9A-F:]* $1 "; }
case $role-$(cat /run/fault) in
server-busy)  # somebody else's client is served already, and there is no end of them
  "$real" -s -p "$port" &
  while :; do "$real" -c 127.0.0.1 -p "$port" -t 60 >/dev/null 2>&1 || sleep 0.1; done ;;
client-busy)
  until "$real" "$@" -t 1 2>&1 | grep -q busy; do sleep 0.1; done
  exec "$real" "$@" ;;
server-refused)  # it listens, and is gone before anybody comes
  "$real" "$@" &
  until in_state 0A; do sleep 0.05; done
  sleep 3; kill -KILL $!; wait ;;
client-refused)
  until "$real" "$@" -t 1 2>&1 | grep -q refused; do sleep 0.1; done
  exec "$real" "$@" ;;
server-killed)
  "$real" "$@" &
  until in_state 01; do sleep 0.05; done
  sleep 1; kill -KILL $!; wait $!; exit $? ;;
client-hung)
  "$real" "$@" &
  sleep 1; kill -STOP $!; wait ;;
*) exec "$real" "$@" ;;
esac
"""
PREPARE = """
[ -e /bin/iperf3.real ] || mv /bin/iperf3 /bin/iperf3.real
printf '%s' "$1" > /bin/iperf3 && chmod 755 /bin/iperf3 && echo "$2" > /run/fault
"""
FAULTS = {"busy": "server-busy", "refused": "connect-refused", "killed": "server-died", "hung": "client-hung"}


def test_every_fault_of_the_tool_is_told_by_its_name(desk: Desk) -> None:
    campaign = desk.campaign(
        scenarios=["same-host"],
        factors={"own.fault": list(FAULTS)},
        settings={"seconds": 5},
        prepare=[["/bin/sh", "-c", PREPARE, "prepare", WRAPPER, "{own.fault}"]],
        retries=0,
        timeouts={"boot": 120, "command": 60, "transfer_grace": 10},
    )
    ended = desk.run(campaign).wait(seconds=500)
    assert ended.code == 1, ended.said
    record = desk.record()
    fault_of = {cell.id: str(cell.levels["own.fault"]) for cell in record.cells}
    found = {fault_of[run.cell]: run.result.detail for run in record.runs if run.result is not None}
    assert {fault: detail.kind for fault, detail in found.items()} == FAULTS, found
    for fault, detail in found.items():
        assert (detail.outcome, detail.phase) == ("lab-error", "transfer"), fault
        assert detail.what
        assert detail.todo
    for run in record.runs:
        (attempt,) = desk.store.attempts_of_run(run.id)
        names = {output.name for output in desk.store.raw(attempt)}
        assert "transfer-1/client.stdout" in names, "what was printed is kept, also of failed transfers"
        assert run.result is not None
        assert len(run.result.transfers) == 1
    desk.assert_nothing_left()


def test_a_path_that_swallows_everything_ends_at_the_deadline(desk: Desk) -> None:
    campaign = desk.campaign(
        scenarios=["same-host"],
        settings={"seconds": 8},
        retries=0,
        timeouts={"boot": 120, "command": 60, "transfer_grace": 5},
    )
    command = desk.run(campaign)
    attempt = desk.phase(command, "transfer")
    member = topology(desk.lab).members[attempt.hosts[0]].name
    taps = [name for name in until("taps", lambda: namespaces.look(member)) if name.startswith("vnet")]
    until("data flows", lambda: _moved(member, taps[-1]) > 10_000_000)
    subprocess.run(["ip", "-netns", member, "link", "set", "dev", taps[-1], "down"], check=True)
    ended = command.wait()
    assert ended.code == 1, ended.said
    (run,) = desk.record().runs
    assert run.result is not None
    assert (run.result.detail.outcome, run.result.detail.kind) == ("lab-error", "client-hung")
    assert "was stopped after" in run.result.detail.what
    desk.assert_nothing_left()


def _moved(namespace: str, interface: str) -> int:
    """Bytes that an interface has moved either way."""
    said = subprocess.run(
        ["ip", "-netns", namespace, "-json", "-stats", "link", "show", "dev", interface],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    (counters,) = json.loads(said.stdout)
    return int(counters["stats64"]["rx"]["bytes"]) + int(counters["stats64"]["tx"]["bytes"])
