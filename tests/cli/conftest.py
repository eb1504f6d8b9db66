from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A terminal with a state directory of the test's own."""
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()
