"""How fast 100 MB of `iperf3 --json-stream` are read, and in how much memory: `python tests/benchmarks/parse_stream.py [MB]`.

Prints megabytes, seconds, and the peak of the process above what it took before, in megabytes.
"""

from __future__ import annotations

import resource
import sys
import time

from labctl.model.reading import Capture
from tests.transfers.test_any_output import STREAM_ROW, stream
from workers.transfers.registry import PARSERS


def main(megabytes: float) -> None:
    """Make a stream, read it, print what that took."""
    output = stream(int(megabytes * 1e6 / len(STREAM_ROW % (10_000, 10_001, 10_000, 10_001))))
    before, began = _peak(), time.perf_counter()
    reading = PARSERS["iperf3"](Capture(stdout=output))
    took = time.perf_counter() - began
    assert reading.ok, reading.error_kind
    print(
        f"{len(output) / 1e6:.1f} MB in {took:.1f} s: {len(output) / 1e6 / took:.1f} MB/s, {_peak() - before:.0f} MB above"
    )


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 100.0)
