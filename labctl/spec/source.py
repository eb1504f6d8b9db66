"""YAML 1.2 text to a tree in which every key and value knows its place.

The tree is built from ruamel.yaml's parser events, not from its constructors, because both files need more than values:
the place of every key for messages, the text of every scalar as written (`1.10` as a driver version is not 1.1), both
places of a duplicate key, and limits that hold before anything is expanded. Scalars are resolved by the core schema of
YAML 1.2 (section 10.3.2 of the specification): `on`, `no`, `22:00` and MAC addresses are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isinf
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from labctl.errors import Problem, SpecError

MAX_BYTES = 2**20
"""A lab or campaign file is refused above this size."""
MAX_DEPTH = 32
"""Levels of nesting."""
MAX_NODES = 100_000
"""Keys and values after aliases have been followed, so that nested aliases can't multiply without end."""

Key = str | int
KeyPath = tuple[Key, ...]


class WrittenInt(int):
    """An integer that remembers how it was written."""

    text: str


class WrittenFloat(float):
    """A float that remembers how it was written."""

    text: str


Plain = bool | int | float | str | list["Plain"] | dict[str, "Plain"] | None


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place in a file; line and column count from 1."""

    line: int
    column: int


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """A single value, with its text as written (without quotes)."""

    place: Place
    text: str
    value: bool | int | float | str | None
    size: int = 1


@dataclass(frozen=True, kw_only=True)
class ListNode:
    """A list of nodes."""

    place: Place
    items: tuple[Node, ...]
    size: int


@dataclass(frozen=True, kw_only=True)
class MappingNode:
    """Keys, their places and their nodes, in the order of the file."""

    place: Place
    entries: dict[str, tuple[Place, Node]]
    size: int


Node = Scalar | ListNode | MappingNode


@dataclass(frozen=True, kw_only=True)
class Document:
    """A file of well-formed YAML with a mapping at its top. `base` is the folder that relative paths start from."""

    file: str
    text: str
    root: MappingNode
    base: Path

    def plain(self) -> dict[str, Plain]:
        """The values without their places. Numbers are `WrittenInt` and `WrittenFloat`."""
        value = _plain(self.root)
        assert isinstance(value, dict)
        return value

    def node(self, path: Sequence[Key]) -> Node | None:
        """The node at a path of keys and indices; None when there is none."""
        node: Node = self.root
        for key in path:
            if isinstance(node, MappingNode) and str(key) in node.entries:
                node = node.entries[str(key)][1]
            elif isinstance(node, ListNode) and isinstance(key, int) and 0 <= key < len(node.items):
                node = node.items[key]
            else:
                return None
        return node

    def place(self, path: Sequence[Key]) -> Place:
        """Where the value at the path is, or the nearest thing around it that is there."""
        for length in range(len(path), -1, -1):
            node = self.node(path[:length])
            if node is not None:
                return node.place if length == len(path) else self.key_place(path[:length])
        return self.root.place

    def key_place(self, path: Sequence[Key]) -> Place:
        """Where the last key of the path is written; for list items the place of the item."""
        parent = self.node(path[:-1]) if path else None
        if isinstance(parent, MappingNode) and str(path[-1]) in parent.entries:
            return parent.entries[str(path[-1])][0]
        node = self.node(path)
        return node.place if node is not None else self.root.place

    def problem(
        self,
        path: Sequence[Key],
        message: str,
        *,
        at_key: bool = False,
        show_value: bool = True,
        allowed: str = "",
        nearest: str = "",
    ) -> Problem:
        """A mistake at the value (or the key) of the path."""
        while path and isinstance(path[-1], int) and isinstance(self.node(path[:-1]), Scalar):
            path = path[:-1]  # a single value that stands for a list of one
        place = self.key_place(path) if at_key else self.place(path)
        node = self.node(path)
        value = written(node) if node is not None and show_value and not at_key else ""
        return Problem(
            file=self.file,
            line=place.line,
            column=place.column,
            key=spell(path),
            value=value,
            message=message,
            allowed=allowed,
            nearest=nearest,
        )


def read_text(path: Path, *, what: str) -> str:
    """The text of a lab or campaign file. UTF-8 (or UTF-16 with its mark), any line ends.

    Raises `SpecError` when the file is missing, unreadable, too large, or not text.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise SpecError(
                f"The {what} file {path} is refused: it has {size} bytes, the limit is {MAX_BYTES}",
                todo="describe many levels as factors, not one by one",
            )
        content = path.read_bytes()
    except OSError as error:
        raise SpecError(
            f"The {what} file {path} can't be read",
            why=error.strerror or str(error),
            todo="check the path and its rights",
        ) from error
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line_start = before.rfind(b"\n") + 1
        problem = Problem(
            file=str(path),
            line=before.count(b"\n") + 1,
            column=len(before[line_start:].decode(encoding, errors="replace")) + 1,
            key="",
            value=f"0x{content[error.start]:02x}",
            message="this byte is not UTF-8 text; save the file as UTF-8",
        )
        raise refusal(str(path), what, [problem]) from error


