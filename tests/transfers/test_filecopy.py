"""File copies: what they print is read rightly, what they run is right, and real ones between two namespaces."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.errors import AttemptCancelled, LabError, SystemUnderTestError
from labctl.model.lab import GuestSystem
from labctl.model.order import TransferOrder
from labctl.model.reading import Capture, ErrorKind
from tests.transfers.local import two_namespaces
from tests.values import an_order
from workers.guard import Guard
from workers.journal import Journal
from workers.placing import Placed
from workers.transferring import port_of, roles, transfer
from workers.transfers import copy_scripts
from workers.transfers.base import Process
from workers.transfers.registry import TOOLS

FILECOPY = TOOLS["filecopy"]
ORDER = TransferOrder(
    tool="filecopy", seconds=10.0, interval=1.0, copy="stream", size=5_000_003, medium="ram", cache="warm"
)
COLD = {"medium": "disk", "cache": "cold"}
WINDOWS = replace(
    ORDER,
    copy="robocopy",
    medium="disk",
    sender_system=GuestSystem.WINDOWS,
    receiver_system=GuestSystem.WINDOWS,
)
PLACES = ("/dev/shm", "/var/tmp", "/tmp")
ATTEMPT = 5 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
"""Files are named by the transfer's port, and processes that run tests side by side share them."""
HASH, OTHER = "a1" * 32, "b2" * 32


def _printed(
    *,
    start: str = "1000.5 200.50",
    end: str = "1002.75 202.75",
    code: int = 0,
    copied: str = f"5000 {HASH}",
    stderr: str = "labctl method stream by busybox\n",
) -> Capture:
    text = (
        f"labctl source 5000 {HASH}\nlabctl start {start}\nlabctl end {end}\nlabctl code {code}\nlabctl copy {copied}\n"
    )
    return Capture(stdout=text.encode(), stderr=stderr.encode())


def test_bytes_and_seconds_of_a_copy_with_the_hash_of_its_source() -> None:
    reading = FILECOPY.parse(_printed())
    assert (reading.ok, reading.bytes, reading.seconds, reading.side) == (True, 5000, 2.25, "receiver")
    assert reading.bits_per_second == pytest.approx(5000 * 8 / 2.25)
    assert (reading.tool_version, reading.warnings) == ("stream by busybox", ())


@pytest.mark.parametrize(
    ("day", "seconds", "warnings"),
    [
        ("1007.75", 2.25, ("clock_jump", "coarse_clock")),
        ("998.75", 2.25, ("clock_jump", "coarse_clock")),
        ("1002.%N", 2.25, ("coarse_clock",)),
        ("1002.77", 2.27, ()),
    ],
)
def test_a_clock_that_was_set_makes_no_figure(day: str, seconds: float, warnings: tuple[str, ...]) -> None:
    """The clock since boot can't be set, so it is the one that holds."""
    reading = FILECOPY.parse(_printed(end=f"{day} 202.75"))
    assert (reading.ok, reading.seconds, reading.warnings) == (True, seconds, warnings)


@pytest.mark.parametrize(
    ("capture", "kind"),
    [
        (_printed(copied=f"5000 {OTHER}"), ErrorKind.CORRUPT_DATA),
        (_printed(code=1, copied="100 " + OTHER), ErrorKind.CONNECTION_LOST),
        (_printed(code=1, copied="0 -", stderr="nc: can't connect: Connection refused"), ErrorKind.CONNECT_REFUSED),
        (_printed(code=255, copied="0 -", stderr="ssh: connect to host a port 1: No route to host"), ErrorKind.CONNECT_REFUSED),
        (_printed(code=12, copied=f"17 {OTHER}", stderr="rsync: connection unexpectedly closed"), ErrorKind.CONNECTION_LOST),
        (_printed(code=1, copied="0 -", stderr=""), ErrorKind.NO_DATA),
        (_printed(end="1000.5 200.50"), ErrorKind.NO_DATA),
        (Capture(stdout=b"", exit_code=0), ErrorKind.NO_DATA),
        (Capture(stdout=b"hello"), ErrorKind.UNPARSEABLE),
        (Capture(stdout=f"labctl source 5000 {HASH}\nlabctl start 1 2.00\n".encode()), ErrorKind.TRUNCATED_OUTPUT),
    ],
)  # fmt: skip
def test_what_is_no_whole_copy_is_no_result(capture: Capture, kind: ErrorKind) -> None:
    reading = FILECOPY.parse(capture)
    assert (reading.ok, reading.error_kind, reading.bits_per_second) == (False, kind, None)


