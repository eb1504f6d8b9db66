"""The real scripts in a real PowerShell 7, where one is on PATH: what stands behind the endpoint then instead of Python.

    WinrmEndpoint(pwsh.run(prepare="Import-Module /path/HyperV.psm1", environment={...}), ...)

What Windows has and PowerShell elsewhere has not comes from a module that `prepare` loads.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tests.simulators.winrm.processes import Context, Run, ScriptFailure
from workers.powershell import envelope
from workers.powershell.base import Json, Script, ScriptError

PROGRAM = shutil.which("pwsh")

POLL_SECONDS = 0.1


def run(*, prepare: str = "", environment: Mapping[str, str] | None = None, program: str | None = PROGRAM) -> Run:
    """Runs scripts in `program`, with `prepare` before the prelude and these variables beside those of this process."""
    assert program is not None, "there is no pwsh on PATH"

    def run_script(name: str, document: Mapping[str, Json], context: Context) -> Json:
        request = envelope.request_for(Script(package=context.package, name=name), document)
        request = replace(request, prelude=f"{prepare}\n{request.prelude}")
        with tempfile.TemporaryDirectory(prefix="labctl-pwsh-") as folder:
            output = _process(program, request, context, Path(folder), environment or {})
        try:
            return envelope.read_answer(request, output, where=context.host)
        except ScriptError as error:
            raise _failure(error) from error

    return run_script


def _process(
    program: str, request: envelope.Request, context: Context, folder: Path, environment: Mapping[str, str]
) -> envelope.Output:
    """One process for one request; ended when its command or job is. What it says of its progress is passed on."""
    process = subprocess.Popen(
        [program, *envelope.arguments()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment, "LABCTL_JOB": str(folder)},
    )
    content: bytes | None = request.encode()
    while True:
        try:
            stdout, stderr = process.communicate(content, timeout=POLL_SECONDS)
        except subprocess.TimeoutExpired:
            content = None
            _pass_on(folder / "progress", context)
            if context.ended.is_set():
                process.kill()
            continue
        _pass_on(folder / "progress", context)
        return envelope.Output(stdout=stdout, stderr=stderr, exit_code=process.returncode)


def _pass_on(progress: Path, context: Context) -> None:
    if progress.exists():
        context.progress(json.loads(progress.read_text(encoding="utf-8")))


def _failure(error: ScriptError) -> ScriptFailure:
    failure = ScriptFailure(error.kind, error.why)
    detail = dict(error.detail)
    failure.error |= {key: detail.pop(key) for key in ("id", "category", "position", "hresult")}
    failure.error["detail"] = detail
    return failure
