"""Every PowerShell script of the tree, held to the grammar and to the convention that `workers.powershell` states."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.powershell.grammar import Header, Source, is_text, keys_of, single, text_of
from workers.powershell import envelope

WORKERS = Path(envelope.__file__).parents[1]
SCRIPTS = sorted(WORKERS.glob("**/scripts/*.ps1"))
SENT = [WORKERS / "powershell" / name for name in ("prelude.ps1", "bootstrap.ps1")]

PARAM_BLOCK = """param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)
"""

FORBIDDEN = {
    "invoke-expression": "a text becomes a script",
    "iex": "a text becomes a script",
    "convertto-json": "the answer is an object; the prelude makes JSON of it",
    "convertfrom-json": "the document arrives decoded",
    "write-host": "the answer is what the script puts out",
    "write-error": "errors are told by Stop-Script",
    "get-wmiobject": "PowerShell 7 has none",
    "%": "an alias",
    "?": "an alias",
    "where": "an alias",
    "foreach": "an alias",
    "select": "an alias",
}
SPLICED = {"-filter", "-query", "-filterxpath", "-command", "-scriptblock", "-filterxml"}
"""Parameters whose text is a language of its own: never one with values in it."""

TEXT_AS_SCRIPT_IS_ITS_WORK = {"job-start"}
"""The job's process decodes a request, as `bootstrap.ps1` does."""


def name_of(path: Path) -> str:
    return str(path.relative_to(WORKERS))


every_script = pytest.mark.parametrize("path", SCRIPTS, ids=name_of)


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 20


@pytest.mark.parametrize("path", SCRIPTS + SENT, ids=name_of)
def test_the_grammar_knows_all_of_it(path: Path) -> None:
    assert Source.of(path).mistakes() == []


@pytest.mark.parametrize("path", SCRIPTS + SENT, ids=name_of)
def test_it_is_plain_text_that_windows_powershell_reads(path: Path) -> None:
    """H11, H12: no letter that a code page could change, no operator that version 5.1 doesn't have."""
    content = path.read_bytes()
    assert content.isascii()
    assert b"\r" not in content
    assert b"\t" not in content
    assert content.endswith(b"\n")
    assert max(len(line) for line in content.splitlines()) <= 140
    operators = {text_of(node) for node in Source.of(path).walk() if node.type in ("&&", "||")}
    assert operators == set()


@every_script
def test_its_param_block_takes_one_document(path: Path) -> None:
    text = path.read_text()
    assert text.count("[psobject] $Document") == 1
    assert PARAM_BLOCK in text
    assert re.sub(r"(^#.*\n)+", "", text, count=1, flags=re.MULTILINE).startswith("param(")


@every_script
def test_its_header_names_what_it_is_given(path: Path) -> None:
    header = Header.of(path.read_text())
    assert header.purpose
    assert Source.of(path).members_of("$Document") - header.given == set()


@every_script
def test_its_header_names_what_it_answers(path: Path) -> None:
    """Each answer is an object whose keys are in the header."""
    header = Header.of(path.read_text())
    answers = Source.of(path).answers()
    for answer in answers:
        literal = single(answer)
        if literal.type == "hash_literal_expression":
            assert set(keys_of(literal)) - header.told == set()
    assert answers


@every_script
def test_its_errors_are_of_kinds_that_it_names(path: Path) -> None:
    source = Source.of(path)
    header = Header.of(source.text)
    for name, command in source.commands():
        if name == "Stop-Script":
            given = dict(source.arguments(command))
            assert is_text(given.get("-Kind"), verbatim=True), "the kind is a word, not a value"
            kind = text_of(given["-Kind"]).strip("'")  # type: ignore[arg-type]
            assert re.fullmatch(r"[a-z]+(-[a-z]+)*", kind)
            assert kind in header.errors
            assert "-Message" in given


@pytest.mark.parametrize("path", SCRIPTS + SENT, ids=name_of)
def test_every_variable_is_given_a_value_somewhere(path: Path) -> None:
    """Strict mode would end the script there, in the middle of the night."""
    assert Source.of(path).unassigned() == set()


@pytest.mark.parametrize(
    ("text", "unassigned"),
    [
        ("$a = 1\n$b.c = $A + $d", {"b", "d"}),
        ("foreach ($one in $all) { $one }", {"all"}),
        ("function f([string] $x) { param($y) $x + $y + $z }", {"z"}),
        ("Move-VM @move", {"move"}),
        ('"$name $($other.x) $env:PATH"', {"name", "other"}),
        ("$a, $b = $c -split ' '; $a + $b + $_ + $PID", {"c"}),
        ("$table['x'] = 1", {"table"}),
    ],
)
def test_variables_without_a_value_are_found(text: str, unassigned: set[str]) -> None:
    assert Source(text + "\n").unassigned() == unassigned


@pytest.mark.parametrize("name", ["bootstrap.ps1", "scripts/job-start.ps1"])
def test_the_prelude_stays_out_of_the_global_scope(name: str) -> None:
    """What holds in the global scope holds in all modules: with strict mode there, those of Windows would fail."""
    source = Source.of(WORKERS / "powershell" / name)
    (loading,) = [node for node in source.walk() if node.type == "command" and text_of(node).startswith(". (")]
    around = loading.parent
    while around is not None and around.type != "command":
        around = around.parent
    assert around is not None
    assert text_of(around).startswith("& {")


def test_a_job_that_was_given_up_never_begins() -> None:
    """Its claim is taken before the error is told, so a process that is only slow finds it taken."""
    text = (WORKERS / "powershell/scripts/job-start.ps1").read_text()
    claim, error = text.rindex("Open($claim, 'CreateNew'"), text.index("has not begun within")
    assert text.index("while (-not (Test-Path -LiteralPath $claim))") < claim < error


@every_script
def test_no_value_becomes_a_script(path: Path) -> None:
    """H12: what comes in a document stays data."""
    source = Source.of(path)
    for name, command in source.commands():
        assert name.lower() not in FORBIDDEN, f"{name}: {FORBIDDEN[name.lower()]}"
        for parameter, value in source.arguments(command):
            if parameter.lower() in SPLICED:
                assert not is_text(value, verbatim=False), f"{name} {parameter} with values in its text"
    if path.stem not in TEXT_AS_SCRIPT_IS_ITS_WORK:
        created = [node for node in source.walk() if node.type == "invokation_expression"]
        assert not [node for node in created if re.match(r"\[scriptblock\]::create", text_of(node), re.IGNORECASE)]


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("Get-VM -Name 'a", "an open string"),
        ("if ($a { 1 }", "an open parenthesis"),
        ("$a = $b ?? 1", "an operator of PowerShell 7"),
        ("@{ a = 1", "an open object"),
    ],
)
def test_the_grammar_refuses(text: str, mistake: str) -> None:
    assert Source(text + "\n").mistakes() != [], mistake


def test_what_the_convention_promises_is_in_the_prelude() -> None:
    defined = set(re.findall(r"^function ([A-Za-z-]+)", SENT[0].read_text(), flags=re.MULTILINE))
    assert {"Stop-Script", "Write-JobProgress", "Get-EncodedAnswer", "Invoke-Request"} <= defined


def test_h3_the_command_line_has_room() -> None:
    """H3: what stands on the command line is always the same and far below the 8191 characters of cmd.exe."""
    assert len(envelope.command_line()) < 4000
