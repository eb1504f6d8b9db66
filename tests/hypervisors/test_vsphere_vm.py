"""VMs that are there: whose they are, where they are, and that nothing of them is left when they are ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pyVmomi import vim

from labctl.errors import LabError
from tests.hypervisors.guests import Guests, guests_of
from tests.hypervisors.vsphere_guests import clone_by_hand, done, machines, named, somebody, vsphere_lab
from tests.simulators.vcsim import HOSTS, VcSim, vcsim
from workers.guard import Deadline
from workers.hypervisors.base import Vm
from workers.hypervisors.vsphere import storage
from workers.hypervisors.vsphere import vm as vms
from workers.hypervisors.vsphere.connection import Session
from workers.hypervisors.vsphere.inventory import Row, property_of

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def running() -> Iterator[VcSim]:
    """One vCenter for the tests of this file, with a host that the lab doesn't have."""
    with vcsim(hosts=(*HOSTS, "esx3.lab.test")) as vc:
        yield vc


@pytest.fixture
def vc(running: VcSim) -> Iterator[VcSim]:
    """The vCenter, whole again afterwards, with nothing in it that was not there before."""
    before = machines(somebody(running))
    yield running
    running.heal()
    assert machines(somebody(running)) == before


@pytest.fixture
def guests(vc: VcSim) -> Iterator[Guests]:
    """VMs on it."""
    with guests_of(vsphere_lab(vc)) as made:
        yield made


def ref_of(session: Session, vm: Vm) -> Any:
    """The VM by hand."""
    return named(session, vim.VirtualMachine, vm.name)


def files_of(session: Session, name: str) -> bool:
    """Whether the datastore has a folder of this name."""
    store = named(session, vim.Datastore, "shared")
    return storage._is_there(session, store, f"[shared] {name}", Deadline.after(30))


def test_v12_nothing_is_left_in_inventory_and_datastore(vc: VcSim, guests: Guests) -> None:
    """V12: both are looked at."""
    session = somebody(vc)
    vm = guests.create()
    assert files_of(session, vm.name)
    guests.driver.destroy(vm)
    assert vm.name not in machines(session)
    assert not files_of(session, vm.name)


def test_v12_files_that_are_left_are_removed(vc: VcSim, guests: Guests) -> None:
    """V12: by nobody else's folder."""
    session = somebody(vc)
    vm = guests.create()
    place = guests.driver._places.host("a")  # type: ignore[attr-defined]
    guests.driver.destroy(vm)
    datacenter = named(session, vim.Datacenter, "dc1")
    for folder in (vm.name, "somebody-elses"):
        session.content.fileManager.MakeDirectory(name=f"[shared] {folder}", datacenter=datacenter)
        path = f"[shared] {folder}/x.vmx"
        storage.remove_folder(place.session, place, path, name=vm.name, deadline=Deadline.after(30))
    assert not files_of(session, vm.name)
    assert files_of(session, "somebody-elses")


@pytest.mark.parametrize(
    ("folder", "name", "ours"),
    [
        ("labctl-x", "labctl-x", True),
        ("labctl-x_1", "labctl-x", True),
        ("labctl-x-sender", "labctl-x", False),
        ("labctl-x_1b", "labctl-x", False),
        ("labctl-x", "labctl-xy", False),
        ("", "labctl-x", False),
        ("other", "other", False),
    ],
)
def test_v12_only_the_folder_of_the_vm_itself_is_removed(folder: str, name: str, ours: bool) -> None:
    """V12: `_1` is what vSphere adds to a name that a folder has already."""
    assert storage._is_of(folder, name) is ours


def test_v12_a_destroy_that_fails_is_told_and_the_vm_is_still_ours(vc: VcSim, guests: Guests) -> None:
    """V12: never taken for done."""
    vm = guests.create()
    vc.fail_task("Destroy_Task", "InvalidState", seconds=0.0)
    with pytest.raises(LabError) as caught:
        guests.driver.destroy(vm)
    assert (caught.value.kind, caught.value.host) == ("vsphere", "a")
    assert vm.name in caught.value.what
    assert [found.uuid for found in guests.driver.owned("a")] == [vm.uuid]
    guests.driver.destroy(vm)


