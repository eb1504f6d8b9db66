"""Documents and answers on the wire: whatever they hold, whatever else is printed beside them."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.errors import LabError
from tests.simulators.winrm import WinrmEndpoint
from tests.winrm.conftest import HELD, READS, WRITES, Place
from workers.powershell import envelope
from workers.powershell.base import Json, ScriptError
from workers.winrm import WinrmPowerShell

pytestmark = pytest.mark.services

SECONDS = 20.0

CAPTURE = Path(__file__).parents[1] / "captures" / "98-winrm-clixml-progress-on-stderr"


@pytest.fixture(scope="module")
def same_shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WinrmPowerShell]:
    """One shell for many calls."""
    place = Place(tmp_path_factory.mktemp("winrm"))
    yield place.shell(place.endpoint())
    place.close()


NASTY = [
    "'",
    '"',
    "$(x)",
    "`",
    ";",
    "\n",
    "\r\n",
    "\t",
    "%PATH%",
    "&",
    "|",
    "<",
    ">",
    "^",
    "ä",
    "ß",
    "Ж",
    "漢",
    "😀",
    "\0",
    "\u2028",
]
TEXTS = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(NASTY), max_size=8).map("".join))
DOCUMENTS: st.SearchStrategy[Json] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=80, deadline=None)
@given(value=DOCUMENTS)
def test_h12_every_value_arrives_unharmed_and_comes_back(same_shell: WinrmPowerShell, value: Json) -> None:
    """H12: quotes, `$`, backticks, semicolons, newlines and letters of all languages are data on their whole way."""
    assert same_shell.call(READS, {"value": value}, timeout=SECONDS) == {"value": value}


@pytest.mark.parametrize("value", ["2026-01-31T10:00:00Z", "/Date(1714650000000)/", "=", "1,5", "true", "", "0012"])
def test_h11_no_text_is_taken_for_anything_else(same_shell: WinrmPowerShell, value: str) -> None:
    """H11: ConvertFrom-Json makes dates of texts that look like one, each edition of others; texts carry a mark."""
    assert same_shell.call(READS, {"value": value}, timeout=SECONDS) == {"value": value}
    request = envelope.request_for(READS, {"value": value})
    sent = base64.b64decode(request.encode().splitlines()[5])
    assert json.loads(sent) == {"value": "=" + value}


@pytest.mark.parametrize("value", [[], [1], [[1]], [None], {"a": [{"b": [{"c": [1]}]}]}, [{}]])
def test_h11_lists_stay_lists_and_nothing_is_cut_at_a_depth(same_shell: WinrmPowerShell, value: Json) -> None:
    """H11: a list of one element is one, however deep."""
    assert same_shell.call(READS, {"value": value}, timeout=SECONDS) == {"value": value}


def test_an_answer_of_5_mb(place: Place, endpoint: WinrmEndpoint) -> None:
    text = "0123456789abcdeä" * (5 * 2**20 // 17)
    endpoint = place.endpoint(lambda name, document, context: {"value": text})
    assert place.shell(endpoint).call(READS, {"value": 1}, timeout=60.0) == {"value": text}
    assert endpoint.requests["Receive"] > 50


def test_h3_a_document_of_any_size_up_to_the_limit(place: Place, endpoint: WinrmEndpoint) -> None:
    """H3: documents don't go on the command line, of which the endpoint takes 8191 characters."""
    text = "x" * (envelope.DOCUMENT_LIMIT - 100)
    assert place.shell(endpoint).call(READS, {"value": text}, timeout=SECONDS) == {"value": text}
    assert endpoint.requests["Send"] > 10


def test_h3_a_document_beyond_the_limit_is_refused_before_anything_is_sent(
    place: Place, endpoint: WinrmEndpoint
) -> None:
    """H3: the size is looked at first."""
    with pytest.raises(LabError, match="too large") as caught:
        place.shell(endpoint).call(READS, {"value": "x" * (envelope.DOCUMENT_LIMIT + 1)}, timeout=SECONDS)
    assert caught.value.kind == "document-too-large"
    assert endpoint.requests == {}


def test_h1_progress_on_stderr_is_no_failure(shell: WinrmPowerShell, endpoint: WinrmEndpoint) -> None:
    """H1: success is what the envelope says; CLIXML beside it means nothing."""
    endpoint.mishaps.progress_on_stderr = 1
    assert shell.call(READS, {"value": 1}, timeout=SECONDS) == {"value": 1}


@pytest.mark.parametrize(
    "before",
    [
        "Übertragung läuft… ".encode("cp850", errors="replace"),
        "Größe: 1,5 MB\r\n".encode("cp1252"),
        b"\xff\xfe\x00garbage",
        b"<labctl 0123>\nbm8=\n</labctl 0123>\n",
        b"<labctl ",
        "Zeichen für Zeichen".encode("utf-16-le"),
    ],
)
def test_h1_what_programs_print_before_the_answer_means_nothing(
    shell: WinrmPowerShell, endpoint: WinrmEndpoint, before: bytes
) -> None:
    """H1, H12: bytes of any code page, even what looks like the answer to another request."""
    endpoint.mishaps.stdout_before.append(before)
    assert shell.call(READS, {"value": "ä"}, timeout=SECONDS) == {"value": "ä"}