@pytest.mark.parametrize("at", range(0, 220, 7))
def test_a_cut_output_is_no_result(at: int) -> None:
    capture = _printed()
    assert not FILECOPY.parse(replace(capture, stdout=capture.stdout.rstrip()[:at])).ok


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"streams": 2}, "one connection"),
        ({"protocol": "udp"}, "TCP only"),
        ({"both": True}, "no direction both"),
        ({"window": 65536}, "socket buffers"),
        ({"rate": 1000}, "limit its rate"),
        ({"omit": 1.0}, "ramp-up"),
        ({"zerocopy": True}, "without copying"),
        ({"family": "ipv6"}, "IPv4 only"),
        ({"cache": "cold"}, "its own page cache"),
        ({"copy": "scp", **COLD}, "can't be made to write"),
        ({"copy": "robocopy"}, "needs Windows"),
        ({"size": 0}, "at least one byte"),
    ],
)
def test_what_it_cant_do_is_said(change: dict[str, object], words: str) -> None:
    assert FILECOPY.unsupported(ORDER) == ""
    assert words in FILECOPY.unsupported(replace(ORDER, **change))  # type: ignore[arg-type]


def test_windows_copies_between_windows_and_from_disk() -> None:
    assert FILECOPY.unsupported(WINDOWS) == ""
    assert "must be disk" in FILECOPY.unsupported(replace(WINDOWS, medium="ram"))
    assert "needs Linux" in FILECOPY.unsupported(replace(WINDOWS, copy="rsync"))


def test_on_windows_values_reach_the_script_in_a_document_only() -> None:
    around = FILECOPY.surroundings(WINDOWS, server="10.0.0.2", port=20_000)
    documents = [json.loads(one.content) for one in around.placings if one.path.endswith(".json")]
    assert [document["share"] for document in documents] == ["labctl-copy-20000"] * 2
    assert documents[0]["password"] == documents[1]["password"]
    steps = (*around.before, *around.after, *around.cleanup)
    commands = [FILECOPY.client_command(WINDOWS, server="10.0.0.2", port=20_000), *(step.argv for step in steps)]
    assert all(documents[0]["password"] not in word and "10.0.0.2" not in word for argv in commands for word in argv)
    assert all(argv[5:7] == ("-File", r"C:\Windows\Temp\labctl-copy-20000.ps1") for argv in commands)
    assert FILECOPY.server_command(WINDOWS, server="10.0.0.2", port=20_000) == ()
    assert {step.at for step in around.cleanup} == set(Process)


def test_passwords_and_keys_are_new_for_each_transfer() -> None:
    for order in (WINDOWS, replace(ORDER, copy="sftp")):
        first, second = (FILECOPY.surroundings(order, server="10.0.0.2", port=20_000) for _ in range(2))
        assert first.placings != second.placings


def test_smb_on_linux() -> None:
    def words(order: TransferOrder) -> str:
        return " ".join(FILECOPY.client_command(order, server="10.0.0.2", port=20_000))

    client = replace(ORDER, copy="smbclient")
    put = "put /dev/shm/labctl-copy-20000-client/source copy"
    assert words(client).endswith(f"labctl - - smbclient //10.0.0.2/copy -N -p 20000 -c {put}")
    assert words(replace(client, reverse=True)).endswith("get source /dev/shm/labctl-copy-20000-client/copy")
    mount = replace(ORDER, copy="smb-mount", **COLD)
    there = "/tmp/labctl-copy-20000-mount"
    assert f"//10.0.0.2/copy {there} guest,port=20000,vers=3.1.1" in words(mount)
    assert f"labctl {there} {there}/copy dd if=/var/tmp/labctl-copy-20000-client/source of={there}/copy" in words(mount)
    around = FILECOPY.surroundings(mount, server="10.0.0.2", port=20_000)
    (config,) = around.placings
    assert b"path = /var/tmp/labctl-copy-20000-server\n" in config.content
    assert b"smb ports = 20000\n" in config.content


