"""What a recorded command line says about a transfer, where the output doesn't."""

from __future__ import annotations

import re


def seconds(command: str) -> float | None:
    """The seconds asked for by `-t` or `--time`; None when the command has none, or asks for bytes (`-n`)."""
    if re.search(r"(?:^|\s)(?:-n|--num|--bytes|-k|--blockcount)\b", command):
        return None
    match = re.search(r"(?:^|\s)(?:-t|--time)[ =]?(\d+(?:\.\d+)?)", command)
    return float(match.group(1)) if match else None


def port(command: str) -> int | None:
    """The port named by `-p` or `--port`."""
    match = re.search(r"(?:^|\s)(?:-p|--port)[ =]?(\d+)", command)
    return int(match.group(1)) if match else None


def is_server(role: str, command: str) -> bool:
    """Whether the output comes from the listening side, by the recorded role, else by `-s`."""
    if role in ("server", "receiver"):
        return True
    return role not in ("client", "sender") and bool(re.search(r"(?:^|\s)(?:-s|--server)\b", command))
