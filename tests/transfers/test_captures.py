"""Every capture case of the tools that are supported, read field by field."""

from __future__ import annotations

import pytest

from labctl.model.reading import Capture, Reading
from tests.transfers.captured import Case, cases, differences
from workers.transfers.registry import PARSERS

CASES = cases(*PARSERS)


def read(case: Case, capture: Capture) -> Reading:
    return PARSERS[case.expected["tool"]](capture)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reading_is_the_expected_one(case: Case) -> None:
    capture = case.capture
    inputs = (capture.stdout, capture.stderr, capture.server or b"")
    assert differences(read(case, capture), case.expected, inputs) == []