# Real ones


@pytest.fixture(scope="module")
def placed() -> Iterator[Placed]:
    with two_namespaces() as found:
        yield found


class _Ports:
    next = 0


def _copied(placed: Placed, asked: TransferOrder) -> tuple[Journal, LabError | None]:
    order = replace(an_order(), transfer=asked)
    journal, _Ports.next = Journal(), _Ports.next + 1
    who = roles(order, placed)
    error = transfer(order, asked, who, journal, Guard(), attempt=ATTEMPT, index=_Ports.next, counted=True)
    assert error is None or isinstance(error, LabError)
    return journal, error


@pytest.mark.services
@pytest.mark.parametrize(
    ("program", "change"),
    [
        ("busybox", {"copy": "stream"}),
        ("busybox", {"copy": "stream", "reverse": True, **COLD}),
        ("busybox", {"copy": "stream", "size": 1}),
        ("scp", {"copy": "scp"}),
        ("sftp", {"copy": "sftp", "reverse": True}),
        ("sftp", {"copy": "sftp", **COLD}),
        ("rsync", {"copy": "rsync", **COLD}),
        ("rsync", {"copy": "rsync", "reverse": True}),
        ("smbd", {"copy": "smbclient"}),
        ("smbd", {"copy": "smbclient", "reverse": True}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_a_real_copy_is_whole_and_leaves_nothing(placed: Placed, program: str, change: dict[str, object]) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    asked = replace(ORDER, **change)  # type: ignore[arg-type]
    journal, error = _copied(placed, asked)
    assert error is None
    (result,) = journal.transfers
    assert (result.reading.ok, result.reading.bytes) == (True, asked.size)
    assert result.reading.seconds is not None
    assert 0 < result.reading.seconds <= result.elapsed + 0.01
    assert result.disagreements == ()
    left = [path for place in PLACES for path in Path(place).glob(f"labctl-copy-{result.port}*")]
    assert left == []


@pytest.mark.services
def test_a_copy_that_was_changed_on_its_way_is_a_result_about_the_system(
    placed: Placed, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = 'printf x | dd of="$1" conv=notrunc 2>/dev/null\n' + copy_scripts.CHECK_FILE
    monkeypatch.setattr(copy_scripts, "CHECK_FILE", damaged)
    order = replace(an_order(), transfer=ORDER)
    journal = Journal()
    error = transfer(order, ORDER, roles(order, placed), journal, Guard(), attempt=ATTEMPT, index=80, counted=True)
    assert isinstance(error, SystemUnderTestError)
    assert error.kind == "corrupt-data"


@pytest.mark.services
def test_a_disk_that_is_none_is_told_before_anything_is_copied(placed: Placed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_scripts, "MAKE_FOLDER", copy_scripts.MAKE_FOLDER.replace('"$1") in', "/dev/shm) in"))
    order = replace(an_order(), transfer=replace(ORDER, medium="disk"))
    with pytest.raises(LabError) as caught:
        transfer(
            order, order.transfer, roles(order, placed), Journal(), Guard(), attempt=ATTEMPT, index=81, counted=True
        )
    assert caught.value.kind == "transfer-setup"
    assert "lies in memory" in caught.value.why


@pytest.mark.services
def test_a_copy_that_was_cancelled_leaves_nothing_either(placed: Placed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing more may be asked of the endpoints, and what waits in them for this cleans up."""

    def cancelled(*_: object) -> bytes:
        raise AttemptCancelled("It was cancelled.")

    monkeypatch.setattr("workers.transferring.run_all", cancelled)
    order, journal = replace(an_order(), transfer=replace(ORDER, copy="sftp")), Journal()
    with pytest.raises(AttemptCancelled):
        transfer(order, order.transfer, roles(order, placed), journal, Guard(), attempt=ATTEMPT, index=82, counted=True)
    assert [path for place in PLACES for path in Path(place).glob(f"labctl-copy-{port_of(ATTEMPT, 82)}*")] == []
