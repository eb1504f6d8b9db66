"""Scripts of PowerShell as syntax trees, and what of them a test asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import tree_sitter_powershell
from tree_sitter import Language, Node, Parser

AUTOMATIC = frozenset(
    {"_", "true", "false", "null", "input", "pid", "psversiontable", "lastexitcode", "matches", "psitem"}
)
"""Variables that PowerShell gives values to."""

_PARSER = Parser(Language(tree_sitter_powershell.language()))


@dataclass(frozen=True)
class Source:
    """One file of PowerShell."""

    text: str

    @classmethod
    def of(cls, path: Path) -> Source:
        return cls(path.read_text(encoding="utf-8"))

    @cached_property
    def root(self) -> Node:
        return _PARSER.parse(self.text.encode()).root_node

    def mistakes(self) -> list[str]:
        """Places that the grammar doesn't know."""
        return [f"line {node.start_point.row + 1}: {_text(node)[:60]}" for node in self.walk() if _is_wrong(node)]

    def walk(self, start: Node | None = None) -> Iterator[Node]:
        """All nodes, depth first."""
        nodes = [start or self.root]
        while nodes:
            node = nodes.pop()
            yield node
            nodes += reversed(node.children)

    def members_of(self, variable: str) -> set[str]:
        """Names of the members of a variable that are used."""
        return {
            _text(node.children[-1]).strip("'")
            for node in self.walk()
            if node.type == "member_access" and _text(node.children[0]).lower() == variable.lower()
        }

    def unassigned(self) -> set[str]:
        """Variables that are used and nowhere given a value, which strict mode makes an error. Scopes aren't told apart."""
        given: set[str] = set()
        used: set[str] = set()
        for node in self.walk():
            if node.type == "variable":
                name = re.sub(r"^[$@]\{?|\}$", "", _text(node)).lower()
                if ":" not in name:
                    (given if _is_given(node) else used).add(name)
        return used - given - AUTOMATIC

    def commands(self) -> Iterator[tuple[str, Node]]:
        """Commands that are named, with their nodes."""
        for node in self.walk():
            if node.type == "command_name":
                assert node.parent is not None
                yield _text(node), node.parent

    def arguments(self, command: Node) -> list[tuple[str, Node | None]]:
        """Parameters of a command with the node that follows each."""
        elements = next((node for node in command.children if node.type == "command_elements"), None)
        parts = [node for node in elements.children if node.type != "command_argument_sep"] if elements else []
        return [
            (_text(part), parts[at + 1] if at + 1 < len(parts) else None)
            for at, part in enumerate(parts)
            if part.type == "command_parameter"
        ]

    def answers(self) -> list[Node]:
        """The objects that the script puts out: its last statement, and what it returns outside of functions."""
        statements = next(node for node in self.root.children if node.type == "statement_list")
        returned = [
            node
            for node in self.walk()
            if node.type == "flow_control_statement" and _text(node).startswith("return") and not _is_inside(node)
        ]
        return [single(node.children[-1]) for node in returned] + [single(statements.children[-1])]


@dataclass(frozen=True)
class Header:
    """What the comment at the top of a script promises."""

    purpose: str
    given: frozenset[str]
    told: frozenset[str]
    errors: frozenset[str]

    @classmethod
    def of(cls, text: str) -> Header:
        """Read it. Raises `ValueError` for a header that lacks a part."""
        lines = [line[1:].strip() for line in _comment(text)]
        sections: dict[str, list[str]] = {"": []}
        current = ""
        for line in lines:
            found = re.match(r"(In|Out|Errors|Progress):(.*)", line)
            if found:
                current, line = found[1], found[2]
            sections.setdefault(current, []).append(line)
        if missing := {"In", "Out"} - sections.keys():
            raise ValueError(f"the header says nothing of {', '.join(sorted(missing))}")
        return cls(
            purpose=sections[""][0],
            given=_words(sections["In"]),
            told=_words(sections["Out"]),
            errors=frozenset(re.findall(r"[a-z][a-z-]*[a-z]", " ".join(sections.get("Errors", [])))),
        )


def single(node: Node) -> Node:
    """The node below a chain of nodes that have one child each."""
    while node.child_count == 1 and node.type != "hash_literal_expression":
        node = node.children[0]
    return node


def keys_of(literal: Node) -> list[str]:
    """The keys of a hash literal."""
    body = next((node for node in literal.children if node.type == "hash_literal_body"), None)
    entries = [node for node in body.children if node.type == "hash_entry"] if body else []
    return [_text(entry.children[0]).strip("'\" ") for entry in entries]


def is_text(node: Node | None, *, verbatim: bool) -> bool:
    """Whether a node is a string in single quotes (`verbatim`), or one in which values are put."""
    if node is None:
        return False
    inner = single(node)
    kind = "verbatim_string_characters" if verbatim else "expandable_string_literal"
    return inner.type == kind or any(child.type == kind for child in inner.children)


def text_of(node: Node) -> str:
    """The source of a node."""
    return _text(node)


def _comment(text: str) -> list[str]:
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line)
    return lines


def _words(lines: list[str]) -> frozenset[str]:
    return frozenset(re.findall(r"[A-Za-z][A-Za-z0-9_]*", " ".join(lines)))


def _is_given(variable: Node) -> bool:
    """Whether a variable gets its value here: by an assignment, a loop, or as a parameter."""
    node = variable
    while node.parent is not None:
        if node.parent.type in ("left_assignment_expression", "script_parameter"):
            return True
        if node.parent.type == "foreach_statement":
            return node == next(child for child in node.parent.children if child.type == "variable")
        if node.parent.type in ("member_access", "element_access", "statement_block", "script_block", "pipeline"):
            return False
        node = node.parent
    return False


def _is_inside(node: Node) -> bool:
    above = node.parent
    while above is not None:
        if above.type in ("function_statement", "script_block_expression"):
            return True
        above = above.parent
    return False


def _is_wrong(node: Node) -> bool:
    return node.type == "ERROR" or node.is_missing


def _text(node: Node) -> str:
    return (node.text or b"").decode()