@pytest.mark.parametrize("method", ["PowerOffVM_Task", "Destroy_Task", "DeleteDatastoreFile_Task"])
def test_v2_a_lost_reply_while_it_is_ended_leaves_nothing(vc: VcSim, guests: Guests, method: str) -> None:
    """V2, V12: an end may be asked for once more."""
    vm = guests.create()
    vc.cut_reply(method)
    guests.driver.destroy(vm)
    assert vm.name not in machines(somebody(vc))
    assert not files_of(somebody(vc), vm.name)


def test_v12_a_question_that_is_pending_is_answered(guests: Guests) -> None:
    """V12: with its default; the simulator asks none, so the answer is looked at."""
    answers: list[tuple[str, str]] = []
    choices = [vim.ElementDescription(key=str(number), label="x", summary="x") for number in range(3)]
    question = vim.vm.QuestionInfo(
        id="7",
        text="May it?",
        choice=vim.option.ChoiceOption(choiceInfo=choices, defaultIndex=2, valueIsReadonly=False),
    )

    class Machine:
        def AnswerVM(self, *, questionId: str, answerChoice: str) -> None:
            answers.append((questionId, answerChoice))

    found = vms.Presence(ref=Machine(), name="x", host=None, power="poweredOn", mark=None, files="", question=question)
    assert "May it?" in vms._answer(found)
    assert answers == [("7", "2")]


