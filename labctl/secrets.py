"""Where references to secrets become secrets: as late as possible, in the process that uses them."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from labctl.errors import LabError
from labctl.model.lab import SecretRef


@dataclass(frozen=True, kw_only=True)
class Secret:
    """A secret and where it came from. Its text never shows in a representation, a log or a traceback."""

    ref: SecretRef
    text: str = field(repr=False)

    def __str__(self) -> str:
        return f"secret of {self.ref}"


def resolve(ref: SecretRef) -> Secret:
    """The secret behind a reference: the content of `file:PATH`, of the variable `env:NAME`, or of the keyring.

    A `~` in a path is the home directory of the user that runs labctl. Raises `LabError` (`secret-unavailable`).
    """
    if ref.scheme == "file":
        return Secret(ref=ref, text=_from_file(ref))
    if ref.scheme == "env":
        return Secret(ref=ref, text=_from_environment(ref))
    if ref.scheme == "keyring":
        return Secret(ref=ref, text=_from_keyring(ref))
    raise _unavailable(ref, why=f"{ref.scheme!r} is no place for secrets", todo="Use file:, env: or keyring:.")


def _from_file(ref: SecretRef) -> str:
    path = Path(ref.locator).expanduser()
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unavailable(
            ref, why=str(error), todo=f"Put the secret into {path}, readable by the user that runs labctl."
        ) from error


def _from_environment(ref: SecretRef) -> str:
    try:
        return os.environ[ref.locator]
    except KeyError as error:
        raise _unavailable(
            ref, why="the variable is not set", todo=f"Set {ref.locator} in the environment of labctl."
        ) from error


def _from_keyring(ref: SecretRef) -> str:
    service, _, user = ref.locator.partition("/")
    try:
        keyring = importlib.import_module("keyring")
    except ImportError as error:
        raise _unavailable(
            ref, why="the Python package keyring is not installed", todo="Install keyring, or use file: or env:."
        ) from error
    try:
        text = keyring.get_password(service, user)
    except keyring.errors.KeyringError as error:
        raise _unavailable(ref, why=str(error), todo="Unlock the keyring of the user that runs labctl.") from error
    if not isinstance(text, str):
        raise _unavailable(ref, why="the keyring has no such entry", todo=f"Store it: keyring set {service} {user}")
    return text


def _unavailable(ref: SecretRef, *, why: str, todo: str) -> LabError:
    return LabError(f"The secret {ref} is not available.", kind="secret-unavailable", why=why, todo=todo)
