"""A dozen nights in which everything goes wrong, and nothing is lost, doubled or left behind.

Rows of the pitfalls that they hold: C1 and M4 (a message that comes again), C2 and C13 (Redis restarted, flushed, gone), C3
(workers killed again and again), C5 (what killed processes leave), C12 (a worker that was stopped for longer than its
lease), S2 (the store locked by another process), S5 (clocks stepped), S7 (hosts lost), S8 (everything killed at once).
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.schedules.draw import draw
from tests.schedules.seeds import SEEDS
from tests.schedules.verdict import Verdict

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Verdict]:
    """The verdicts by seed. The nights are forks of one process, which must have no threads: so it isn't this one."""
    file = tmp_path_factory.mktemp("nights") / "verdicts"
    subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.schedules", "--verdicts", str(file), "--seed", *map(str, SEEDS)],
        cwd=Path(__file__).parents[2], check=False, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    found = [Verdict.from_text(line) for line in file.read_text().splitlines()]
    return {verdict.seed: verdict for verdict in found}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_night_of_faults_keeps_all_promises(verdicts: dict[int, Verdict], seed: int) -> None:
    verdict = verdicts[seed]
    assert not verdict.broken, "\n".join([str(draw(seed)), *verdict.broken, *verdict.timeline])


def test_the_nights_were_as_bad_as_they_should_be(verdicts: dict[int, Verdict]) -> None:
    met = Counter[str]()
    for verdict in verdicts.values():
        met.update(verdict.met)
    assert met["runs: ok"] > 30
    assert met["attempts: lost worker-lost"] > 0
    assert met["services started"] > len(SEEDS)
    troubles = [word for word in met if word.startswith("trouble: ")]
    assert len(troubles) > 10, met
