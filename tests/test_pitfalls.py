"""Every known pitfall has a test that names it, in its own name or its docstring: `test_c1_…`, or `C1, M4: …`.

C: Celery and Redis. L: libvirt and QEMU. V: vSphere. H: Hyper-V and WinRM. S: campaigns, the store, time and YAML. M: what was
measured of C, L and S.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

PITFALLS = [
    f"{letter}{number}"
    for letter, last in (("C", 14), ("L", 15), ("V", 14), ("H", 13), ("M", 22), ("S", 9))
    for number in range(1, last + 1)
]
WORD = re.compile(r"(?<![A-Za-z0-9])[CHLMSV]\d+(?![A-Za-z0-9])")


@pytest.mark.parametrize("pitfall", PITFALLS)
def test_a_known_pitfall_has_a_test_that_names_it(pitfall: str) -> None:
    assert pitfall in named()


@cache
def named() -> frozenset[str]:
    """The pitfalls that tests name."""
    return frozenset(word for path in Path(__file__).parent.rglob("test_*.py") for word in _named_in(path))


def _named_in(path: Path) -> set[str]:
    tests = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    return {
        word
        for test in tests
        for text in (test.name.upper(), ast.get_docstring(test) or "")
        for word in WORD.findall(text)
    }