@pytest.mark.parametrize(
    ("stdout", "stderr", "code", "says"),
    [
        (b"", b"", 0, "said: nothing"),
        (b"", (CAPTURE / "input.stderr.txt").read_bytes(), 0, "said: nothing"),
        (
            b"",
            b'#< CLIXML\r\n<Objs Version="1.1.0.1"><S S="Error">Get-VM : Zugriff verweigert_x000D__x000A_</S></Objs>',
            0,
            "said: Get-VM : Zugriff verweigert",
        ),
        (b"", "Der Befehl ist falsch geschrieben: höä".encode("cp850"), 1, "exit code 1"),
        ("Kein Speicher mehr".encode("utf-16"), b"", -1, "Kein Speicher mehr"),
    ],
)
def test_h1_no_answer_is_no_success_whatever_the_exit_code(
    shell: WinrmPowerShell, endpoint: WinrmEndpoint, stdout: bytes, stderr: bytes, code: int, says: str
) -> None:
    """H1: exit code 0 with an error, nothing at all, code pages: told by what people can read of it. Capture 98."""
    endpoint.mishaps.instead.append((stdout, stderr, code))
    with pytest.raises(LabError, match="gave no answer") as caught:
        shell.call(READS, {"value": 1}, timeout=SECONDS)
    assert caught.value.kind == "protocol"
    assert says in caught.value.why
    assert shell.call(READS, {"value": 2}, timeout=SECONDS) == {"value": 2}


def test_h1_an_answer_in_utf_16(shell: WinrmPowerShell, endpoint: WinrmEndpoint) -> None:
    """H1: what a host writes whose output was set to UTF-16, mark and all."""
    request = envelope.request_for(READS, {"value": 1})
    answer = envelope.encode_answer(request.number, {"ok": True, "data": ["ä"], "error": None})
    output = envelope.Output(stdout=answer.decode().encode("utf-16"), stderr=b"", exit_code=0)
    assert envelope.read_answer(request, output, where="host hv1") == ["ä"]


def test_an_answer_that_was_cut_is_none(shell: WinrmPowerShell, endpoint: WinrmEndpoint) -> None:
    endpoint.mishaps.instead.append((b"<labctl 0>\neyJvayI6", b"", 0))
    with pytest.raises(LabError, match="gave no answer"):
        shell.call(READS, {"value": 1}, timeout=SECONDS)


def test_a_powershell_that_does_not_start_is_told_by_its_own_words(
    shell: WinrmPowerShell, endpoint: WinrmEndpoint
) -> None:
    """It has ended before it had read anything, so there is no pipe to send to."""
    words = b"'powershell.exe' is not recognized as an internal or external command"
    endpoint.mishaps.instead.append((b"", words, 9009))
    endpoint.mishaps.closed_pipes = 1
    with pytest.raises(LabError, match="gave no answer") as caught:
        shell.call(WRITES, {"value": 1}, timeout=SECONDS)
    assert "is not recognized" in caught.value.why
    assert "9009" in caught.value.why


def test_an_error_of_a_script_comes_with_all_that_windows_said(shell: WinrmPowerShell) -> None:
    with pytest.raises(ScriptError, match="The script echo failed on host hv1") as caught:
        shell.call(WRITES, {"value": "fail"}, timeout=SECONDS)
    error = caught.value
    assert (error.kind, error.why, error.host) == ("not-found", "Es gibt keine VM.", "hv1")
    assert error.detail["id"] == 7
    assert error.detail["category"] == "ObjectNotFound"
    assert error.detail["hresult"] == -1


def test_calls_of_several_threads_each_get_their_own_answer(place: Place, endpoint: WinrmEndpoint) -> None:
    shell = place.shell(endpoint)
    answers: dict[int, Json] = {}

    def call(number: int) -> None:
        answers[number] = shell.call(READS, {"value": number}, timeout=SECONDS)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: {"value": number} for number in range(12)}
    assert endpoint.shells.counts["shells"] <= 3
    shell.close()
    assert len(endpoint.shells) == 0


def test_what_is_closed_while_it_is_busy_is_closed_when_it_has_ended(place: Place, endpoint: WinrmEndpoint) -> None:
    HELD.clear()
    shell = place.shell(endpoint)
    answers: list[Json] = []
    thread = threading.Thread(target=lambda: answers.append(shell.call(WRITES, {"value": "hold"}, timeout=SECONDS)))
    thread.start()
    while not endpoint.scripts["echo"]:
        time.sleep(0.01)
    shell.close()
    HELD.set()
    thread.join()
    assert answers == [{"value": "hold"}]
    assert len(endpoint.shells) == 0
