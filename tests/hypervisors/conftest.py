"""Fixtures of the drivers' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from labctl.model.lab import Lab
from tests.hypervisors.guests import Guests, guests_of


@pytest.fixture
def guests(embedded_lab: Lab) -> Iterator[Guests]:
    """VMs on the hosts `a` and `b` of the embedded lab."""
    with guests_of(embedded_lab) as made:
        yield made
