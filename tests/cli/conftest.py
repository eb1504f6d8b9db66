from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from labctl.cli import main
from tests.cli.terminal import Terminal


@pytest.fixture(scope="package", autouse=True)
def _commands_are_looked_for_once() -> Iterator[None]:
    """Not in each of the hundreds of commands that these tests type in one process: it takes longer than most of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "_own_commands", cache(main._own_commands))
        yield


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A terminal with a state directory of the test's own."""
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()
