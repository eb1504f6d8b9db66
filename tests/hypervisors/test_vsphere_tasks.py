"""Tasks of vCenter: begun once, waited for no longer than asked, cancelled when nobody wants them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pyVmomi import vim

from labctl.errors import AttemptCancelled, LabError
from tests.hypervisors.vsphere_guests import clone_by_hand, done, machines, named, somebody
from tests.simulators.vcsim import LINUX, VcSim, vcsim
from workers.guard import Deadline, Guard
from workers.hypervisors.vsphere import tasks
from workers.hypervisors.vsphere.connection import LostReply, Session

pytestmark = pytest.mark.services

CLONE = "VirtualMachine.clone"
RECONFIGURE = "VirtualMachine.reconfigure"


@pytest.fixture(scope="module")
def running() -> Iterator[VcSim]:
    """One vCenter for the tests of this file."""
    with vcsim() as vc:
        yield vc


@pytest.fixture
def vc(running: VcSim) -> Iterator[VcSim]:
    """The vCenter, whole again afterwards."""
    before = machines(somebody(running))
    yield running
    running.heal()
    assert machines(somebody(running)) == before


@pytest.fixture
def session(vc: VcSim) -> Session:
    """A session."""
    return somebody(vc)


@pytest.fixture
def template(session: Session) -> Any:
    """A VM that tasks may be about."""
    return named(session, vim.VirtualMachine, LINUX.name)


def slow_clone(vc: VcSim, session: Session) -> Any:
    """A task that takes a minute, and then fails."""
    vc.fail_task("CloneVM_Task", "NoDiskSpace", at=0.9, seconds=60.0)
    return clone_by_hand(session, "slow")


def change(template: Any, text: str) -> Any:
    """What begins a task that takes no time."""
    return lambda: template.ReconfigVM_Task(spec=vim.vm.ConfigSpec(annotation=text))


def test_what_a_task_results_in_is_told_with_its_times(session: Session, template: Any) -> None:
    began = session.now()
    state = tasks.run(
        session, change(template, "x"), entity=template, operation=RECONFIGURE, deadline=Deadline.after(30)
    )
    assert (state.state, state.done, state.over, state.fault) == ("success", True, True, None)
    assert state.queued is not None
    assert state.started is not None
    assert state.ended is not None
    assert began - 1 <= state.queued <= state.started <= state.ended <= session.now() + 1
    assert tasks.look(session.object(vim.Task, state.key)).done, "another process finds it by its key"


def test_v1_a_task_that_is_late_is_cancelled(vc: VcSim, session: Session, template: Any) -> None:
    """V1: by a loop of our own; pyvmomi's would wait for ever."""
    seen: list[int | None] = []
    vc.fail_task("CloneVM_Task", "NoDiskSpace", at=0.9, seconds=60.0)
    with pytest.raises(LabError) as caught:
        tasks.run(
            session,
            lambda: clone_by_hand(session, "slow"),
            entity=template,
            operation=CLONE,
            deadline=Deadline.after(0.3),
        )
    assert caught.value.kind == "task-deadline"
    assert caught.value.todo
    task = slow_clone(vc, session)
    state = tasks.watch(session, task, deadline=Deadline.after(0.3), on_look=lambda state: seen.append(state.progress))
    assert not state.over, "to watch is not to judge"
    assert len(seen) > 1
    ended = tasks.cancel(session, task)
    assert (ended.state, ended.cancelled) == ("error", True)


def test_a_task_that_nobody_wants_any_more_is_cancelled(vc: VcSim, session: Session) -> None:
    guard = Guard()
    task = slow_clone(vc, session)
    stopping = threading.Timer(0.1, lambda: guard.stop("enough"))
    stopping.start()
    with pytest.raises(AttemptCancelled):
        tasks.watch(session, task, deadline=Deadline.after(60), guard=guard)
    stopping.join()
    assert tasks.look(task).cancelled