def test_v12_a_power_off_that_hangs_is_asked_for_its_question(
    vc: VcSim, guests: Guests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V12: which may come up only then; what can't be ended even so is told, and is still there."""
    vm = guests.create()
    answered: list[Any] = []
    read = vms.property_of
    with monkeypatch.context() as patched:
        patched.setattr(vms, "QUESTION_SECONDS", 0.1)
        patched.setattr(vms, "_answer_question", lambda ref, question: answered.append(question))
        patched.setattr(
            vms, "property_of", lambda *what: "the question" if what[2] == "runtime.question" else read(*what)
        )
        vc.fail_task("PowerOffVM_Task", "InvalidState", at=0.9, seconds=1.0)
        with pytest.raises(LabError) as caught:
            guests.driver.destroy(vm)
    assert answered == ["the question"]
    assert caught.value.kind == "vsphere"
    assert guests.driver.locate(vm) == "a"
    guests.driver.destroy(vm)


def test_a_vm_that_somebody_else_removed_is_gone(vc: VcSim, guests: Guests) -> None:
    session = somebody(vc)
    vm = guests.create()
    done(session, ref_of(session, vm).PowerOffVM_Task())
    done(session, ref_of(session, vm).Destroy_Task())
    assert guests.driver.locate(vm) is None
    with pytest.raises(LabError) as caught:
        guests.driver.read_back(vm)
    assert (caught.value.kind, caught.value.host) == ("vm-gone", "a")
    guests.driver.destroy(vm)


def test_a_vm_that_somebody_else_renamed_is_found_and_left_alone(vc: VcSim, guests: Guests) -> None:
    """It may have been taken over: the name is half of the mark."""
    session = somebody(vc)
    vm = guests.create()
    ref = ref_of(session, vm)
    done(session, ref.Rename_Task(newName="kept"))
    try:
        assert guests.driver.locate(vm) == "a"
        assert [(found.name, found.uuid) for found in guests.driver.owned("a")] == [("kept", vm.uuid)]
        with pytest.raises(LabError) as caught:
            guests.driver.destroy(vm)
        assert caught.value.kind == "not-ours"
        assert "renamed it to kept" in caught.value.why
        assert str(ref.runtime.powerState) == "poweredOn"
    finally:
        done(session, ref.Rename_Task(newName=vm.name))


def test_v10_a_vm_that_somebody_else_moved_is_found_where_it_is(vc: VcSim, guests: Guests) -> None:
    """V10: on the other host, in another folder; and also on a host that is none of the lab's."""
    session = somebody(vc)
    vm = guests.create()
    ref = ref_of(session, vm)
    folder = ref.parent.CreateFolder(name="elsewhere")
    try:
        done(session, folder.MoveIntoFolder_Task(list=[ref]))
        vc.drs_move(vm.name, HOSTS[1])
        assert guests.driver.locate(vm) == "b"
        assert [found.uuid for found in guests.driver.owned("b")] == [vm.uuid]
        assert guests.driver.owned("a") == ()
        vc.drs_move(vm.name, "esx3.lab.test")
        with pytest.raises(LabError) as caught:
            guests.driver.locate(vm)
        assert (caught.value.kind, caught.value.host) == ("moved", "a")
        assert "esx3.lab.test" in caught.value.why
        guests.driver.destroy(vm)
        assert vm.name not in machines(session)
    finally:
        done(session, folder.Destroy_Task())


def test_a_copy_that_somebody_makes_is_theirs(vc: VcSim, guests: Guests) -> None:
    """It has the mark, but its instance UUID says that it isn't the VM that was marked."""
    session = somebody(vc)
    vm = guests.create()
    copied = done(session, clone_by_hand(session, "my-copy"))
    try:
        extra = property_of(session, ref_of(session, vm), "config.extraConfig")
        done(session, copied.ReconfigVM_Task(spec=vim.vm.ConfigSpec(extraConfig=extra, annotation="Made by labctl")))
        assert [found.name for host in "ab" for found in guests.driver.owned(host)] == [vm.name]
        guests.driver.destroy(vm)
        assert "my-copy" in machines(session)
        assert guests.driver.locate(vm) is None
    finally:
        done(session, copied.Destroy_Task())


def test_a_vm_whose_uuid_was_changed_is_found_by_its_name_and_its_mark(vc: VcSim, guests: Guests) -> None:
    """vCenters change instance UUIDs that are there twice."""
    session = somebody(vc)
    vm = guests.create()
    spec = vim.vm.ConfigSpec(instanceUuid="11111111-2222-3333-4444-555555555555")
    done(session, ref_of(session, vm).ReconfigVM_Task(spec=spec))
    assert [found.uuid for found in guests.driver.owned("a")] == [vm.uuid]
    assert guests.driver.locate(vm) == "a"
    guests.driver.destroy(vm)
    assert vm.name not in machines(session)


def test_a_vm_of_another_lab_is_not_ended(vc: VcSim, guests: Guests) -> None:
    vm = guests.create()
    other = guests.another_driver(lab=replace(guests.lab, name="another-lab"))
    with pytest.raises(LabError) as caught:
        other.destroy(vm)
    assert caught.value.kind == "not-ours"
    assert "vsphere-tests" in caught.value.why
    other.close()


def test_owned_costs_two_calls_however_many_vms_there_are(vc: VcSim, guests: Guests) -> None:
    vm = guests.create()
    guests.driver.owned("a")
    before = vc.calls()["RetrievePropertiesEx"]
    assert [found.uuid for found in guests.driver.owned("a")] == [vm.uuid]
    assert vc.calls()["RetrievePropertiesEx"] - before == 3, "one for the host itself"


def test_a_paused_vm_is_suspended_and_may_be_paused_again(vc: VcSim, guests: Guests) -> None:
    session = somebody(vc)
    vm = guests.create()
    for _ in range(2):
        guests.driver.pause(vm)
        assert str(ref_of(session, vm).runtime.powerState) == "suspended"
        assert [found.active for found in guests.driver.owned("a")] == [True]
    for _ in range(2):
        guests.driver.unpause(vm)
        assert str(ref_of(session, vm).runtime.powerState) == "poweredOn"
    vc.cut_reply("SuspendVM_Task")
    guests.driver.pause(vm)
    guests.driver.destroy(vm)


def test_a_vm_that_ended_by_itself_runs_nowhere(vc: VcSim, guests: Guests) -> None:
    session = somebody(vc)
    vm = guests.create()
    done(session, ref_of(session, vm).PowerOffVM_Task())
    assert guests.driver.locate(vm) is None
    with pytest.raises(LabError) as caught:
        guests.driver.pause(vm)
    assert caught.value.kind == "vm-gone"
    assert "poweredOff" in caught.value.why


def test_a_vm_of_which_nothing_can_be_read_is_not_taken_for_gone(
    guests: Guests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host is disconnected, so the vCenter has no configuration of it; it is neither gone nor somebody else's."""
    vm = guests.create()
    read = vms.properties

    def away(session: Session, refs: Any, names: Any) -> Any:
        rows = read(session, refs, names)
        kept = ("name", "parent", "runtime.powerState")
        state = {"runtime.connectionState": "disconnected"}
        return [Row(row.ref, {name: row[name] for name in kept} | state) for row in rows]

    with monkeypatch.context() as patched:
        patched.setattr(vms, "properties", away)
        for call in (guests.driver.locate, guests.driver.destroy):
            with pytest.raises(LabError) as caught:
                call(vm)
            assert (caught.value.kind, caught.value.host) == ("host-unreachable", "a")
            assert "disconnected" in caught.value.why
    assert guests.driver.locate(vm) == "a"
