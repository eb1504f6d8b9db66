"""All transfer tools by the name that campaigns use."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from labctl.errors import SpecError
from labctl.model.reading import Capture, Reading
from labctl.spec.values import nearest
from workers.transfers.base import TransferTool
from workers.transfers.copied import parse_robocopy, parse_scp, parse_smbclient
from workers.transfers.filecopy import FileCopy
from workers.transfers.iperf import Iperf
from workers.transfers.iperf3 import Iperf3
from workers.transfers.ntttcp import parse_linux, parse_windows
from workers.transfers.ntttcp_commands import Ntttcp

TOOLS: dict[str, TransferTool] = {tool.name: tool for tool in (Iperf3(), Iperf(), Ntttcp(), FileCopy())}
"""Every tool that transfers can be made with."""


Parser = Callable[[Capture], Reading]

PARSERS: dict[str, Parser] = {
    "iperf3": TOOLS["iperf3"].parse,
    "iperf2": TOOLS["iperf"].parse,
    "ntttcp-linux": parse_linux,
    "ntttcp-windows": parse_windows,
    "robocopy": parse_robocopy,
    "smbclient": parse_smbclient,
    "scp": parse_scp,
    "filecopy": TOOLS["filecopy"].parse,
}
"""The parser of every output that can be read, by the name that readings have (`Reading.tool`)."""


def tool(name: str) -> TransferTool:
    """The tool of this name, as campaigns name it. Raises `SpecError` for an unknown one, with the nearest name."""
    if name not in TOOLS:
        raise _unknown(name, TOOLS)
    return TOOLS[name]


def parser(name: str) -> Parser:
    """The parser of this name, of a reading or of a tool. Raises `SpecError` for an unknown one, with the nearest name."""
    if name in PARSERS:
        return PARSERS[name]
    if name not in TOOLS:
        raise _unknown(name, [*PARSERS, *TOOLS])
    return TOOLS[name].parse


def _unknown(name: str, known: Iterable[str]) -> SpecError:
    names = sorted(set(known))
    meant = nearest(name, names)
    hint = f" Did you mean {meant!r}?" if meant else ""
    return SpecError(f"There is no tool {name!r}.{hint}", todo=f"Use one of: {', '.join(names)}.")
