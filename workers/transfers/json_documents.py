"""JSON documents in captured text, as transfer tools really leave them.

Handles text before, between and behind documents, several documents in a row, duplicate keys (all are kept), documents
that were cut (their complete parts are kept), and numbers that are no JSON: `-nan`, `inf`, `5.924e 06`, `1,5`.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

MAX_DEPTH = 64
"""Deeper nesting than any tool prints is taken for garbage."""


class Members:
    """A JSON object with all its members in order, duplicates included. `complete` is false when it was cut."""

    __slots__ = ("complete", "pairs")

    def __init__(self, pairs: list[tuple[str, Any]], *, complete: bool = True) -> None:
        self.pairs = pairs
        self.complete = complete

    def all(self, key: str) -> list[Any]:
        """Every value of the key, in order."""
        return [value for name, value in self.pairs if name == key]

    def get(self, key: str) -> Any:  # noqa: ANN401 - any JSON value
        """The first value of the key, or None."""
        return next((value for name, value in self.pairs if name == key), None)

    def has(self, key: str) -> bool:
        """Whether the key is there, whatever its value."""
        return any(name == key for name, _ in self.pairs)

    def objects(self, key: str) -> list[Members]:
        """Every complete object under the key: the values themselves, or the elements of arrays."""
        found: list[Members] = []
        for value in self.all(key):
            candidates = value if isinstance(value, list) else [value]
            found += [one for one in candidates if isinstance(one, Members) and one.complete]
        return found

    def object(self, key: str) -> Members | None:
        """The first object under the key, even when it was cut; None when there is none."""
        value = self.get(key)
        return value if isinstance(value, Members) else None

    def number(self, key: str) -> float | None:
        """The finite number under the key, or None."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        try:
            plain = float(value)
        except OverflowError:
            return None
        return plain if math.isfinite(plain) else None

    def text(self, key: str) -> str | None:
        """The string under the key, or None."""
        value = self.get(key)
        return value if isinstance(value, str) else None

    def flag(self, key: str) -> bool | None:
        """The truth value under the key (`true`, or a number other than 0), or None."""
        value = self.get(key)
        return bool(value) if isinstance(value, int) else None


class Compact(Members):
    """The same in a fifth of the memory, for members of which there are hundreds of thousands. Nothing can be added."""

    __slots__ = ("_keys", "_values")

    def __init__(self, members: Members) -> None:
        keys = tuple(map(sys.intern, (key for key, _ in members.pairs)))
        self._keys = _SHARED_KEYS.setdefault(keys, keys) if len(_SHARED_KEYS) < _MOST_SHARED else keys
        self._values = tuple(value for _, value in members.pairs)
        self.complete = members.complete

    @property
    def pairs(self) -> list[tuple[str, Any]]:  # type: ignore[override]
        """Keys and values, put together anew."""
        return list(zip(self._keys, self._values, strict=True))


_SHARED_KEYS: dict[tuple[str, ...], tuple[str, ...]] = {}
_MOST_SHARED = 100


@dataclass(frozen=True, kw_only=True)
class Document:
    """One document and what had to be repaired: `nan_replaced`, `json_repaired`."""

    root: Members
    repairs: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Found:
    """All documents of a text in order; whether there was other text, and whether the last one was cut at its start."""

    documents: tuple[Document, ...]
    other_text_before: bool
    other_text_after: bool
    cut_at_start: bool = False


def find_documents(
    text: str, wanted: Callable[[Members], bool], *, kept: Callable[[Members], Members] = lambda root: root
) -> Found:
    """The documents that `wanted` recognises by their members. Linear in what tools print; never raises.

    `kept` may give back less of a document than was read, so that long streams need little memory.
    """
    documents: list[Document] = []
    position, used, first, cut_at_start = 0, 0, len(text), False
    while (start := _next_object(text, position)) is not None:
        attempt = _decode(text, start)
        if wanted(attempt.root):
            documents.append(Document(root=kept(attempt.root), repairs=frozenset(attempt.repairs)))
            first = min(first, start)
            position = used = attempt.end
        elif not attempt.root.pairs and attempt.cut:
            cut_at_start = True
            break
        else:
            position = start + 1
    return Found(
        documents=tuple(documents),
        other_text_before=bool(documents) and bool(text[:first].strip()),
        other_text_after=bool(documents) and bool(text[used:].strip()) and not cut_at_start,
        cut_at_start=cut_at_start,
    )


_OBJECT = re.compile(r'\{\s*(?=["}]|\Z)')


def _next_object(text: str, position: int) -> int | None:
    match = _OBJECT.search(text, position)
    return match.start() if match else None


@dataclass(kw_only=True)
class _Attempt:
    root: Members
    end: int = 0
    cut: bool = False
    repairs: set[str] = field(default_factory=set)


def _decode(text: str, start: int) -> _Attempt:
    repairs: set[str] = set()

    def constant(_: str) -> None:
        repairs.add("nan_replaced")

    decoder = json.JSONDecoder(object_pairs_hook=Members, parse_constant=constant)
    try:
        root, end = decoder.raw_decode(text, start)
    except (ValueError, RecursionError):
        return _Reader(text, start).read()
    return _Attempt(root=root, end=end, repairs=repairs)


