"""Outputs made by hand become a campaign: read by the parsers of all campaigns, with their bytes kept beside."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from labctl.errors import SpecError
from labctl.model.campaign import Campaign, Cell
from labctl.model.lab import Lab
from labctl.model.outcome import Outcome, OutcomeDetail
from labctl.model.reading import Capture, ErrorKind, Reading
from labctl.model.result import AttemptResult, FactSet, RawOutput, TransferResult
from labctl.model.scenario import Scenario, Side
from labctl.model.settings import SCENARIO, Level
from labctl.store.imports import ImportedRun
from workers.import_map import ImportMap, OutputsField
from workers.transfers import command_text
from workers.transfers.recognise import recognise
from workers.transfers.registry import parser

_TOOL_OF_READING = {"iperf3": "iperf3", "iperf2": "iperf", "ntttcp-linux": "ntttcp", "ntttcp-windows": "ntttcp"}
"""The campaign's name of a tool by that of its readings; all else copies files."""
_RESULTS = (ErrorKind.CONNECTION_LOST, ErrorKind.CORRUPT_DATA)
"""What went wrong with the system under test, and not with the lab."""
_SECONDS = "seconds"


@dataclass(frozen=True, kw_only=True)
class _Output:
    """One file with what belongs to it."""

    path: Path
    name: str
    """Below the folder."""
    part: OutputsField
    reading: Reading
    raw: tuple[RawOutput, ...]
    modified: float
    """Seconds since the Unix epoch."""


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What is to be stored."""

    campaign: Campaign
    lab: Lab
    runs: tuple[ImportedRun, ...]
    digest: str


def gather(folder: Path, spec: ImportMap) -> Imported:
    """Read every output that the map names. Raises `SpecError` for a pattern without a file, a file of two patterns, an
    output of no known tool, or two outputs that are the same replicate."""
    outputs = [_read(path, name, part, spec) for path, name, part in _files(folder, spec.outputs)]
    tools = {_tool(output.reading) for output in outputs}
    runs = tuple(_numbered((_cell(output, spec, tools), output) for output in outputs))
    _refuse_twice(runs)
    digest = sha256(b"".join(sha256(raw.content).digest() for output in outputs for raw in output.raw))
    digest.update(spec.model_dump_json().encode())
    facts = {name: dict(known) for name, known in spec.hosts.items()}
    # When each transfer was made isn't known: files keep the time at which they were copied. So no drift is told from it.
    newest = max(output.modified for output in outputs)
    return Imported(
        campaign=_campaign(spec, [cell for cell, _, _ in runs], max(number for _, _, number in runs)),
        lab=_lab(spec),
        runs=tuple(_run(cell, replace(output, modified=newest), number, facts) for cell, output, number in runs),
        digest=digest.hexdigest(),
    )


def _files(folder: Path, parts: Iterable[OutputsField]) -> list[tuple[Path, str, OutputsField]]:
    found: dict[Path, tuple[str, OutputsField]] = {}
    for part in parts:
        paths = sorted((path for path in folder.glob(part.files) if path.is_file()), key=_natural)
        beside = {companion for path in paths for companion in _companions(path, part).values()}
        paths = [path for path in paths if path not in beside]
        if not paths:
            raise SpecError(f"No file in {folder} is named like {part.files}. Nothing was imported.")
        for path in paths:
            if path in found:
                raise SpecError(
                    f"{path} is of two entries: {found[path][1].files} and {part.files}. Nothing was imported.",
                    todo="Make the patterns narrower: an output belongs to one cell.",
                )
            found[path] = (str(path.relative_to(folder)), part)
    return [(path, name, part) for path, (name, part) in found.items()]


def _natural(path: Path) -> list[tuple[int, str]]:
    """`run10` after `run9`."""
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d+)", str(path))]


def _companions(path: Path, part: OutputsField) -> dict[str, Path]:
    """The files that the same transfer printed to, by what they are. Those that are not there are left out."""
    names = {"server.stdout": part.server, "client.stderr": part.stderr}
    named = {kind: path.parent / name.replace("{stem}", path.stem) for kind, name in names.items() if name}
    return {kind: beside for kind, beside in named.items() if beside.is_file()}


def _read(path: Path, name: str, part: OutputsField, spec: ImportMap) -> _Output:
    try:
        beside = {kind: file.read_bytes() for kind, file in _companions(path, part).items()}
        stdout, modified = path.read_bytes(), path.stat().st_mtime
    except OSError as error:
        raise SpecError(f"{path} can't be read. Nothing was imported.", why=error.strerror or str(error)) from error
    asked = part.seconds or (part.levels | spec.settings).get(_SECONDS)
    capture = Capture(
        stdout=stdout,
        stderr=beside.get("client.stderr", b""),
        server=beside.get("server.stdout"),
        requested_seconds=float(asked) if asked is not None else command_text.seconds(part.command),
        role=part.role,
        command=part.command,
    )
    tool = part.tool or recognise(capture)
    if tool is None:
        raise SpecError(f"{path} doesn't tell which tool printed it. Nothing was imported.", todo="Name its `tool`.")
    raw = [RawOutput(name="transfer-1/client.stdout", content=stdout)]
    raw += [RawOutput(name=f"transfer-1/{kind}", content=content) for kind, content in beside.items()]
    reading = parser(tool)(capture)
    return _Output(path=path, name=name, part=part, reading=reading, raw=tuple(raw), modified=modified)


def _tool(reading: Reading) -> str:
    return _TOOL_OF_READING.get(reading.tool, "filecopy")


def _cell(output: _Output, spec: ImportMap, tools: set[str]) -> Cell:
    """The cell that an output is of. Where outputs come from several tools, the tool is a level too."""
    levels: dict[str, Level] = {SCENARIO: (output.part.scenario or spec.scenario).value, **output.part.levels}
    if len(tools) > 1 and "tool" not in levels:
        levels["tool"] = _tool(output.reading)
    return Cell(levels=levels)


def _numbered(outputs: Iterable[tuple[Cell, _Output]]) -> Iterable[tuple[Cell, _Output, int]]:
    """Every output with its number among those of its cell: as its name says, else by counting."""
    counted: dict[str, int] = {}
    for cell, output in outputs:
        counted[cell.id] = counted.get(cell.id, 0) + 1
        number = counted[cell.id]
        if output.part.replicate is not None:
            match = re.search(output.part.replicate, output.name)
            if match is None or not match[1].isdecimal():
                raise SpecError(f"{output.path} has no number by {output.part.replicate}. Nothing was imported.")
            number = int(match[1])
        yield cell, output, number


def _refuse_twice(runs: Iterable[tuple[Cell, _Output, int]]) -> None:
    seen: dict[tuple[str, int], Path] = {}
    for cell, output, number in runs:
        first = seen.setdefault((cell.id, number), output.path)
        if first != output.path:
            raise SpecError(
                f"{first} and {output.path} are both replicate {number} of {cell.key}. Nothing was imported.",
                todo="Give them other levels, or another `replicate`.",
            )


def _campaign(spec: ImportMap, cells: list[Cell], repeats: int) -> Campaign:
    levels: dict[str, list[Level]] = {}
    for cell in cells:
        for name, level in cell.levels.items():
            known = levels.setdefault(name, [])
            if level not in known:
                known.append(level)
    scenarios = levels.pop(SCENARIO)
    factors = {name: tuple(known) for name, known in levels.items()}
    return Campaign(
        name=spec.name,
        scenarios=tuple(Scenario(str(name)) for name in scenarios),
        factors=factors,
        settings=spec.settings,
        baseline={name: known[0] for name, known in factors.items()},
        repeats=repeats,
        warmups=0,
        question=spec.question,
        labels={"imported": "made by hand"},
    )


def _lab(spec: ImportMap) -> Lab:
    """A lab that nothing can be run in: its name is one that no lab file can give."""
    return Lab(
        name=f"imported:{spec.lab}",
        site="imported",
        hosts={},
        machines={},
        networks={},
        images={},
        migration_pairs=frozenset(),
        test_network="",
    )


def _run(cell: Cell, output: _Output, number: int, facts: Mapping[str, Mapping[str, str]]) -> ImportedRun:
    reading = output.reading
    seconds = reading.seconds or 0.0
    documents = [replace(one, documents=()) for one in reading.documents] or [reading]
    transfers = [_transfer(one, index, output, seconds) for index, one in enumerate(documents, start=1)]
    hosts = tuple(output.part.hosts)
    return ImportedRun(
        cell=cell,
        replicate=number,
        hosts=hosts,
        started=output.modified,
        ended=output.modified,
        result=AttemptResult(
            detail=_detail(documents, output),
            transfers=tuple(transfers),
            facts=tuple(
                FactSet(subject=f"host:{host}", when="before", facts=dict(facts[host]))
                for host in hosts
                if host in facts
            ),
            raw=output.raw,
            labels={"imported": output.name},
        ),
    )


def _transfer(reading: Reading, index: int, output: _Output, seconds: float) -> TransferResult:
    command = tuple(output.part.command.split())
    return TransferResult(
        index=index,
        counted=True,
        tool=_tool(reading),
        reading=reading,
        measured_on=Side.RECEIVER if output.part.role in ("server", "receiver") else Side.SENDER,
        client_command=command,
        server_command=(),
        port=0,
        started=output.modified,
        elapsed=seconds,
    )


def _detail(documents: Iterable[Reading], output: _Output) -> OutcomeDetail:
    bad = next((one for one in documents if not one.ok or one.partial), None)
    if bad is None:
        return OutcomeDetail(outcome=Outcome.OK)
    kind = "clock-step" if bad.error_kind is None else str(bad.error_kind).replace("_", "-")
    return OutcomeDetail(
        outcome=Outcome.FAILED if bad.error_kind in _RESULTS else Outcome.LAB_ERROR,
        kind=kind,
        what=f"{output.name} holds no whole figure.",
        why=bad.error or f"It reads as {kind}.",
        phase="transfer",
    )
