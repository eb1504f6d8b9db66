from __future__ import annotations

from pathlib import Path

import pytest

from labctl.errors import Problem, SpecError
from labctl.spec.source import MAX_BYTES, Document, parse_document, read_text


def parse(text: str) -> Document:
    return parse_document(text, file="f.yaml", what="campaign", base=Path())


def mistakes(text: str) -> tuple[Problem, ...]:
    with pytest.raises(SpecError) as caught:
        parse(text)
    return caught.value.problems


def value(written: str) -> object:
    return parse(f"key: {written}\n").plain()["key"]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        # what YAML 1.1 loaders make of these: False, True, False, True, 1320, 1439, 41135085296, 8, inf
        ("off", "off"),
        ("on", "on"),
        ("no", "no"),
        ("yes", "yes"),
        ("22:00", "22:00"),
        ("23:59", "23:59"),
        ("02:30", "02:30"),
        ("52:54:00:12:34:56", "52:54:00:12:34:56"),
        ("010", 10),
        ("123e4567", "123e4567"),
        ("1_000", "1_000"),
        ("2010-04-13", "2010-04-13"),
        ("0o17", 15),
        ("0x1F", 31),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-7", -7),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("'on'", "on"),
        ('"5"', "5"),
    ],
)
def test_scalars_follow_the_core_schema_of_yaml_1_2(written: str, expected: object) -> None:
    """S1, M20: what YAML 1.1 makes numbers and truth values of."""
    found = value(written)
    assert found == expected
    assert isinstance(found, bool) == isinstance(expected, bool)
    assert isinstance(found, str) == isinstance(expected, str)


def test_a_key_named_on_stays_a_word() -> None:
    """S1, M20: YAML 1.1 reads it as true."""
    assert parse("on: 1\n").plain() == {"on": 1}


def test_numbers_remember_how_they_were_written() -> None:
    assert getattr(value("1.10"), "text") == "1.10"  # noqa: B009 - the type of a plain value has no such attribute
    assert getattr(value("010"), "text") == "010"  # noqa: B009


def test_a_duplicate_key_names_both_places() -> None:
    """S1, M20: other loaders take the last without a word."""
    (problem,) = mistakes("factors:\n  nic_model: [virtio]\n  streams: 1\n  nic_model: [e1000]\n")
    assert (problem.line, problem.column, problem.key) == (4, 3, "factors.nic_model")
    assert "line 2, column 3" in problem.message


def test_every_duplicate_key_is_told() -> None:
    found = mistakes("a: 1\nb: {x: 1, x: 2}\na: 3\n")
    assert [(problem.line, problem.column, problem.key) for problem in found] == [(2, 11, "b.x"), (3, 1, "a")]


def test_byte_order_mark_and_windows_line_ends_are_no_mistakes() -> None:
    """S9: editors of other systems leave them."""
    document = parse("\ufeffa: 1\r\nb:\r\n  c: x\r\n")
    assert document.plain() == {"a": 1, "b": {"c": "x"}}
    place = document.place(("b", "c"))
    assert (place.line, place.column) == (3, 6)


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("a:\n\tb: 1\n", 2, 1, "a tab"),
        ("a: \t5\n", 1, 4, "a tab"),
        ("a: 5\u00a0\n", 1, 5, "U+00A0"),
        ("\u00a0\u00a0a: 1\n", 1, 1, "U+00A0"),
        ("a:\u00a05\nb: 1\n", 1, 3, "U+00A0"),
        ("a: x\u200by\n", 1, 5, "U+200B"),
        ("a: \x01\n", 1, 4, "U+0001"),
        ("a: 1\n  b: 2\n", 2, 4, "indentation"),
        ("a: 'x\nb: 1\n", 1, 4, "unexpected end"),
        ("a: 1\n---\nb: 2\n", 2, 1, "second document"),
        ("%YAML 1.1\n---\na: on\n", 1, 1, "1.2"),
        ("a: !!python/object:os.system x\n", 1, 4, "tags"),
        ("a: &x [*x]\n", 1, 8, "part of"),
        ("a: *nowhere\n", 1, 4, "no anchor"),
        ("<<: {a: 1}\n", 1, 1, "merge keys"),
        ("? [a]\n: 1\n", 1, 3, "single word"),
        ("- a\n", 1, 1, "mapping"),
        ("just text\n", 1, 1, "mapping"),
        ("", 1, 1, "empty"),
        ("# only a comment\n", 1, 1, "empty"),
    ],
)
def test_what_is_no_such_file_is_told_at_its_place(text: str, line: int, column: int, words: str) -> None:
    """S9: tabs and no-break spaces among them, with line and column."""
    problem = mistakes(text)[0]
    assert (problem.line, problem.column) == (line, column)
    assert words in problem.message


def test_no_break_spaces_in_quotes_are_meant() -> None:
    assert value("'a\u00a0b'") == "a\u00a0b"


def test_anchors_and_aliases_are_fine() -> None:
    assert parse("a: &levels [1, 2]\nb: *levels\n").plain() == {"a": [1, 2], "b": [1, 2]}


def test_aliases_that_multiply_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    assert "aliases" in mistakes("\n".join(lines))[0].message


def test_deep_nesting_is_refused() -> None:
    assert "nested deeper" in mistakes("a: " + "[" * 5000)[0].message


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    path.write_text("a: " + "x" * MAX_BYTES)
    with pytest.raises(SpecError, match="refused"):
        read_text(path, what="campaign")


def test_bytes_that_are_no_text_are_told_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "latin1.yaml"
    path.write_bytes(b"campaign: x\nquestion: sch\xf6n\n")
    with pytest.raises(SpecError) as caught:
        read_text(path, what="campaign")
    (problem,) = caught.value.problems
    assert (problem.line, problem.column, problem.value) == (2, 14, "0xf6")


def test_utf_16_with_its_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "notepad.yaml"
    path.write_bytes("campaign: x\r\n".encode("utf-16"))
    assert parse(read_text(path, what="campaign")).plain() == {"campaign": "x"}


def test_a_missing_file_is_the_users_to_mend(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="can't be read"):
        read_text(tmp_path / "none.yaml", what="lab")
