"""All transfer tools by the name that campaigns use."""

from __future__ import annotations

from labctl.errors import SpecError
from workers.transfers.base import TransferTool
from workers.transfers.iperf import Iperf
from workers.transfers.iperf3 import Iperf3

TOOLS: dict[str, TransferTool] = {tool.name: tool for tool in (Iperf3(), Iperf())}
"""Every tool that transfers can be made with."""


def tool(name: str) -> TransferTool:
    """The tool of this name. Raises `SpecError` for an unknown one."""
    if name not in TOOLS:
        raise SpecError(f"There is no transfer tool {name!r}.", todo=f"Use one of: {', '.join(sorted(TOOLS))}.")
    return TOOLS[name]
