"""Sessions with vCenter, on a simulated one that breaks on order."""

from __future__ import annotations

import multiprocessing
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection

import pytest
from pyVmomi import vim, vmodl

from labctl.errors import LabError
from labctl.model.lab import Login, SecretRef, VCenter
from tests.certificates import make_certificates
from tests.hypervisors.vsphere_guests import done, machines, named, somebody, vcenter_of
from tests.simulators.vcsim import LINUX, VcSim, vcsim
from workers.hypervisors.vsphere import connection, tls
from workers.hypervisors.vsphere.connection import LostReply, Session
from workers.hypervisors.vsphere.inventory import property_of

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def running() -> Iterator[VcSim]:
    """One vCenter for the tests of this file."""
    with vcsim() as vc:
        yield vc


@pytest.fixture
def vc(running: VcSim) -> Iterator[VcSim]:
    """The vCenter, whole again afterwards."""
    yield running
    running.heal()


@pytest.fixture
def session(vc: VcSim) -> Iterator[Session]:
    """A session, logged in."""
    made = Session(vcenter_of(vc))
    made.now()
    yield made
    made.close()


def test_it_logs_in_when_it_is_first_used_and_once(vc: VcSim) -> None:
    before = vc.calls().get("Login", 0)
    session = Session(vcenter_of(vc))
    assert vc.calls().get("Login", 0) == before
    session.now()
    session.now()
    assert vc.calls()["Login"] == before + 1
    session.close()


def test_it_speaks_the_newest_version_that_both_know(session: Session) -> None:
    assert session.content.about.apiVersion == "6.5"
    assert session.content.rootFolder._stub.version == "vim.version.version11"


def test_v1_a_session_that_was_forgotten_is_made_anew_once_and_the_call_made_again(vc: VcSim, session: Session) -> None:
    """V1: also a call that changes something, which was refused before it did anything."""
    machine = named(session, vim.VirtualMachine, LINUX.name)
    for call in (session.now, lambda: done(session, machine.ReconfigVM_Task(spec=vim.vm.ConfigSpec(annotation="x")))):
        before = vc.calls()
        vc.forget_sessions()
        call()
        assert vc.calls()["Login"] == before["Login"] + 1
    assert machine.config.annotation == "x"


def test_v1_properties_that_are_withheld_from_a_session_that_ended_are_asked_for_in_a_new_one(
    vc: VcSim, session: Session
) -> None:
    """V1: the property collector names objects without their properties, and gives no fault."""
    machine = named(session, vim.VirtualMachine, LINUX.name)
    vc.forget_sessions()
    assert property_of(session, machine, "name") == LINUX.name


