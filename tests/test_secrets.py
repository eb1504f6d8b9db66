"""References to secrets: where they are found, what is said when they aren't, and that they never show."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from labctl.errors import LabError
from labctl.model.lab import SecretRef
from labctl.secrets import resolve


def test_a_file_relative_to_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "key").write_text("hush\n")
    assert resolve(SecretRef(scheme="file", locator="~/key")).text == "hush\n"


def test_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABCTL_TEST_SECRET", "hush")
    secret = resolve(SecretRef(scheme="env", locator="LABCTL_TEST_SECRET"))
    assert secret.text == "hush"
    assert "hush" not in f"{secret} {secret!r}"


class NoKeyringError(Exception):
    pass


def keyring_with(entries: dict[tuple[str, str], str]) -> types.ModuleType:
    module = types.ModuleType("keyring")
    module.errors = types.SimpleNamespace(KeyringError=NoKeyringError)  # type: ignore[attr-defined]
    module.get_password = lambda service, user: entries.get((service, user))  # type: ignore[attr-defined]
    return module


def test_the_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", keyring_with({("labctl", "root"): "hush"}))
    assert resolve(SecretRef(scheme="keyring", locator="labctl/root")).text == "hush"
    with pytest.raises(LabError, match="keyring:labctl/nobody") as caught:
        resolve(SecretRef(scheme="keyring", locator="labctl/nobody"))
    assert caught.value.kind == "secret-unavailable"


def test_no_keyring_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(LabError) as caught:
        resolve(SecretRef(scheme="keyring", locator="labctl/root"))
    assert "not installed" in caught.value.why


@pytest.mark.parametrize(
    ("scheme", "locator"), [("file", "/nowhere/key"), ("env", "LABCTL_NOT_SET"), ("plain", "hush"), ("file", "/")]
)
def test_what_is_missing_is_named_with_the_remedy(scheme: str, locator: str) -> None:
    with pytest.raises(LabError, match=f"{scheme}:{locator}") as caught:
        resolve(SecretRef(scheme=scheme, locator=locator))
    assert caught.value.kind == "secret-unavailable"
    assert caught.value.why
    assert caught.value.todo
