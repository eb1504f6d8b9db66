"""What a recorded command line says about a transfer, where the output doesn't."""

from __future__ import annotations

import re


def seconds(command: str) -> float | None:
    """The seconds asked for by `-t` or `--time`; None when the command has none, or asks for bytes (`-n`)."""
    if re.search(r"(?:^|\s)(?:-n|--num|--bytes|-k|--blockcount)\b", command):
        return None
    match = re.search(r"(?:^|\s)(?:-t|--time)[ =]?(\d+(?:\.\d+)?)", command)
    return float(match.group(1)) if match else None


def interval(command: str) -> float | None:
    """The seconds between reports asked for by `-i` or `--interval`."""
    match = re.search(r"(?:^|\s)(?:-i|--interval)[ =]?(\d+(?:\.\d+)?)", command)
    return float(match.group(1)) if match else None


def streams(command: str) -> int | None:
    """The parallel streams asked for by `-P` or `--parallel`."""
    match = re.search(r"(?:^|\s)(?:-P|--parallel)[ =]?(\d+)", command)
    return int(match.group(1)) if match else None


def both_ways_at_once(command: str) -> bool:
    """Whether both directions were asked for at the same time."""
    return bool(re.search(r"(?:^|\s)(?:--bidir|--full-duplex|-d|--dualtest)(?=\s|$)", command))


def port(command: str) -> int | None:
    """The port named by `-p` or `--port`."""
    match = re.search(r"(?:^|\s)(?:-p|--port)[ =]?(\d+)", command)
    return int(match.group(1)) if match else None


def is_server(role: str, command: str) -> bool:
    """Whether the output comes from the listening side, by the recorded role, else by `-s`."""
    if role in ("server", "receiver"):
        return True
    return role not in ("client", "sender") and bool(re.search(r"(?:^|\s)(?:-s|--server)\b", command))