def test_a_fault_is_raised_as_it_is(vc: VcSim, session: Session) -> None:
    vc.fail_task("CloneVM_Task", "NoDiskSpace", at=0.5, seconds=0.1)
    task = clone_by_hand(session, "never")
    with pytest.raises(vim.fault.NoDiskSpace):
        tasks.require(session, task, operation=CLONE, deadline=Deadline.after(30))
    state = tasks.look(task)
    assert (state.state, state.cancelled) == ("error", False)
    assert "NoDiskSpace" in state.why


def test_v1_a_task_goes_on_over_the_end_of_a_session(vc: VcSim, session: Session) -> None:
    """V1: it is waited for in a new one."""
    task = slow_clone(vc, session)
    logins = vc.calls()["Login"]
    vc.forget_sessions()
    assert tasks.watch(session, task, deadline=Deadline.after(0.2)).state == "running"
    assert vc.calls()["Login"] == logins + 1
    tasks.cancel(session, task)


def test_v1_a_task_that_a_restarted_vcenter_has_forgotten_is_gone(vc: VcSim, session: Session) -> None:
    """V1: and what became of its work is for others to see."""
    task = slow_clone(vc, session)
    vc.restart()
    assert tasks.watch(session, task, deadline=Deadline.after(30)).state == "gone"
    with pytest.raises(LabError) as caught:
        tasks.require(session, task, operation=CLONE, deadline=Deadline.after(30))
    assert caught.value.kind == "task-gone"


def test_v2_a_task_whose_beginning_was_not_answered_is_taken_up(vc: VcSim, session: Session, template: Any) -> None:
    """V2: by the object that it is about, what it does and when it was queued."""
    before = vc.calls().get("ReconfigVM_Task", 0)
    done(session, change(template, "earlier")())
    vc.cut_reply("ReconfigVM_Task")
    task = tasks.begin(session, change(template, "lost"), entity=template, operation=RECONFIGURE)
    assert tasks.require(session, task, operation=RECONFIGURE, deadline=Deadline.after(30)).done
    assert template.config.annotation == "lost"
    assert vc.calls()["ReconfigVM_Task"] == before + 2


def test_v2_on_an_object_that_is_shared_there_must_be_only_one(vc: VcSim, session: Session, template: Any) -> None:
    """V2: else it can't be told which is ours."""
    begun: list[Any] = []

    def lost() -> Any:
        begun.append(slow_clone(vc, session))
        begun.append(slow_clone(vc, session))
        raise LostReply("No answer came.", kind="host-unreachable", why="It was cut.")

    with pytest.raises(LostReply) as caught:
        tasks.begin(session, lost, entity=template, operation=CLONE, shared=True)
    assert "2 tasks" in caught.value.why
    assert set(tasks.in_progress(session, CLONE, names={LINUX.name})) == set(begun)
    assert tasks.begin(session, lost, entity=template, operation=CLONE) == begun[-1], "of its own it is the newest"
    assert tasks.in_progress(session, CLONE, names={"another"}) == ()
    assert tasks.in_progress(session, "VirtualMachine.migrate", names={LINUX.name}) == ()
    for task in begun:
        tasks.cancel(session, task)


def test_v2_a_task_that_never_began_is_not_taken_for_another(session: Session, template: Any) -> None:
    """V2: none was queued since it was asked for."""

    def lost() -> Any:
        raise LostReply("No answer came.", kind="host-unreachable", why="It was cut.")

    with pytest.raises(LostReply) as caught:
        tasks.begin(session, lost, entity=template, operation="VirtualMachine.suspend")
    assert "0 tasks" in caught.value.why


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("VirtualMachine.clone", "VirtualMachine.cloneVm", True),
        ("VirtualMachine.reconfigure", "VirtualMachine.reconfigVm", True),
        ("Folder.createVm", "Folder.createVM_Task", True),
        ("Folder.createVm", "Folder.createCluster", False),
        ("VirtualMachine.powerOn", "VirtualMachine.powerOff", False),
        ("VirtualMachine.migrate", "VirtualMachine.relocate", False),
    ],
)
def test_operations_have_several_names(one: str, other: str, same: bool) -> None:
    assert tasks.same_operation(one, other) is same