def test_v1_threads_that_find_the_session_ended_log_in_once(vc: VcSim, session: Session) -> None:
    """V1: all of them at once."""
    before = vc.calls()["Login"]
    vc.forget_sessions()
    threads = [threading.Thread(target=session.now) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert vc.calls()["Login"] == before + 1
    assert session.now() > 0


def test_v1_a_vcenter_that_restarts_is_talked_to_again_by_the_same_objects(vc: VcSim, session: Session) -> None:
    """V1: connections that it closed are not used for a call, else one that changes something would be lost."""
    machine = named(session, vim.VirtualMachine, LINUX.name)
    vc.restart()
    done(session, machine.ReconfigVM_Task(spec=vim.vm.ConfigSpec(annotation="after the restart")))
    assert machine.config.annotation == "after the restart"


def test_v1_a_silent_server_is_given_up(vc: VcSim, monkeypatch: pytest.MonkeyPatch) -> None:
    """V1: a read after two tries, a call that changes something after one, which may have been carried out."""
    monkeypatch.setattr(tls, "CALL_SECONDS", 0.3)
    session = Session(vcenter_of(vc))
    machine = named(session, vim.VirtualMachine, LINUX.name)
    vc.hang("CurrentTime")
    before = vc.calls()
    with pytest.raises(LabError) as caught:
        session.now()
    assert (caught.value.kind, type(caught.value)) == ("host-unreachable", LabError)
    assert vc.calls()["CurrentTime"] == before.get("CurrentTime", 0) + 2
    vc.heal()
    vc.hang("ReconfigVM_Task")
    before = vc.calls()
    with pytest.raises(LostReply):
        machine.ReconfigVM_Task(spec=vim.vm.ConfigSpec(annotation="never"))
    assert vc.calls()["ReconfigVM_Task"] == before.get("ReconfigVM_Task", 0) + 1


def test_v1_a_server_that_accepts_and_says_nothing_is_given_up(vc: VcSim, monkeypatch: pytest.MonkeyPatch) -> None:
    """V1: a black hole for TCP, or a server that hangs before TLS."""
    monkeypatch.setattr(tls, "OPEN_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        vcenter = replace(vcenter_of(vc), address=f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(LabError) as caught:
            Session(vcenter).now()
    assert caught.value.kind == "host-unreachable"
    assert caught.value.todo


def test_v2_a_read_whose_reply_is_lost_is_repeated_once(vc: VcSim, session: Session) -> None:
    """V2: so nobody notices."""
    before = vc.calls()
    vc.cut_reply("CurrentTime")
    assert session.now() > 0
    assert vc.calls()["CurrentTime"] == before["CurrentTime"] + 2


def test_v2_what_changes_something_is_never_repeated(vc: VcSim, session: Session) -> None:
    """V2: though it was carried out, and the connection is fit for the next call."""
    machine = named(session, vim.VirtualMachine, LINUX.name)
    folder = machine.parent
    before = vc.calls()
    vc.cut_reply("CreateFolder")
    with pytest.raises(LostReply) as caught:
        folder.CreateFolder(name="once")
    assert caught.value.kind == "host-unreachable"
    assert vc.calls()["CreateFolder"] == before.get("CreateFolder", 0) + 1
    assert named(session, vim.Folder, "once") is not None
    with pytest.raises(vim.fault.DuplicateName):
        folder.CreateFolder(name="once")


def test_v14_the_authority_of_the_lab_file_is_believed(vc: VcSim) -> None:
    """V14: `ca_file`."""
    assert machines(Session(vcenter_of(vc)))


def test_v14_the_pinned_certificate_is_believed_whoever_signed_it(vc: VcSim) -> None:
    """V14: with colons or without, in any case."""
    pin = ":".join(vc.thumbprint[at : at + 2] for at in range(0, 64, 2)).upper()
    assert machines(Session(replace(vcenter_of(vc), ca_file="", thumbprint=pin)))


@pytest.mark.parametrize(
    "trust", ["nobody", "another authority", "another thumbprint", "another thumbprint and the ca"]
)
def test_v14_a_certificate_that_is_not_the_right_one_is_refused_before_anything_is_sent(
    vc: VcSim, trust: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """V14: never silently believed, and the error says what certificate was shown."""
    vcenter = replace(vcenter_of(vc), ca_file="")
    if trust == "another authority":
        folder = tmp_path_factory.mktemp("other")
        make_certificates(folder)
        vcenter = replace(vcenter, ca_file=str(folder / "ca.pem"))
    if trust.startswith("another thumbprint"):
        vcenter = replace(vcenter, thumbprint="ab" * 32, ca_file=str(vc.ca_file) if "ca" in trust.split() else "")
    before = vc.calls()
    with pytest.raises(LabError) as caught:
        Session(vcenter).now()
    assert caught.value.kind == "tls-untrusted"
    assert vc.thumbprint in caught.value.why
    assert "thumbprint" in caught.value.todo
    assert vc.calls() == before


def test_an_authority_that_cannot_be_read_is_an_error_of_the_lab(vc: VcSim) -> None:
    with pytest.raises(LabError) as caught:
        Session(replace(vcenter_of(vc), ca_file="/nowhere/ca.pem"))
    assert caught.value.kind == "tls-untrusted"
    assert "/nowhere/ca.pem" in caught.value.what


def test_a_wrong_password_is_told_without_telling_it(vc: VcSim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WRONG", "not-the-password")
    vcenter = vcenter_of(vc)
    login = replace(vcenter.login, password=SecretRef(scheme="env", locator="WRONG"))
    with pytest.raises(LabError) as caught:
        Session(replace(vcenter, login=login)).now()
    assert caught.value.kind == "vcenter-login"
    assert "not-the-password" not in str(caught.value)
    assert vc.user in caught.value.what


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("vc.example.com", "vc.example.com", 443),
        ("vc.example.com:8443", "vc.example.com", 8443),
        ("192.0.2.1", "192.0.2.1", 443),
        ("[2001:db8::1]", "[2001:db8::1]", 443),
        ("[2001:db8::1]:8443", "[2001:db8::1]", 8443),
    ],
)
def test_an_address_may_have_a_port(address: str, host: str, port: int) -> None:
    vcenter = VCenter(name="vc", address=address, login=somebodys_login())
    assert Session(vcenter).endpoint == (host, port)


@pytest.mark.parametrize(
    ("api", "version"),
    [
        ("6.5", "vim.version.version11"),
        ("6.0", "vim.version.version10"),
        ("7.0.3.0", "vim.version.v7_0_3_0"),
        ("8.0.2.0", "vim.version.v8_0_2_0"),
        ("8.0.2.7", "vim.version.v8_0_2_0"),
        ("99.0", "vim.version.v9_1_1_0"),
        ("1.0", "vim.version.version1"),
    ],
)
def test_a_server_is_spoken_to_in_no_newer_version_than_its_own(api: str, version: str) -> None:
    assert connection._newest_version(api) == version


def test_a_forked_child_has_sessions_of_its_own(vc: VcSim, session: Session) -> None:
    """An object of the parent's is refused there, since both would read from one connection."""
    here, there = multiprocessing.Pipe()
    machine = named(session, vim.VirtualMachine, LINUX.name)
    child = multiprocessing.get_context("fork").Process(target=_in_a_child, args=(there, machine, vc))
    child.start()
    assert here.poll(30)
    said: tuple[str, bool] = here.recv()
    child.join(30)
    assert said == ("another process", True)
    assert machine.name == LINUX.name


def _in_a_child(answer: Connection, machine: vim.VirtualMachine, vc: VcSim) -> None:
    try:
        said = machine.name
    except RuntimeError as error:
        said = "another process" if "another process" in str(error) else str(error)
    answer.send((said, bool(machines(somebody(vc)))))


def test_a_fault_is_passed_on_as_it_is(vc: VcSim, session: Session) -> None:
    vc.fail("CurrentTime", "RuntimeFault")
    with pytest.raises(vmodl.RuntimeFault):
        session.now()


def somebodys_login() -> Login:
    """A login that nobody tries."""
    return Login(user="user", password=SecretRef(scheme="env", locator="NOBODY"))