class _CutError(Exception):
    """The text ends inside a value."""


class _MalformedError(Exception):
    """The text is no JSON, not even repaired."""


_SPACE = re.compile(r"\s*")
_STRING = re.compile(r'"(?:[^"\\\n\x00-\x1f]|\\.)*"')
_NOT_FINITE = re.compile(r"[-+]?(?:nan(?:\([^)]*\))?|inf(?:inity)?|1\.#[A-Z]+\d*)(?![A-Za-z])", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"-?\d+,\d+(?:[eE][ +-]?\d+)?(?=\s*[,}])")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][ +-]?\d+)?")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
_WORD = re.compile(r"true|false|null")
_UNFINISHED = re.compile(r'-?[\d.,eE+ -]*\Z|"[^"\n]*\Z|[a-zA-Z]{0,8}\Z|-[a-zA-Z]{0,8}\Z')
_NEW_DOCUMENT = re.compile(r'\{\s*"start"\s*:\s*\{\s*"connected"')


class _Reader:
    """Reads one object that strict JSON refuses; keeps every part that is complete."""

    def __init__(self, text: str, start: int) -> None:
        self._text = text
        self._at = start
        self._last_string = start
        self._repairs: set[str] = set()

    def read(self) -> _Attempt:
        root = Members([], complete=False)
        cut = False
        try:
            self._object(root, 0)
            end = self._at
        except _CutError:
            cut, end = True, len(self._text)
        except _MalformedError:
            # The next document may have begun inside what looked like the last string of this one.
            end = self._last_string + 1
        return _Attempt(root=root, end=end, cut=cut, repairs=self._repairs)

    def _peek(self) -> str:
        match = _SPACE.match(self._text, self._at)
        self._at = match.end() if match else self._at
        if self._at >= len(self._text):
            raise _CutError
        return self._text[self._at]

    def _object(self, members: Members, depth: int) -> None:
        for _ in self._elements("{", "}"):
            key = self._string()
            if self._peek() != ":":
                raise _MalformedError
            self._at += 1
            self._value(lambda value, key=key: members.pairs.append((key, value)), depth, inside=key)  # type: ignore[misc]
        members.complete = True

    def _array(self, items: list[Any], depth: int) -> None:
        for _ in self._elements("[", "]"):
            self._value(items.append, depth, inside="")

    def _elements(self, opening: str, closing: str) -> Iterator[None]:
        if self._peek() != opening:
            raise _MalformedError
        self._at += 1
        if self._peek() == closing:
            self._at += 1
            return
        while True:
            yield
            after = self._peek()
            self._at += 1
            if after == closing:
                return
            if after != ",":
                self._at -= 1
                raise _MalformedError
            if self._peek() == closing:
                self._repairs.add("json_repaired")
                self._at += 1
                return

    def _value(self, keep: Callable[[Any], None], depth: int, *, inside: str) -> None:
        first = self._peek()
        if depth >= MAX_DEPTH:
            raise _MalformedError
        if first == "{":
            if inside != "server_output_json" and _NEW_DOCUMENT.match(self._text, self._at):
                raise _MalformedError
            members = Members([], complete=False)
            keep(members)
            self._object(members, depth + 1)
        elif first == "[":
            items: list[Any] = []
            keep(items)
            self._array(items, depth + 1)
        elif first == '"':
            keep(self._string())
        else:
            keep(self._scalar(in_object=bool(inside)))

    def _string(self) -> str:
        if self._peek() == '"':
            self._last_string = self._at
        match = _STRING.match(self._text, self._at)
        if match is None:
            self._refuse()
        self._at = match.end()
        try:
            value = json.loads(match.group())
        except ValueError:
            self._repairs.add("json_repaired")
            return match.group()[1:-1]
        return str(value)

    def _scalar(self, *, in_object: bool) -> float | int | bool | None:
        text = self._text
        if match := _WORD.match(text, self._at):
            self._at = match.end()
            return _WORDS[match.group()]
        if match := _NOT_FINITE.match(text, self._at):
            self._take(match)
            self._repairs.add("nan_replaced")
            return None
        if in_object and (match := _DECIMAL_COMMA.match(text, self._at)):
            self._take(match)
            self._repairs.add("json_repaired")
            return _float(match.group().replace(",", "."))
        if match := _NUMBER.match(text, self._at):
            self._take(match)
            printed = match.group()
            if " " in printed:
                self._repairs.add("json_repaired")
            return _float(printed)
        return self._refuse()

    def _take(self, match: re.Match[str]) -> None:
        self._at = match.end()
        if self._at >= len(self._text):
            raise _CutError

    def _refuse(self) -> NoReturn:
        if _UNFINISHED.match(self._text, self._at):
            raise _CutError
        raise _MalformedError


def _float(printed: str) -> float | int | None:
    plain = printed.replace(" ", "+") if " " in printed else printed
    try:
        return int(plain)
    except ValueError:
        pass
    value = float(plain)
    return value if math.isfinite(value) else None
