from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.model.settings import SETTINGS, Level
from labctl.spec.source import resolve_scalar
from labctl.spec.values import BadValue, known_setting, nearest, parse_level


def read(name: str, written: str) -> Level:
    return parse_level(known_setting(name), resolve_scalar(written))


@pytest.mark.parametrize(
    ("name", "written", "expected"),
    [
        ("window", "64k", 65536),
        ("window", "64 KiB", 65536),
        ("window", "64 kB", 64000),
        ("window", "65536", 65536),
        ("window", "default", "default"),
        ("memory", "192 MiB", 192 * 2**20),
        ("memory", "0.5G", 2**29),
        ("rate", "100M", 100_000_000),
        ("rate", "1.5 Gbit/s", 1_500_000_000),
        ("rate", "100 Mbps", 100_000_000),
        ("seconds", "5", 5.0),
        ("seconds", "0.1", 0.1),
        ("seconds", "500 ms", 0.5),
        ("seconds", "2 min", 120.0),
        ("migrate_at", "1/3", 1 / 3),
        ("migrate_at", "33%", 0.33),
        ("reverse", "on", True),
        ("reverse", "No", False),
        ("reverse", "true", True),
        ("offload.tso", "off", False),
        ("offload.tx-udp-segmentation", "on", True),
        ("vcpus", "2", 2),
        ("client_args", "-O 2   -Z", "-O 2 -Z"),
        ("own.governor", "on", "on"),
        ("host.driver", "1.10", "1.10"),
        ("host.firmware", "010", "010"),
        ("own.start", "22:00", "22:00"),
        ("host.mac", "52:54:00:12:34:56", "52:54:00:12:34:56"),
    ],
)
def test_values_become_canonical(name: str, written: str, expected: Level) -> None:
    """S1: on, off, true and false are one form; times and MAC addresses stay text."""
    found = read(name, written)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("name", "written", "words"),
    [
        ("window", "64kb", "bits"),
        ("window", "64 parsecs", "unknown unit"),
        ("window", "0.3", "whole number of bytes"),
        ("window", "0", "too small"),
        ("window", "true", "number"),
        ("rate", "10 MB/s", "bytes"),
        ("seconds", "0", "above 0"),
        ("seconds", "-5", "above 0"),
        ("seconds", ".inf", "finite"),
        ("seconds", ".nan", "finite"),
        ("seconds", "soon", "number"),
        ("seconds", "30 days", "unknown unit"),
        ("migrate_at", "1", "below 1"),
        ("migrate_at", "1/0", "number"),
        ("reverse", "perhaps", "on or off"),
        ("vcpus", "1.5", "whole number"),
        ("vcpus", "0", "too small"),
        ("vcpus", "99999999999", "too large"),
        ("client_args", "-Z 'open", "split"),
        ("client_args", "-P 4", "streams"),
        ("client_args", "-P4", "streams"),
        ("client_args", "--parallel=4", "streams"),
        ("client_args", "-p 99", "labctl"),
        ("seconds", "", "no value"),
        ("seconds", "default", "number"),
    ],
)
def test_what_a_setting_does_not_take_is_refused(name: str, written: str, words: str) -> None:
    with pytest.raises(BadValue, match=words):
        read(name, written)


def test_a_quoted_number_is_no_count() -> None:
    with pytest.raises(BadValue, match="without quotes"):
        parse_level(SETTINGS["streams"], "4")


@pytest.mark.parametrize(
    ("name", "near"),
    [("nic_modle", "nic_model"), ("sec", "seconds"), ("offload.tos", "offload.tso"), ("nonsense-at-all", "")],
)
def test_unknown_settings_name_the_nearest(name: str, near: str) -> None:
    with pytest.raises(BadValue) as caught:
        known_setting(name)
    assert caught.value.nearest == near


def test_the_nearest_name_ignores_case_and_underscores() -> None:
    assert nearest("CROSS_HOST", ["same-host", "cross-host"]) == "cross-host"


@given(st.integers(min_value=1, max_value=2**31 - 1), st.sampled_from(["", "k", " KiB", "M", " MiB"]))
def test_sizes_with_binary_prefixes_are_exact(number: int, unit: str) -> None:
    factor = {"": 1, "k": 2**10, " KiB": 2**10, "M": 2**20, " MiB": 2**20}[unit]
    assert read("window", f"{number}{unit}") == number * factor


@given(st.text(max_size=20))
def test_any_text_is_a_size_or_refused(text: str) -> None:
    try:
        level = parse_level(SETTINGS["window"], text)
    except BadValue as refused:
        level = refused.message
    assert isinstance(level, int) or level
