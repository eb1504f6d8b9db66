"""Reads capture cases, and compares a reading with what a case expects. The fields are those of captures/README.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.model.reading import Capture, Reading

CAPTURES = Path(__file__).parent.parent / "captures"


@dataclass(frozen=True)
class Case:
    folder: Path
    expected: dict[str, Any]
    capture: Capture

    def __str__(self) -> str:
        return self.folder.name


def output_file(folder: Path) -> Path:
    """The tool's own output; the console text where there is an XML file too."""
    return min(path for path in folder.glob("input.*") if path.name.count(".") == 1)


def load(folder: Path) -> Case:
    meta = json.loads((folder / "meta.json").read_text())

    def beside(key: str) -> bytes | None:
        return (folder / meta[key]).read_bytes() if meta.get(key) else None

    capture = Capture(
        stdout=output_file(folder).read_bytes(),
        stderr=beside("stderr_file") or b"",
        server=beside("peer_file"),
        exit_code=meta["exit_code"],
        requested_seconds=meta["requested_seconds"],
        role=meta["role"],
        command=meta["command"],
        elapsed=meta.get("orchestrator_elapsed_seconds"),
    )
    return Case(folder, json.loads((folder / "expected.json").read_text()), capture)


def cases(*tools: str) -> list[Case]:
    folders = sorted(path.parent for path in CAPTURES.glob("*/expected.json"))
    found = [load(folder) for folder in folders]
    return [case for case in found if case.expected["tool"] in tools]


def differences(reading: Reading, expected: dict[str, Any], inputs: Iterable[bytes]) -> list[str]:
    """Every field in which the reading isn't what the case expects."""
    found: list[str] = []
    tolerance = expected["rel_tol"]
    alternatives = expected.get("alternatives", [])

    def same(name: str, got: object, wanted: object) -> None:
        if got != wanted and got not in alternatives:
            found.append(f"{name}: {got!r}, expected {wanted!r}")

    def close(name: str, got: float | None, *wanted: float | None) -> None:
        if not any(_close(got, one, tolerance) for one in wanted):
            found.append(f"{name}: {got!r}, expected {wanted!r} within {tolerance}")

    for name in ("tool", "ok", "error_kind", "partial", "side", "streams", "retransmits"):
        same(name, getattr(reading, name), expected[name])
    version = expected["tool_version"]
    if version is not None and not any(version.encode() in data.replace(b"\0", b"") for data in inputs):
        version = None  # known to whoever made the capture, but not said in it
    same("tool_version", reading.tool_version, version)
    rates = [one for one in alternatives if isinstance(one, int | float)]
    close("bits_per_second", reading.bits_per_second, expected["bits_per_second"], *rates)
    if "no_tool_rate" in expected["warnings"]:
        same("bytes", reading.bytes, None)  # known from the file itself, not from the output
    else:
        close("bytes", reading.bytes, expected["bytes"])
    close("seconds", reading.seconds, expected["seconds"])
    found += _interval_differences("intervals", reading.intervals, expected["intervals"], tolerance)
    for name, wrong in expected.get("misread_values", {}).items():
        figures = (
            (reading.bytes,) if "bytes" in name and "*" not in name else (reading.bits_per_second, reading.seconds)
        )
        if any(figure is not None and _close(figure, wrong, 1e-9) for figure in figures):
            found.append(f"misread as {name}: {wrong}")
    found += [f"no warning {name}" for name in expected["warnings"] if name not in reading.warnings]
    if expected.get("udp"):
        for name, wanted in expected["udp"].items():
            close(f"udp.{name}", getattr(reading.udp, name), wanted)
    if expected.get("reverse"):
        for name in ("bits_per_second", "bytes", "seconds", "retransmits"):
            if name in expected["reverse"]:
                close(f"reverse.{name}", getattr(reading.reverse, name), expected["reverse"][name])
        if "intervals" in expected["reverse"]:
            wanted = expected["reverse"]["intervals"]
            found += _interval_differences(
                "reverse.intervals", getattr(reading.reverse, "intervals", None), wanted, tolerance
            )
    else:
        same("reverse", reading.reverse, None)
    documents = expected.get("documents")
    if documents is not None:
        same("documents", len(reading.documents), len(documents))
        for one, wanted in zip(reading.documents, documents, strict=False):
            same("document.ok", one.ok, wanted["ok"])
            same("document.error_kind", one.error_kind, wanted.get("error_kind"))
            close("document.bits_per_second", one.bits_per_second, wanted["bits_per_second"])
    return found


def _interval_differences(name: str, got: Any, wanted: Any, tolerance: float) -> list[str]:
    if wanted is None or got is None:
        return [] if got == wanted else [f"{name}: {got!r}, expected {wanted!r}"]
    if len(got) != len(wanted):
        return [f"{name}: {len(got)} rows, expected {len(wanted)}"]
    rows = [(one.start, one.end, one.bits_per_second) for one in got]
    return [
        f"{name}: {row}, expected {other}"
        for row, other in zip(rows, wanted, strict=True)
        if not all(_close(a, b, tolerance) for a, b in zip(row, other, strict=True))
    ]


def _close(got: float | None, wanted: float | None, tolerance: float) -> bool:
    if got is None or wanted is None:
        return got is wanted
    return abs(got - wanted) <= tolerance * max(abs(got), abs(wanted)) + 1e-9