def parse_document(text: str, *, file: str, what: str, base: Path) -> Document:
    """The tree of one YAML document. Raises `SpecError` with every duplicate key, or with the first syntax error."""
    if len(text) > MAX_BYTES:
        raise SpecError(f"The {what} file {file} is refused: it is larger than {MAX_BYTES} bytes")
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    builder = _Builder(file, text)
    try:
        root = builder.document()
    except _Stop as stop:
        raise refusal(file, what, [*builder.problems, stop.problem]) from stop
    except ReaderError as error:
        raise refusal(file, what, [_unreadable_character(file, text)]) from error
    except MarkedYAMLError as error:
        syntax = _syntax(file, text, error)
        known = {(problem.line, problem.column) for problem in builder.problems}
        extra = [] if (syntax.line, syntax.column) in known else [syntax]
        raise refusal(file, what, [*builder.problems, *extra]) from error
    except (YAMLError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise refusal(file, what, [builder.problem(Place(line=1, column=1), first)]) from error
    if builder.problems:
        raise refusal(file, what, builder.problems)
    return Document(file=file, text=text, root=root, base=base)


def refusal(file: str, what: str, problems: Sequence[Problem]) -> SpecError:
    """The error that carries all problems of a file, in the order of the file."""
    ordered = tuple(sorted(dict.fromkeys(problems), key=lambda problem: (problem.line, problem.column)))
    count = "1 mistake" if len(ordered) == 1 else f"{len(ordered)} mistakes"
    return SpecError(f"The {what} file {file} has {count}; nothing was started", problems=ordered)


def spell(path: Sequence[Key]) -> str:
    """A path as people write it: `factors.nic_model[2]`."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def written(node: Node) -> str:
    """A value as the user wrote it, shortened."""
    if isinstance(node, MappingNode):
        text = "{" + ", ".join(f"{key}: ..." for key in node.entries) + "}"
    elif isinstance(node, ListNode):
        text = "[" + ", ".join(written(item) for item in node.items[:10]) + "]"
    else:
        text = node.text
    return text if len(text) <= 80 else text[:77] + "..."


class _Stop(Exception):
    """A mistake after which nothing further can be understood."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class _Builder:
    """Events to nodes, with limits."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self.problems: list[Problem] = []
        self.anchors: dict[str, Node] = {}
        self.open_anchors: set[str] = set()
        self.nodes = 0

    def document(self) -> MappingNode:
        events: Iterator[Event] = iter(YAML(typ="safe", pure=True).parse(self.text))
        root: Node | None = None
        for event in events:
            if isinstance(event, DocumentStartEvent):
                if root is not None:
                    raise _Stop(self.problem(_place(event), "a second document starts here; only one is read"))
                if event.version is not None and tuple(event.version) != (1, 2):
                    raise _Stop(self.problem(Place(line=1, column=1), "this file asks for an older YAML; use 1.2"))
            elif isinstance(event, (ScalarEvent, SequenceStartEvent, MappingStartEvent, AliasEvent)):
                root = self.node(event, events, depth=0, path=())
        if root is None or (isinstance(root, Scalar) and root.value is None):
            raise _Stop(self.problem(Place(line=1, column=1), "the file is empty"))
        if not isinstance(root, MappingNode):
            raise _Stop(self.problem(root.place, "the file must be a mapping of keys to values", value=written(root)))
        return root

    def node(self, event: Event, events: Iterator[Event], *, depth: int, path: KeyPath) -> Node:
        if depth > MAX_DEPTH:
            raise _Stop(self.problem(_place(event), f"nested deeper than {MAX_DEPTH} levels", path=path))
        if isinstance(event, AliasEvent):
            return self.alias(event, path)
        self.refuse_tag(event, path)
        anchor = getattr(event, "anchor", None)
        if anchor:
            self.open_anchors.add(anchor)
        node = self.content(event, events, depth=depth, path=path)
        self.count(node.size if isinstance(node, Scalar) else 1, node.place, path)
        if anchor:
            self.open_anchors.discard(anchor)
            self.anchors[anchor] = node
        return node

    def content(self, event: Event, events: Iterator[Event], *, depth: int, path: KeyPath) -> Node:
        if isinstance(event, ScalarEvent):
            return self.scalar(event, path)
        if isinstance(event, SequenceStartEvent):
            return self.sequence(event, events, depth=depth, path=path)
        return self.mapping(event, events, depth=depth, path=path)

    def scalar(self, event: ScalarEvent, path: KeyPath) -> Scalar:
        place = _place(event)
        text: str = event.value
        if event.style is not None:
            return Scalar(place=place, text=text, value=text)
        odd = _odd_space(text)
        if odd is not None:
            place = Place(line=place.line, column=place.column + odd) if "\n" not in text else place
            message = f"a no-break or invisible space ({_name(text[odd])}) is part of this value; use a plain space"
            self.problems.append(self.problem(place, message, path=path, value=text.replace(text[odd], "␣")))
        return Scalar(place=place, text=text, value=resolve_scalar(text))

    def sequence(self, event: Event, events: Iterator[Event], *, depth: int, path: KeyPath) -> ListNode:
        items: list[Node] = []
        for inner in events:
            if isinstance(inner, SequenceEndEvent):
                break
            items.append(self.node(inner, events, depth=depth + 1, path=(*path, len(items))))
        return ListNode(place=_place(event), items=tuple(items), size=1 + sum(item.size for item in items))

    def mapping(self, event: Event, events: Iterator[Event], *, depth: int, path: KeyPath) -> MappingNode:
        entries: dict[str, tuple[Place, Node]] = {}
        for inner in events:
            if isinstance(inner, MappingEndEvent):
                break
            key_node = self.node(inner, events, depth=depth + 1, path=path)
            if not isinstance(key_node, Scalar):
                raise _Stop(
                    self.problem(key_node.place, "a key must be a single word, not a list or mapping", path=path)
                )
            place = _place(inner)
            key = key_node.text
            value = self.node(next(events), events, depth=depth + 1, path=(*path, key))
            if isinstance(value, Scalar) and value.value is None and not value.text:
                value = replace(value, place=place)  # nothing is written there, so the key is the place
            if key == "<<":
                message = "merge keys (<<) are not part of YAML 1.2; write the keys out, or alias each value"
                self.problems.append(self.problem(place, message, path=path))
            elif key in entries:
                first = entries[key][0]
                message = f"the key is here twice; first at line {first.line}, column {first.column}"
                self.problems.append(self.problem(place, message, path=(*path, key)))
            else:
                entries[key] = (place, value)
        size = 1 + sum(value.size for _, value in entries.values())
        return MappingNode(place=_place(event), entries=entries, size=size)

    def alias(self, event: AliasEvent, path: KeyPath) -> Node:
        name = event.anchor
        if name in self.open_anchors:
            raise _Stop(self.problem(_place(event), f"the alias *{name} refers to what it is a part of", path=path))
        if name not in self.anchors:
            raise _Stop(self.problem(_place(event), f"the alias *{name} has no anchor &{name} before it", path=path))
        node = self.anchors[name]
        self.count(node.size, _place(event), path)
        return node

    def refuse_tag(self, event: Event, path: KeyPath) -> None:
        tag = getattr(event, "tag", None)
        if tag:
            raise _Stop(self.problem(_place(event), f"tags ({tag}) are not used in this file", path=path))

    def count(self, nodes: int, place: Place, path: KeyPath) -> None:
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            message = f"the file has more than {MAX_NODES} keys and values once its aliases are followed"
            raise _Stop(self.problem(place, message, path=path))

    def problem(self, place: Place, message: str, *, path: KeyPath = (), value: str = "") -> Problem:
        return Problem(
            file=self.file, line=place.line, column=place.column, key=spell(path), value=value, message=message
        )


_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NAN = (".nan", ".NaN", ".NAN")
_NULL = ("", "~", "null", "Null", "NULL")
_TRUE = ("true", "True", "TRUE")
_FALSE = ("false", "False", "FALSE")
_MAX_DIGITS = 400


def resolve_scalar(text: str) -> bool | int | float | str | None:
    """The value of a plain scalar by the core schema of YAML 1.2.

    One departure: a number too large for a float (`123e4567`) stays text, because it is an identifier, not infinity.
    """
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if len(text) > _MAX_DIGITS:
        return text
    if _INT.fullmatch(text):
        return _int(text, 10)
    if _OCTAL.fullmatch(text):
        return _int(text, 8)
    if _HEX.fullmatch(text):
        return _int(text, 16)
    if _INFINITE.fullmatch(text) or text in _NAN:
        return _float(text.replace(".", "", 1), text)
    if _FLOAT.fullmatch(text):
        number = _float(text, text)
        return text if isinf(number) else number
    return text


def _int(text: str, base: int) -> WrittenInt:
    number = WrittenInt(text, base) if base == 10 else WrittenInt(text[2:], base)
    number.text = text
    return number


def _float(number_text: str, text: str) -> WrittenFloat:
    number = WrittenFloat(number_text)
    number.text = text
    return number


def _plain(node: Node) -> Plain:
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, ListNode):
        return [_plain(item) for item in node.items]
    return {key: _plain(value) for key, (_, value) in node.entries.items()}


def _place(event: Event) -> Place:
    return Place(line=event.start_mark.line + 1, column=event.start_mark.column + 1)


_ODD_SPACES = frozenset("\u00a0\u1680\u2007\u202f\u205f\u3000\u200b\u200c\u200d\u2060\ufeff") | {
    chr(code) for code in range(0x2000, 0x200B)
}


def _odd_space(text: str) -> int | None:
    return next((index for index, character in enumerate(text) if character in _ODD_SPACES), None)


def _name(character: str) -> str:
    return f"U+{ord(character):04X}"


def _syntax(file: str, text: str, error: MarkedYAMLError) -> Problem:
    """What the parser complains of, in words that name the usual causes."""
    unclosed = error.problem == "found unexpected end of stream"
    mark = error.context_mark if unclosed and error.context_mark else error.problem_mark
    line, column = (mark.line, mark.column) if mark is not None else (0, 0)
    lines = text.split("\n")
    message = error.problem or "this is not YAML"
    if error.context:
        message = f"{message} ({error.context})"
    for number in (line, line - 1):
        here = lines[number] if 0 <= number < len(lines) else ""
        odd = _odd_space(here)
        if odd is not None:
            line, column = number, odd
            message = f"a no-break or invisible space ({_name(here[odd])}); use a plain space"
            break
    else:
        here = lines[line] if line < len(lines) else ""
        if here[column : column + 1] == "\t":
            message = "a tab; YAML takes spaces only, for indentation and between a key and its value"
        elif error.problem == "mapping values are not allowed here":
            message = "a colon where no key can be: check the indentation, or put the value in quotes"
    return Problem(file=file, line=line + 1, column=column + 1, key="", value="", message=message)


def _unreadable_character(file: str, text: str) -> Problem:
    index = next((i for i, c in enumerate(text) if not c.isprintable() and c not in "\n\t\x85"), 0)
    before = text[:index]
    return Problem(
        file=file,
        line=before.count("\n") + 1,
        column=index - (before.rfind("\n") + 1) + 1,
        key="",
        value="",
        message=f"a control character ({_name(text[index])}) that YAML doesn't allow",
    )
