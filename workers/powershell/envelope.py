"""A script with its document as what is sent, and what comes back as an answer. Pure; the package's docstring has the whole.

A request is six lines of ASCII: version, number of the request, name of the script, then prelude, script and document in
base64. The answer is JSON in base64 between markers that hold the request's number, so that nothing else that a process
prints is taken for it, whatever the code page; success is what the answer says, never an exit code.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import cast

from labctl.errors import LabError
from workers.powershell import clixml
from workers.powershell.base import Json, Script, ScriptError

VERSION = "labctl-request-1"

DOCUMENT_LIMIT = 1024 * 1024
"""Bytes of a document's JSON. Windows PowerShell reads JSON of up to 2 MiB in all versions."""

TEXT_MARK = "="
"""What every text of a document has before it, so that no edition of `ConvertFrom-Json` takes one for a date."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One run of a script with its document."""

    number: str
    """Made for this request alone."""
    name: str
    """Package and file of the script: `workers.hypervisors.hyperv/read-vm`."""
    prelude: str
    script: str
    document: Mapping[str, Json]

    def encode(self) -> bytes:
        """What is sent: ASCII, lines ended by LF."""
        document = json.dumps(_marked(dict(self.document)), ensure_ascii=True, allow_nan=False)
        lines = (VERSION, self.number, self.name, *map(_base64, (self.prelude, self.script, document)))
        return "".join(f"{line}\n" for line in lines).encode("ascii")


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a process that was given a request has left."""

    stdout: bytes
    stderr: bytes
    exit_code: int


def request_for(script: Script, document: Mapping[str, Json]) -> Request:
    """The request that runs a script. Raises `LabError` (`document-too-large`) before anything is sent."""
    size = len(json.dumps(document))
    if size > DOCUMENT_LIMIT:
        raise LabError(
            f"The document for the script {script.name} is too large.",
            kind="document-too-large",
            why=f"It has {size} bytes as JSON; Windows PowerShell reads {DOCUMENT_LIMIT} safely.",
            todo="Send large content in pieces.",
        )
    return Request(
        number=secrets.token_hex(16),
        name=f"{script.package}/{script.name}",
        prelude=_own_file("prelude.ps1"),
        script=script.text,
        document=document,
    )


def decode_request(content: bytes) -> Request:
    """A request as it is sent, read back. Raises `ValueError`."""
    version, number, name, *rest = content.decode("ascii").splitlines()
    if version != VERSION or len(rest) != 3:
        raise ValueError(f"no request of version {VERSION}")
    prelude, script, document = (base64.b64decode(line, validate=True).decode() for line in rest)
    return Request(
        number=number, name=name, prelude=prelude, script=script, document=_unmarked_object(json.loads(document))
    )


def command_line() -> str:
    """The command that answers a request on its standard input. It is always the same."""
    return f"powershell.exe {' '.join(arguments())}"


def arguments() -> tuple[str, ...]:
    """The arguments of that command, for any edition of PowerShell."""
    encoded = base64.b64encode(_own_file("bootstrap.ps1").encode("utf-16-le")).decode()
    return ("-NoLogo", "-NoProfile", "-NonInteractive", "-ExecutionPolicy", "Bypass", "-EncodedCommand", encoded)


def encode_answer(number: str, envelope: Mapping[str, Json]) -> bytes:
    """An answer as the prelude makes it."""
    text = _base64(json.dumps(envelope, ensure_ascii=False))
    return f"\n<labctl {number}>\n{text}\n</labctl {number}>\n".encode("ascii")


def read_answer(request: Request, output: Output, *, where: str, host: str = "") -> Json:
    """What the script has answered.

    Raises `ScriptError` when it tells of an error, and `LabError` (`protocol`) when no answer is there; what the process
    said instead is the reason.
    """
    body = _between_markers(request.number, output.stdout)
    if body is None:
        raise _no_answer(request, output, where=where, host=host)
    return open_envelope(body, request.name, where=where, host=host)


def open_envelope(body: str, name: str, *, where: str, host: str = "") -> Json:
    """The answer in an envelope (base64). Raises `ScriptError`, or `LabError` (`protocol`) for what is none."""
    try:
        envelope = json.loads(base64.b64decode(body, validate=True))
        ok, data, error = envelope["ok"], envelope["data"], envelope["error"]
    except (ValueError, KeyError, TypeError) as problem:
        raise LabError(
            f"The script {name} on {where} gave an answer that can't be read.",
            kind="protocol",
            why=f"{problem}; it began with {body[:80]!r}.",
            todo="Report this; the version of PowerShell there may be the reason.",
            host=host,
        ) from problem
    if ok is not True:
        raise _script_error(error, name, where=where, host=host)
    return cast("Json", data)


def _script_error(error: Mapping[str, Json], name: str, *, where: str, host: str) -> ScriptError:
    told = ScriptError(
        f"The script {name.rpartition('/')[2]} failed on {where}.",
        kind=str(error["kind"]),
        why=str(error["message"]),
        host=host,
    )
    own = error["detail"]
    told.detail = {key: error[key] for key in ("id", "category", "position", "hresult")} | (
        own if isinstance(own, dict) else {}
    )
    return told


def _no_answer(request: Request, output: Output, *, where: str, host: str) -> LabError:
    said = clixml.readable(output.stderr) or clixml.text_of(output.stdout)
    return LabError(
        f"The script {request.name.rpartition('/')[2]} on {where} gave no answer.",
        kind="protocol",
        why=f"PowerShell ended with exit code {output.exit_code} and said: {said.strip()[-600:] or 'nothing'}",
        todo="Try `powershell -NoProfile -Command $PSVersionTable` there; version 5.1 or later has to start without errors.",
        host=host,
    )


def _between_markers(number: str, stdout: bytes) -> str | None:
    """The last complete envelope of this request; whatever is before, between and after it is somebody else's.

    Without its zeros ASCII in UTF-16 is ASCII.
    """
    _, found, rest = stdout.replace(b"\0", b"").rpartition(f"<labctl {number}>".encode("ascii"))
    body, ended, _ = rest.partition(f"</labctl {number}>".encode("ascii"))
    return b"".join(body.split()).decode("latin-1") if found and ended else None


def _marked(value: Json) -> Json:
    if isinstance(value, str):
        return TEXT_MARK + value
    if isinstance(value, list | tuple):
        return [_marked(element) for element in value]
    if isinstance(value, dict):
        return {key: _marked(member) for key, member in value.items()}
    return value


def _unmarked(value: Json) -> Json:
    if isinstance(value, str):
        return value.removeprefix(TEXT_MARK)
    if isinstance(value, list):
        return [_unmarked(element) for element in value]
    if isinstance(value, dict):
        return _unmarked_object(value)
    return value


def _unmarked_object(value: Mapping[str, Json]) -> dict[str, Json]:
    return {key: _unmarked(member) for key, member in value.items()}


def _base64(text: str) -> str:
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode("ascii")


@cache
def _own_file(name: str) -> str:
    return (files("workers.powershell") / name).read_text(encoding="utf-8")
