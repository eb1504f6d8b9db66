"""Nights in which everything goes wrong that a seed can think of, and what was lost in them: nothing, or it says what.

    python -m tests.benchmarks.schedules [--count 300] [--seed N ...] [--first 0] [--at-once 6] [--keep DIRECTORY]

With one `--seed` also the whole timeline of its night. Exit code 1 when a promise was broken.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from tests.schedules.draw import draw
from tests.schedules.many import nights
from tests.schedules.verdict import Verdict


def main(arguments: list[str]) -> int:
    """Carry the nights out, print what is to be said, and return the exit code."""
    asked = _asked(arguments)
    seeds = asked.seed or range(asked.first, asked.first + asked.count)
    whole = len(seeds) == 1
    began, met, failed, seconds = time.monotonic(), Counter[str](), list[Verdict](), list[float]()
    for verdict in nights(seeds, at_once=asked.at_once, keep=asked.keep):
        met.update(verdict.met)
        seconds.append(verdict.seconds)
        failed += [verdict] if verdict.broken else []
        if asked.verdicts is not None:
            with asked.verdicts.open("a") as file:
                file.write(verdict.to_text() + "\n")
        if verdict.broken or whole:
            _print(verdict, whole=whole)
        if not verdict.broken and (whole or asked.verbose):
            print(f"seed {verdict.seed}: all promises kept, {verdict.seconds:.1f} s", flush=True)
    took = time.monotonic() - began
    print(f"schedules: {met['nights']} nights in {took:.0f} s ({sum(seconds) / len(seconds):.1f} s each, the longest "
          f"{max(seconds):.1f} s); promises broken in {len(failed)} (goal: 0)")  # fmt: skip
    if failed:
        print(f"schedules: seeds {' '.join(str(verdict.seed) for verdict in failed)}; repeat one with "
              f"`python -m tests.benchmarks.schedules --seed N`")  # fmt: skip
    for word, count in sorted(met.items()):
        print(f"schedules:   {count:6} {word}")
    return int(bool(failed))


def _print(verdict: Verdict, *, whole: bool) -> None:
    print(draw(verdict.seed))
    for how in verdict.broken:
        print(f"seed {verdict.seed}: BROKEN: {how}", flush=True)
    if whole:
        print(*verdict.timeline, sep="\n", flush=True)


def _asked(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.schedules")
    parser.add_argument("--count", type=int, default=300, help="how many nights")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, nargs="+", help="only these")
    parser.add_argument("--at-once", type=int, default=6, help="nights side by side")
    parser.add_argument("--verdicts", type=Path, help="a file to which the verdicts are appended, one a line")
    parser.add_argument("--keep", type=Path, help="where what is left of nights that broke a promise is kept")
    parser.add_argument("--verbose", action="store_true", help="name every night")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
