"""The real prelude and real scripts in a real PowerShell, where one is on PATH; and how the endpoint for tests runs it."""

from __future__ import annotations

import sys
import textwrap
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.errors import LabError
from tests.simulators.winrm import Context, ScriptFailure, pwsh
from tests.winrm.conftest import Place
from workers.powershell.base import Json, Script

ECHO = Script(package="tests.powershell", name="echo", writes=False)

VALUES: dict[str, Json] = {
    "texts": ["ä'$(x)`\";\n\r\t\0Ж漢😀", "2026-01-31T10:00:00Z", "/Date(1714650000000)/", "1,5", ""],
    "numbers": [0, -1, 2**53, 2**63 - 1, -(2**63)],
    "words": [True, False, None],
    "lists": [[], [1], [[1], []]],
    "objects": {"a": {"b": [{"c": {"d": {"e": {"f": [None]}}}}]}, "keys": 1, "count": 2},
}


def context() -> Context:
    return Context(
        host="hv1",
        user="LAB\\op",
        transport="ntlm",
        package="tests.powershell",
        progress=lambda value: None,
        ended=threading.Event(),
    )


@pytest.mark.skipif(pwsh.PROGRAM is None, reason="no pwsh on PATH")
@pytest.mark.parametrize("name", VALUES)
def test_h11_h12_values_through_a_real_powershell(name: str) -> None:
    """H11, H12: what goes in comes out, by the script that answers what it is given."""
    value = VALUES[name]
    assert pwsh.run()("echo", {"value": value}, context()) == {"value": value}


@pytest.mark.skipif(pwsh.PROGRAM is None, reason="no pwsh on PATH")
@pytest.mark.services
def test_h1_an_endpoint_with_a_real_powershell_behind_it(place: Place) -> None:
    """H1: on the wire, with whatever a real process writes to stderr."""
    shell = place.shell(place.endpoint(pwsh.run()))
    assert shell.call(ECHO, {"value": VALUES}, timeout=60.0) == {"value": VALUES}


PRETENDER = '''
#!{python}
"""Answers as PowerShell would: what it finds on its standard input, and the arguments that it was given."""
import json, os, pathlib, sys
sys.path.insert(0, {root!r})
from workers.powershell import envelope
request = envelope.decode_request(sys.stdin.buffer.read())
value = request.document["value"]
if value == "slow":
    pathlib.Path(os.environ["LABCTL_JOB"], "progress").write_text(json.dumps({{"percent": 7}}))
    import time
    time.sleep(60)
error = {{"kind": "not-found", "message": "gone", "id": "x", "category": "y", "position": "", "hresult": 1, "detail": {{"n": 2}}}}
answer = [value, sys.argv[1:], request.prelude.split("\\n")[0], os.environ["OF_THE_TEST"]]
print("noise")
told = {{"ok": value != "fail", "data": answer, "error": error}}
sys.stdout.buffer.write(envelope.encode_answer(request.number, told))
'''


@pytest.fixture
def pretender(tmp_path: Path) -> str:
    """A program in place of pwsh."""
    root = str(Path(__file__).parents[2])
    path = tmp_path / "pwsh"
    path.write_text(textwrap.dedent(PRETENDER).lstrip().format(python=sys.executable, root=root))
    path.chmod(0o755)
    return str(path)


def run(pretender: str, document: Mapping[str, Json], where: Context) -> Json:
    return pwsh.run(prepare="Import-Module x", environment={"OF_THE_TEST": "1"}, program=pretender)(
        "echo", document, where
    )


def test_the_runner_gives_a_program_the_request_as_windows_would(pretender: str) -> None:
    answer = run(pretender, {"value": "ä'$(x)"}, context())
    assert isinstance(answer, list)
    assert answer[0] == "ä'$(x)"
    assert "-EncodedCommand" in answer[1]  # type: ignore[operator]
    assert answer[2:] == ["Import-Module x", "1"]


def test_the_runner_passes_errors_on(pretender: str) -> None:
    with pytest.raises(ScriptFailure) as caught:
        run(pretender, {"value": "fail"}, context())
    assert caught.value.error["kind"] == "not-found"
    assert caught.value.error["detail"] == {"n": 2}


def test_the_runner_passes_progress_on_and_ends_what_is_cancelled(pretender: str) -> None:
    ended = threading.Event()
    told: list[Json] = []

    def cancel(value: Json) -> None:
        told.append(value)
        ended.set()

    with pytest.raises(LabError, match="gave no answer"):
        run(pretender, {"value": "slow"}, replace(context(), progress=cancel, ended=ended))
    assert told[0] == {"percent": 7}
