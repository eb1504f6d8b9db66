"""What every `PowerShell` promises: on a host by WinRM, and in a guest by PowerShell Direct through that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from labctl.errors import LabError
from labctl.model.lab import Login, SecretRef, WinrmAccess
from tests.simulators.windows import SimulatedPowerShell, answered
from tests.simulators.winrm import Context, Run, ScriptFailure, WinrmEndpoint
from workers.channels.powershell_direct import Place, PowerShellDirect
from workers.powershell.base import Job, Json, PowerShell, Script, ScriptError
from workers.winrm import WinrmPowerShell

pytestmark = pytest.mark.services

READS = Script(package="tests.powershell", name="echo", writes=False)
WRITES = Script(package="tests.powershell", name="echo", writes=True)

SECONDS = 20.0
USER = "LAB\\contract"
VM = "6b1e3a5c-0000-4000-8000-000000000002"


class Scripts:
    """What scripts do here, by the value that they are given."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.runs: list[Json] = []

    def __call__(self, name: str, document: Mapping[str, Json], context: Context) -> Json:
        value = document["value"]
        self.runs.append(value)
        if value == "fail":
            raise ScriptFailure("not-found", "Nicht da.", detail={"id": 7})
        if value == "long":
            context.progress({"percent": 40})
            while not self.go_on.wait(0.01):
                if context.ended.is_set():
                    return None
        return {"value": value}


Open = Callable[[], PowerShell]


@contextmanager
def by_winrm(run: Run, secret: Path) -> Iterator[Open]:
    with WinrmEndpoint(run, users={USER: secret.read_text()}) as endpoint:
        login = Login(user=USER, password=SecretRef(scheme="file", locator=str(secret)))
        opened: list[WinrmPowerShell] = []

        def open_it() -> PowerShell:
            access = WinrmAccess(url=endpoint.url, login=login)
            opened.append(WinrmPowerShell(where="host hv1", access=access, host="hv1"))
            return opened[-1]

        yield open_it
        for shell in opened:
            shell.close()
        assert len(endpoint.shells) == 0


@contextmanager
def by_powershell_direct(run: Run, secret: Path) -> Iterator[Open]:
    guest = SimulatedPowerShell(run)

    def on_the_host(name: str, document: Mapping[str, Json], context: Context) -> Json:
        assert name == "direct-call"
        said: Any = document
        request = "".join(f"{line}\n" for line in said["request"]).encode()
        return {"stdout": answered(request, guest._script).decode(), "exit": 0}

    login = Login(user="Administrator", password=SecretRef(scheme="file", locator=str(secret)))
    with by_winrm(on_the_host, secret) as open_host:
        place = Place(host="hv1", powershell=open_host(), vm_id=VM)
        yield lambda: PowerShellDirect(where="vm labctl-x", login=login, place=lambda: place)


@pytest.fixture
def scripts() -> Scripts:
    return Scripts()


@pytest.fixture(params=[by_winrm, by_powershell_direct], ids=["winrm", "powershell-direct"])
def open_one(request: pytest.FixtureRequest, scripts: Scripts, tmp_path: Path) -> Iterator[Open]:
    """Opens the same place, as often as it is called."""
    secret = tmp_path / "secret"
    secret.write_text("a secret'$(x)")
    with request.param(scripts, secret) as open_it:
        yield open_it
    scripts.go_on.set()


def answer_of(job: Job) -> Json:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        answer = job.poll(timeout=SECONDS)
        if answer is not None:
            return answer
        time.sleep(0.01)
    raise AssertionError("the job did not end")


def test_a_script_is_given_a_document_and_answers(open_one: Open) -> None:
    value: Json = {
        "texts": ["ä'$(x)`;\n\0Ж漢😀", "2026-01-31T10:00:00Z"],
        "numbers": [2**63 - 1, 0],
        "none": None,
        "one": [1],
    }
    assert open_one().call(WRITES, {"value": value}, timeout=SECONDS) == {"value": value}


def test_an_error_of_a_script_is_told_with_its_kind(open_one: Open) -> None:
    with pytest.raises(ScriptError) as caught:
        open_one().call(WRITES, {"value": "fail"}, timeout=SECONDS)
    assert (caught.value.kind, caught.value.why, caught.value.detail["id"]) == ("not-found", "Nicht da.", 7)


def test_a_script_that_does_not_end_is_given_up_at_its_deadline(open_one: Open) -> None:
    with pytest.raises(LabError) as caught:
        open_one().call(WRITES, {"value": "long"}, timeout=1.0)
    assert caught.value.kind == "timeout"


def test_calls_of_several_threads(open_one: Open) -> None:
    shell, answers = open_one(), {}

    def call(number: int) -> None:
        answers[number] = shell.call(READS, {"value": number}, timeout=SECONDS)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: {"value": number} for number in range(6)}


def test_it_can_be_used_after_it_was_closed(open_one: Open) -> None:
    shell = open_one()
    for value in range(2):
        assert shell.call(READS, {"value": value}, timeout=SECONDS) == {"value": value}
        shell.close()


def test_a_job_goes_on_and_is_found_by_its_name(open_one: Open, scripts: Scripts) -> None:
    """H2: started once, by whoever comes first; the others find it."""
    first = open_one()
    job = first.job(WRITES, {"value": "long"}, name="job 'ä' 1", timeout=SECONDS)
    assert job.poll(timeout=SECONDS) is None
    while job.progress() is None:
        assert job.poll(timeout=SECONDS) is None
    assert job.progress() == {"percent": 40}
    first.close()
    found = open_one().job(WRITES, {"value": "long"}, name="job 'ä' 1", timeout=SECONDS)
    scripts.go_on.set()
    assert answer_of(found) == {"value": "long"}
    assert answer_of(job) == {"value": "long"}
    assert scripts.runs == ["long"]


def test_a_job_that_fails(open_one: Open) -> None:
    job = open_one().job(WRITES, {"value": "fail"}, name="job 1", timeout=SECONDS)
    with pytest.raises(ScriptError) as caught:
        answer_of(job)
    assert caught.value.kind == "not-found"


def test_a_job_is_cancelled_as_often_as_one_likes(open_one: Open, scripts: Scripts) -> None:
    shell = open_one()
    job = shell.job(WRITES, {"value": "long"}, name="job 1", timeout=SECONDS)
    job.cancel(timeout=SECONDS)
    job.cancel(timeout=SECONDS)
    with pytest.raises(ScriptError) as caught:
        job.poll(timeout=SECONDS)
    assert caught.value.kind == "job-cancelled"
    shell.job(WRITES, {"value": "long"}, name="job 1", timeout=SECONDS)
    assert len(scripts.runs) <= 1
