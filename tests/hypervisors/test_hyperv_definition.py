"""VMs as documents, notes, paths and answers: what needs no host at all."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.errors import LabError
from labctl.model.lab import Cloning, GuestSystem
from labctl.model.order import VmShape
from tests.simulators.hyperv.lab import DISK, a_lab
from workers.hypervisors.base import OwnershipMark, VmRequest
from workers.hypervisors.hyperv import definition, events, load, storage
from workers.hypervisors.hyperv.answers import Answer
from workers.hypervisors.hyperv.load import Counters

LAB = a_lab("a")
UUID = "0f2c8a52-8f34-4d0e-9a53-0f6cf6f4a001"


def a_request(image: str = "probe", *, passthrough: str = "", **shape: object) -> VmRequest:
    values = {
        "image": image,
        "nic_model": "synthetic",
        "vcpus": 2,
        "memory": 512 * 2**20,
        "queues": 1,
        "machine_type": "q35",
    } | shape
    return VmRequest(
        name="labctl-x",
        uuid=UUID,
        shape=VmShape(**values),  # type: ignore[arg-type]
        image=LAB.images[image],
        network=replace(LAB.network(), vlan=12),
        address=IPv4Interface("192.0.2.20/24"),
        mac="00:15:5d:00:00:1a",
        mark=OwnershipMark(lab=LAB.name, campaign=3, run=5, attempt=7, role="sender", store="here"),
        passthrough=passthrough,
    )


def test_a_disk_of_its_own_is_a_layer_or_a_copy() -> None:
    request = a_request()
    made = definition.document(request, LAB.hosts["a"])
    folder = rf"D:\labctl\labctl-{UUID}"
    assert made["folder"] == folder
    assert made["disk"] == {"parent": DISK, "path": rf"{folder}\disk.vhdx", "differencing": True}
    whole = replace(request, image=replace(request.image, clone=Cloning.FULL, disk=r"E:\old.VHD"))
    assert definition.document(whole, LAB.hosts["a"])["disk"] == {
        "parent": r"E:\old.VHD",
        "path": rf"{folder}\disk.VHD",
        "differencing": False,
    }
    live = definition.document(a_request("iso"), LAB.hosts["a"])
    assert (live["disk"], live["iso"]) == (None, LAB.images["iso"].iso)


def test_the_adapter_is_given_as_hyperv_writes_it() -> None:
    made = definition.document(a_request(), LAB.hosts["a"])
    assert (made["mac"], made["vlan"], made["switch"]) == ("00155D00001A", 12, "data")
    assert definition.common_mac("00155D00001A") == "00:15:5d:00:00:1a"


def test_secure_boot_is_of_the_guests_system() -> None:
    request = a_request()
    assert definition.document(request, LAB.hosts["a"])["secureBoot"] == "linux"
    windows = replace(request, image=replace(request.image, system=GuestSystem.WINDOWS))
    assert definition.document(windows, LAB.hosts["a"])["secureBoot"] == "windows"


@given(st.text() | st.just("x\nlabctl-mark: {}"), st.text(), st.text())
def test_notes_hold_the_mark_whatever_the_names_are(lab: str, role: str, store: str) -> None:
    """H12: names reach the notes as JSON on one line."""
    mark = OwnershipMark(lab=lab, campaign=1, run=2, attempt=3, role=role, store=store)
    text = definition.notes_text(replace(a_request(), mark=mark))
    assert f'"vm": "{UUID}"' in text, "the script that removes looks for this"
    assert definition.read_notes(text) == definition.Notes(uuid=UUID, mark=mark)
    assert definition.read_notes(text.replace("\n", "\r\n")) == definition.Notes(uuid=UUID, mark=mark)


@pytest.mark.parametrize(
    "text",
    ["", "labctl", "labctl-mark: ", "labctl-mark: {}", "labctl-mark: []", 'labctl-mark: {"vm": 1, "campaign": "x"}'],
)
def test_notes_of_others_hold_no_mark(text: str) -> None:
    assert definition.read_notes(text) is None


def test_h10_a_legacy_adapter_is_for_generation_1_only() -> None:
    """H10: refused before anything is made; on generation 1, where it can have no static address by the exchange, with DHCP."""
    host = LAB.hosts["a"]
    with pytest.raises(LabError) as caught:
        definition.check(a_request("probe", nic_model="legacy"), host)
    assert (caught.value.kind, caught.value.host) == ("nic-unsupported", "a")
    assert "generation 2" in caught.value.why
    definition.check(a_request("gen1", nic_model="legacy"), host)


@pytest.mark.parametrize("shape", [{"nic_model": "vmxnet3"}, {"nic_model": "vt-d"}, {"queues": 4}, {"vhost": True}])
def test_what_hyperv_cant_give_is_refused(shape: dict[str, object]) -> None:
    with pytest.raises(LabError) as caught:
        definition.check(a_request(**shape), LAB.hosts["a"])
    assert caught.value.kind == "nic-unsupported"
    assert caught.value.why


@pytest.mark.parametrize(
    ("path", "shared"),
    [
        (r"D:\labctl", False),
        (r"\\server\share\labctl", True),
        (r"C:\ClusterStorage\Volume1\labctl", True),
        (r"c:\clusterstorage\Volume1", True),
        (r"C:\ClusterStorage2\x", False),
    ],
)
def test_shared_storage_is_told_by_its_path(path: str, shared: bool) -> None:
    assert storage.is_shared(path) is shared
    host = replace(LAB.hosts["a"], storage=path)
    assert storage.stays_where_it_is(host, replace(host, name="b", storage=path.lower())) is shared


def test_a_host_without_storage_says_so() -> None:
    with pytest.raises(LabError) as caught:
        storage.folder_of(replace(LAB.hosts["a"], storage=""), UUID)
    assert caught.value.kind == "no-storage"


@pytest.mark.parametrize(
    ("properties", "milliseconds"),
    [
        (("vm", "ID", "0.6"), 600),
        (("vm", "ID", "63,1"), 63100),
        (("vm", "ID", "2"), 2000),
        (("vm", "ID", "soon"), None),
        (("vm", "ID", "-1"), None),
        (("vm", "ID", "nan"), None),
        (("vm", "ID"), None),
    ],
)
def test_h7_the_blackout_is_a_property_whatever_the_language(
    properties: tuple[str, ...], milliseconds: int | None
) -> None:
    """H7: a number of seconds, with a comma where the language has one; what is none is unknown."""
    assert events.blackout_ms(properties) == milliseconds


def test_the_load_is_that_of_the_hypervisors_own_processors() -> None:
    before = Counters(at=0, busy=(0, 0), octets=500)
    after = Counters(at=10_000_000, busy=(10_000_000, 5_000_000), octets=1500)
    assert load.busy_share(before, after) == 0.75
    assert load.rate(before, after) == 8000
    assert load.busy_share(before, before) == load.rate(before, before) == 0
    assert load.rate(after, replace(before, at=20_000_000)) == 0, "counters began anew"


@pytest.mark.parametrize(
    "answer",
    [None, [], {}, {"id": 1}, {"id": None}, {"id": ["x"]}],
)
def test_h11_an_answer_of_another_form_is_an_error(answer: object) -> None:
    """H11: nothing is coerced; a list of one that became its element, or a number that became text, is noticed."""
    with pytest.raises(LabError) as caught:
        Answer(answer, host="a", what="create-vm").text("id")  # type: ignore[arg-type]
    assert (caught.value.kind, caught.value.host) == ("protocol", "a")
    assert "create-vm" in caught.value.what


def test_h11_lists_and_numbers_are_what_they_are() -> None:
    """H11."""
    answer = Answer({"many": "x", "count": "1", "flag": 1, "size": True}, host="a", what="s")
    for read in (
        lambda: answer.texts("many"),
        lambda: answer.whole("count"),
        lambda: answer.flag("flag"),
        lambda: answer.whole("size"),
    ):
        with pytest.raises(LabError):
            read()
