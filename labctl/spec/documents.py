"""Model values to and from JSON, for the store and for messages.

One mechanism for every frozen value of `labctl.model`: pydantic's adapter for standard dataclasses. Addresses travel as
text, tuples and frozensets as arrays. Captured bytes (`AttemptResult.raw`) don't travel this way: the store keeps them
compressed beside the document.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")

_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - any frozen value of the model
    adapter = _ADAPTERS.get(kind)
    if adapter is None:
        adapter = _ADAPTERS[kind] = TypeAdapter(kind)
    return adapter


def to_json(value: Any) -> str:  # noqa: ANN401
    """The JSON text of a frozen value."""
    return _adapter(type(value)).dump_json(value).decode()


def from_json(kind: type[T], text: str) -> T:
    """The value of this type that `to_json` wrote. Raises pydantic's `ValidationError` when the text is not one."""
    value: T = _adapter(kind).validate_json(text)
    return value
