"""Releases of tools, as `TOOL --version` tells them, and what came with which."""

from __future__ import annotations

import re

from labctl.model.order import TransferOrder

Release = tuple[int, ...]
"""Such as (3, 12); empty when it isn't known, which is taken for a new one."""

_NUMBERS = re.compile(r"\b(\d+(?:\.\d+)+)")


def release(version: str) -> Release:
    """The release in a line such as `iperf 3.12 (cJSON 1.7.15)` or `iperf version 2.1.8 (12 August 2022) pthreads`."""
    match = _NUMBERS.search(version)
    return tuple(int(part[:6]) for part in match[1].split(".")[:4]) if match else ()


def before(found: Release, first: Release) -> bool:
    """Whether a release is known to be older than the first one with something."""
    return bool(found) and found < first


IPERF3_SINCE: tuple[tuple[Release, str, str], ...] = (
    ((3, 0, 11), "one-off servers (-1)", "always"),
    ((3, 7), "both directions at once (--bidir)", "both"),
    ((3, 11), "zero-copy in reverse", "zerocopy-reverse"),
)
"""From RELNOTES.md of iperf3: the first release with something, what it is, and what needs it."""

IPERF_SINCE: tuple[tuple[Release, str, str], ...] = (
    ((2, 1), "reverse transfers (-R)", "reverse"),
    ((2, 1), "both directions at once (--full-duplex)", "both"),
)
"""From the release notes of iperf 2."""


def lacks(tool: str, order: TransferOrder, version: str) -> str:
    """What this release of the tool lacks for the order, in a sentence; empty when nothing, or when it isn't known."""
    found = release(version)
    needs = {"always", order.direction}
    if order.zerocopy:
        needs.add(f"zerocopy-{order.direction}")
    for first, what, needed in {"iperf3": IPERF3_SINCE, "iperf": IPERF_SINCE}.get(tool, ()):
        if needed in needs and before(found, first):
            return f"{tool} has {what} from release {'.'.join(map(str, first))} on, and this is {'.'.join(map(str, found))}"
    return ""
