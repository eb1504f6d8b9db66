"""Published experiments from the files of `configs/published/`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import labctl
from labctl.errors import SpecError
from labctl.model.published import Published, PublishedCell
from labctl.spec.source import parse_document, read_text
from labctl.spec.values import nearest

DIRECTORY = Path(labctl.__file__).parent.parent / "configs" / "published"
"""Where they are beside the code."""

_BITS = {"Gbit/s": 1e9, "Mbit/s": 1e6, "kbit/s": 1e3, "bit/s": 1.0, "MB/s": 8e6, "MiB/s": 8 * 2.0**20}
_BYTES = {"GiB": 2**30, "MiB": 2**20, "GB": 10**9, "MB": 10**6}
_NO_LEVELS = ("value", "values", "mean", "claimed_change", "verdict")


def published_ids(directory: Path = DIRECTORY) -> tuple[str, ...]:
    """The ids of all published experiments. Raises `SpecError` when there are none."""
    found = tuple(sorted(path.stem for path in directory.glob("*.yaml")))
    if not found:
        raise SpecError(
            f"There are no published experiments in {directory}.",
            todo="Name the folder `configs/published` of labctl's sources with --directory.",
        )
    return found


def load_published(name: str, directory: Path = DIRECTORY) -> Published:
    """The published experiment of this id. Raises `SpecError` when there is none, or its file is not one."""
    known = published_ids(directory)
    if name not in known:
        near = nearest(name, known)
        raise SpecError(
            f"There is no published experiment {name}.",
            why=f"There are: {', '.join(known)}.",
            todo=f"Did you mean {near}?" if near else "Name one of them.",
        )
    path = directory / f"{name}.yaml"
    what = "published experiment"
    plain: Any = parse_document(read_text(path, what=what), file=str(path), what=what, base=directory).plain()
    try:
        return _published(plain)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SpecError(f"{path} is no published experiment.", why=f"{type(error).__name__}: {error}") from error


def _published(plain: Mapping[str, Any]) -> Published:
    return Published(
        id=str(plain["id"]),
        title=str(plain["title"]),
        author=str(plain.get("author", "")),
        date=str(plain.get("date", "")),
        hypervisor=str(plain["hypervisor"]),
        cells=tuple(_cell(cell, plain) for cell in plain.get("cells", ())),
        claims=tuple(str(claim) for claim in plain.get("claims", ())),
        notes=tuple(str(note) for note in plain.get("note", ())),
    )


def _cell(cell: Mapping[str, Any], plain: Mapping[str, Any]) -> PublishedCell:
    levels = {name: str(level) for name, level in cell.items() if name not in _NO_LEVELS}
    values: Sequence[float] = [float(value) for value in cell.get("values", [cell.get("value")])]
    unit = str(plain["unit"])
    return PublishedCell(
        levels=levels,
        as_campaign=_as_campaign(levels, plain),
        bits_per_second=_bits_per_second(values, unit, plain),
        printed=f"{', '.join(f'{value:g}' for value in values)} {'s' if unit == 'seconds' else unit}",
        n=len(values) if "values" in cell else int(plain["repeats"]) if "repeats" in plain else None,
        claimed=str(cell.get("claimed_change", "")),
    )


def _as_campaign(levels: Mapping[str, str], plain: Mapping[str, Any]) -> dict[str, str]:
    found = {"scenario": str(plain["scenario"])} if "scenario" in plain else {}
    for name, level in levels.items():
        told = plain.get("as_campaign", {}).get(name, {})
        found[str(told.get("setting", name))] = str(told.get("levels", {}).get(level, level))
    return found


def _bits_per_second(values: Sequence[float], unit: str, plain: Mapping[str, Any]) -> float:
    """The mean of figures in bit/s. Of seconds, it is what the mean of them makes of the size that was moved."""
    mean = sum(values) / len(values)
    if unit != "seconds":
        return mean * _BITS[unit]
    number, _, word = str(plain["transfer"]["size"]).partition(" ")
    return 8 * float(number) * _BYTES[word] / mean
