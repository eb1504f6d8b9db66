"""Guest operations of VMware Tools in one VM (`GuestOperationsManager`), for the channel that runs commands by them.

Source: vSphere Web Services API, GuestProcessManager, GuestFileManager, and their faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyVmomi import vim, vmodl

from labctl.errors import LabError
from labctl.model.lab import Login
from labctl.secrets import resolve
from workers.channels.base import ChannelError
from workers.hypervisors.vsphere.connection import Session, said
from workers.hypervisors.vsphere.files import TransferError, fetch_guest_file, put_guest_file
from workers.hypervisors.vsphere.inventory import properties

_REFUSALS = (
    vim.fault.InvalidGuestLogin,
    vim.fault.GuestPermissionDenied,
    vim.fault.OperationDisabledByGuest,
    vim.fault.OperationNotSupportedByGuest,
    vmodl.fault.SecurityError,
)
"""Faults that a second try would not mend. `SecurityError` is the base of `NoPermission`."""

_PASSING = (
    vim.fault.GuestOperationsUnavailable,
    vim.fault.InvalidState,
    vim.fault.TaskInProgress,
    vmodl.fault.HostCommunication,
    vmodl.fault.ManagedObjectNotFound,
    vmodl.fault.SystemError,
)
"""Faults of guest operations while a VM boots, moves or is off. Tools that are just going answer with a `SystemError`."""


class GuestTools:
    """The `GuestOperations` (workers.channels.guest_launch) of one VM. Safe to use from several threads."""

    def __init__(
        self, session: Callable[[], Session], machine: Callable[[], vim.VirtualMachine], *, name: str, login: Login
    ) -> None:
        """`session` and `machine` are asked for with each call, `name` is for messages, `login` the guest's user."""
        self._session = session
        self._machine = machine
        self._name = name
        self._login = login
        self._known: tuple[Session, vim.vm.guest.FileManager, vim.vm.guest.ProcessManager] | None = None

    def obstacle(self, *, timeout: float) -> str:  # noqa: ARG002 - calls of the API have a deadline of their own
        """See `GuestOperations.obstacle`."""
        names = ("runtime.powerState", "guest.toolsRunningStatus", "guest.guestOperationsReady")
        with self._errors("ask for the state of VMware Tools"):
            rows = properties(self._session(), (self._machine(),), names)
        if not rows:
            return "vCenter no longer has the VM."
        power, tools, ready = (rows[0][name] for name in names)
        if power != vim.VirtualMachine.PowerState.poweredOn:
            return f"The VM is {power}."
        if ready:
            return ""
        if tools != "guestToolsRunning":
            return f"VMware Tools don't run in it ({tools or 'nothing is known of them'})."
        return "VMware Tools run, but guest operations are not ready yet."

    def make_directory(self, path: str, *, timeout: float) -> None:  # noqa: ARG002
        """See `GuestOperations.make_directory`. Tools make it with mode 0700."""
        with self._errors(f"make the directory {path}"):
            self._files.MakeDirectory(self._machine(), self._login_of_guest(), path, False)

    def remove_directory(self, path: str, *, timeout: float) -> None:  # noqa: ARG002
        """See `GuestOperations.remove_directory`."""
        with self._errors(f"remove the directory {path}"):
            try:
                self._files.DeleteDirectory(self._machine(), self._login_of_guest(), path, True)
            except vim.fault.FileNotFound:
                return

    def put_file(self, path: str, content: bytes, *, timeout: float) -> None:
        """See `GuestOperations.put_file`."""
        with self._errors(f"write {path}"):
            machine = self._machine()
            url = self._files.InitiateFileTransferToGuest(
                vm=machine,
                auth=self._login_of_guest(),
                guestFilePath=path,
                fileAttributes=vim.vm.guest.FileManager.FileAttributes(),
                fileSize=len(content),
                overwrite=True,
            )
            put_guest_file(self._session(), machine, url, content, timeout=timeout)

    def get_file(self, path: str, *, timeout: float) -> bytes | None:
        """See `GuestOperations.get_file`."""
        with self._errors(f"read {path}"):
            machine = self._machine()
            try:
                told = self._files.InitiateFileTransferFromGuest(machine, self._login_of_guest(), path)
            except vim.fault.FileNotFound:
                return None
            return fetch_guest_file(self._session(), machine, told.url, timeout=timeout)

    def start(self, program: str, arguments: str, *, directory: str, timeout: float) -> int:  # noqa: ARG002
        """See `GuestOperations.start`."""
        spec = vim.vm.guest.ProcessManager.ProgramSpec(
            programPath=program, arguments=arguments, workingDirectory=directory
        )
        with self._errors(f"start {program}"):
            return int(self._processes.StartProgram(self._machine(), self._login_of_guest(), spec))

    def lives(self, pid: int, *, timeout: float) -> bool:  # noqa: ARG002
        """See `GuestOperations.lives`. Of processes that have ended Tools tell the end for five minutes."""
        with self._errors(f"look at process {pid}"):
            found = self._processes.ListProcesses(self._machine(), self._login_of_guest(), [pid])
        return any(process.pid == pid and process.endTime is None for process in found)

    @property
    def _files(self) -> vim.vm.guest.FileManager:
        return self._managers()[1]

    @property
    def _processes(self) -> vim.vm.guest.ProcessManager:
        return self._managers()[2]

    def _managers(self) -> tuple[Session, vim.vm.guest.FileManager, vim.vm.guest.ProcessManager]:
        """The managers of a session, asked for once: each of their names would be a call of its own."""
        session = self._session()
        known = self._known
        if known is not None and known[0] is session:
            return known
        manager = session.content.guestOperationsManager
        rows = properties(session, (manager,), ("fileManager", "processManager")) if manager is not None else []
        if not rows:
            raise ChannelError(f"vCenter {session.vcenter.name} has no guest operations.", kind="channel-refused")
        self._known = (session, rows[0]["fileManager"], rows[0]["processManager"])
        return self._known

    def _login_of_guest(self) -> vim.vm.guest.NamePasswordAuthentication:
        return vim.vm.guest.NamePasswordAuthentication(
            username=self._login.user,
            password=resolve(self._login.password).text.rstrip("\r\n"),
            interactiveSession=False,
        )

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Turn what vCenter, Tools and the way there say into errors of a channel."""
        try:
            yield
        except _REFUSALS as fault:
            raise self._refused(what, fault) from fault
        except _PASSING as fault:
            raise self._error(what, said(fault), kind="channel-unreachable") from fault
        except vmodl.MethodFault as fault:
            raise self._error(what, said(fault), kind="command-failed") from fault
        except TransferError as error:
            raise self._error(what, str(error), kind="channel-unreachable") from error
        except LabError as error:
            if error.kind != "host-unreachable":
                raise
            raise self._error(what, f"{error.what} {error.why}", kind="channel-unreachable") from error

    def _refused(self, what: str, fault: vmodl.MethodFault) -> ChannelError:
        if isinstance(fault, vim.fault.InvalidGuestLogin):
            todo = f"Check user {self._login.user} and {self._login.password} (`login` of the image)."
        elif isinstance(fault, vim.fault.NoPermission):
            todo = f"Give the user of labctl the privilege {fault.privilegeId} on the VM."
        elif isinstance(fault, vim.fault.GuestPermissionDenied):
            todo = f"Let user {self._login.user} of the guest (`login` of the image) do that."
        else:
            todo = "Allow guest operations in the guest: see /etc/vmware-tools/tools.conf, [guestoperations] disabled."
        return self._error(what, said(fault), kind="channel-refused", todo=todo)

    def _error(self, what: str, why: str, *, kind: str, todo: str = "") -> ChannelError:
        return ChannelError(f"VMware Tools in vm {self._name} could not {what}.", kind=kind, why=why, todo=todo)
