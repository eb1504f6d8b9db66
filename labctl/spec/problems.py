"""pydantic's errors to problems that people can mend: place, key, value, what is allowed, the nearest name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from labctl.errors import Problem
from labctl.spec.source import Document, KeyPath
from labctl.spec.values import nearest


def problems_of(error: ValidationError, document: Document, model: type[BaseModel]) -> list[Problem]:
    """One problem for every error of the validation, and one for a key that is missing because it is misspelt."""
    details = error.errors(include_url=False)
    problems = [_problem(detail, document, model) for detail in details]
    misspelt = {
        (*detail["loc"][:-1], problem.nearest)
        for detail, problem in zip(details, problems, strict=True)
        if detail["type"] == "extra_forbidden"
    }
    return [
        problem
        for detail, problem in zip(details, problems, strict=True)
        if detail["type"] != "missing" or detail["loc"] not in misspelt
    ]


def _problem(detail: ErrorDetails, document: Document, model: type[BaseModel]) -> Problem:
    path: KeyPath = tuple(key for key in detail["loc"] if key != "[key]")
    at_key = len(path) < len(detail["loc"])
    context: Mapping[str, Any] = detail.get("ctx") or {}
    kind = detail["type"]
    if kind == "bad_value":
        return document.problem(
            path,
            str(context["text"]),
            at_key=at_key or bool(context.get("at_key")),
            show_value=not context.get("secret"),
            allowed=str(context.get("allowed", "")),
            nearest=str(context.get("nearest", "")),
        )
    if kind == "extra_forbidden":
        names = _keys_at(model, path[:-1])
        return document.problem(
            path, "unknown key", at_key=True, allowed=", ".join(names), nearest=nearest(str(path[-1]), names)
        )
    if kind == "missing":
        return document.problem(path[:-1], f"the key `{path[-1]}` is missing", at_key=True)
    if kind in ("enum", "literal_error"):
        names = _expected(context)
        node = document.node(path)
        word = getattr(node, "text", "")
        return document.problem(path, "is not one of the names", allowed=", ".join(names), nearest=nearest(word, names))
    message, allowed = _WORDS.get(kind, (detail["msg"], ""))
    return document.problem(path, message.format(**context), allowed=allowed.format(**context))


_WORDS: dict[str, tuple[str, str]] = {
    "int_type": ("must be a whole number", "a number without quotes"),
    "int_from_float": ("must be a whole number", "a number without a fraction"),
    "float_type": ("must be a number", "a number without quotes"),
    "finite_number": ("must be a finite number", ""),
    "bool_type": ("must be true or false", "true, false"),
    "string_type": ("must be text", ""),
    "string_too_short": ("must not be empty", ""),
    "dict_type": ("must be a mapping of keys to values", ""),
    "model_type": ("must be a mapping of keys to values", ""),
    "list_type": ("must be a list", ""),
    "too_short": ("has {actual_length} entries", "at least {min_length}"),
    "too_long": ("has {actual_length} entries", "at most {max_length}"),
    "greater_than": ("is too small", "more than {gt}"),
    "greater_than_equal": ("is too small", "at least {ge}"),
    "less_than": ("is too large", "less than {lt}"),
    "less_than_equal": ("is too large", "at most {le}"),
}


def _expected(context: Mapping[str, Any]) -> list[str]:
    """The names in pydantic's sentence `'a', 'b' or 'c'`."""
    return [part.strip().strip("'") for part in str(context["expected"]).replace(" or ", ", ").split(", ")]


def _keys_at(model: type[BaseModel], path: KeyPath) -> list[str]:
    """The keys that the part of the file at the path may have."""
    kind: object = model
    for key in path:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = next((f for name, f in kind.model_fields.items() if key == (f.alias or name)), None)
            kind = _bare(field.annotation if field is not None else None)
        else:
            arguments = get_args(kind)
            kind = _bare(arguments[-1] if arguments else None)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [field.alias or name for name, field in kind.model_fields.items()]
    return []


def _bare(kind: object) -> object:
    """The type without `Annotated`, and without None in a union."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    arguments = [argument for argument in get_args(kind) if argument is not type(None)]
    return _bare(arguments[0]) if type(None) in get_args(kind) else kind
