"""What scripts answer, checked when it arrives: a key that is missing, or of another type than agreed, is an error at once."""

from __future__ import annotations

from typing import NoReturn

from labctl.errors import LabError
from labctl.model.result import Fact
from workers.powershell.base import Json


class Answer:
    """A JSON object of a script, read key by key. Every reader raises `LabError` (`protocol`) for what was not agreed.

    Readers never coerce: a number in quotes is not a number, because the next one may have a decimal comma.
    """

    def __init__(self, value: Json, *, host: str, what: str) -> None:
        """`what` names the script and the place in its answer, for messages."""
        self._host = host
        self._what = what
        if not isinstance(value, dict):
            self._refuse("an object", value)
        self._value = value

    def text(self, key: str) -> str:
        """A string."""
        value = self._get(key)
        if not isinstance(value, str):
            self._refuse(f"a string in {key}", value)
        return value

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self._get(key)
        if not isinstance(value, bool):
            self._refuse(f"true or false in {key}", value)
        return value

    def flag_or_none(self, key: str) -> bool | None:
        """True or false, or null: unknown."""
        return None if self._get(key) is None else self.flag(key)

    def whole(self, key: str) -> int:
        """A whole number."""
        value = self._get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            self._refuse(f"a whole number in {key}", value)
        return value

    def whole_or_none(self, key: str) -> int | None:
        """A whole number, or null: unknown."""
        return None if self._get(key) is None else self.whole(key)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings."""
        values = self._list(key)
        return tuple(value if isinstance(value, str) else self._refuse(f"strings in {key}", value) for value in values)

    def wholes(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers."""
        values = self._list(key)
        return tuple(
            value
            if isinstance(value, int) and not isinstance(value, bool)
            else self._refuse(f"numbers in {key}", value)
            for value in values
        )

    def items(self, key: str) -> tuple[Answer, ...]:
        """A list of objects."""
        return tuple(Answer(value, host=self._host, what=f"{self._what}.{key}") for value in self._list(key))

    def item(self, key: str) -> Answer:
        """An object."""
        return Answer(self._get(key), host=self._host, what=f"{self._what}.{key}")

    def facts(self, key: str) -> dict[str, Fact]:
        """An object of facts: strings, numbers, true, false and null, nothing below them."""
        value = self._get(key)
        if not isinstance(value, dict):
            self._refuse(f"an object in {key}", value)
        facts: dict[str, Fact] = {}
        for name, fact in value.items():
            if isinstance(fact, dict | list):
                self._refuse(f"a plain value in {key}.{name}", fact)
            facts[name] = fact
        return facts

    def _get(self, key: str) -> Json:
        if key not in self._value:
            self._refuse(f"the key {key}", sorted(self._value))
        return self._value[key]

    def _list(self, key: str) -> list[Json]:
        value = self._get(key)
        if not isinstance(value, list):
            self._refuse(f"a list in {key}", value)
        return value

    def _refuse(self, wanted: str, found: object) -> NoReturn:
        raise LabError(
            f"The script {self._what} on host {self._host} has answered something else than agreed.",
            kind="protocol",
            why=f"Wanted: {wanted}. Found: {str(found)[:200]}",
            todo="Report this as a bug of labctl, with the version of Windows.",
            host=self._host,
        )
