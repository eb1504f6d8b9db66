"""Secrets and paths in both files: a secret is never written there, only where it is; paths start from the file's folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

from labctl.model.lab import SecretRef
from labctl.spec.fields import complaint

SECRETS = "file:PATH, env:NAME or keyring:SERVICE/USER"
"""How the place of a secret is written."""


def _secret(value: object) -> SecretRef:
    """A reference to a secret. The value is never repeated in the message: it may be the secret itself."""
    scheme, colon, locator = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not colon or not locator or scheme not in ("file", "env", "keyring"):
        raise complaint("must say where the secret is; a secret is never written here", allowed=SECRETS, secret=True)
    if scheme == "env" and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", locator):
        raise complaint("is no name of an environment variable", allowed=SECRETS, secret=True)
    if scheme == "keyring" and not all(locator.partition("/")):
        raise complaint("must name service and user", allowed=SECRETS, secret=True)
    return SecretRef(scheme=scheme, locator=locator)


def _address_of_news(value: object) -> SecretRef:
    """Where the URL is that news are sent to. Most such URLs hold a password or a token, so all count as secrets."""
    if isinstance(value, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", value):
        message = (
            "a URL that news are sent to may hold a password or a token, so it is never written here: put it into "
        )
        message += "an environment variable, a file or the keyring, and say which"
        raise complaint(message, allowed=SECRETS, secret=True)
    return _secret(value)


_SCHEMA = WithJsonSchema({"type": "string", "pattern": "^(file|env|keyring):.+", "description": SECRETS})

Secret = Annotated[SecretRef, BeforeValidator(_secret), _SCHEMA]
"""Where a secret is."""
NewsAddress = Annotated[SecretRef, BeforeValidator(_address_of_news), _SCHEMA]
"""Where a URL is that news are sent to."""


def placed(secret: SecretRef, base: Path) -> SecretRef:
    """The reference with the path of a file made absolute, from the folder `base` on."""
    if secret.scheme != "file":
        return secret
    return SecretRef(scheme="file", locator=path_from(secret.locator, base))


def path_from(path: str, base: Path) -> str:
    """A path made absolute, from the folder `base` on; `~` is left for the machine that uses it."""
    return path if path.startswith(("~", "/")) else str(base / path)
