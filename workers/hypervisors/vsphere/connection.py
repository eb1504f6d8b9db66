"""Sessions with vCenter Servers, or ESXi hosts that stand alone, made in the process that uses them.

Objects of pyvmomi talk through the stub that they came from, so all that every call needs is in the stub here: a peer whose
certificate is checked, a deadline on the socket, a login that is made anew when the session has ended, and what becomes of
a call whose reply is lost. A call that only reads is then made once more; one that changes something never is: it may have
taken effect (`LostReply`). pyvmomi's own `SessionOrientedStub` repeats any call up to four times, and its connections wait
for ever.

Protocol: vSphere Web Services API, https://developer.broadcom.com/xapis/vsphere-web-services-api/latest/.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from http.client import HTTPException
from typing import Any, TypeVar
from xml.parsers.expat import ExpatError

from pyVmomi import SoapStubAdapter, VmomiSupport, vim, vmodl

from labctl.errors import LabError
from labctl.model.lab import Host, Lab, VCenter
from labctl.secrets import resolve
from workers.hypervisors.vsphere.refused import REFUSED
from workers.hypervisors.vsphere.tls import CheckedConnection, Trust

M = TypeVar("M")

FIRST_VERSION = "vim.version.version9"
"""What a server is first spoken to in (vSphere 5.5), until it has said how new it is."""

READS = frozenset(
    {
        "CheckCustomizationSpec",
        "CheckMigrate_Task",
        "CheckRelocate_Task",
        "ContinueRetrievePropertiesEx",
        "CreateContainerView",
        "CreateCollectorForEvents",
        "CurrentTime",
        "DestroyView",
        "Fetch",
        "FetchUserPrivilegeOnEntities",
        "FindByDatastorePath",
        "FindByInventoryPath",
        "FindByUuid",
        "FindChild",
        "HasPrivilegeOnEntities",
        "InitiateFileTransferFromGuest",
        "ListProcessesInGuest",
        "QueryAvailablePerfMetric",
        "QueryConfigOption",
        "QueryConfigOptionEx",
        "QueryDateTime",
        "QueryEvents",
        "QueryNetworkHint",
        "QueryPerf",
        "QueryPerfCounter",
        "QueryPerfProviderSummary",
        "QueryPnicStatus",
        "QueryVMotionCompatibilityEx_Task",
        "RetrieveProperties",
        "RetrievePropertiesEx",
        "SearchDatastore_Task",
        "ValidateMigration",
    }
)
"""Methods that change nothing of the lab. Those left out are taken to change something."""

_WITHOUT_SESSION = frozenset({"RetrieveServiceContent", "Login", "Logout"})


class LostReply(LabError):
    """The connection was lost after a call that changes something was sent: it may have taken effect, or still will.

    The call must not simply be made again: look first for what it makes.
    """


class Connections:
    """The sessions of one driver. Safe to use from several threads; a forked child makes its own."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._sessions: dict[str, Session] = {}
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def host(self, name: str) -> Host:
        """The host of this name. `LabError` (`host-unreachable`) when the lab has none."""
        try:
            return self._lab.hosts[name]
        except KeyError:
            raise LabError(f"The lab has no host {name}.", kind="host-unreachable", host=name) from None

    def vcenter(self, host: str) -> VCenter:
        """The vCenter of a host. `LabError` (`host-unreachable`) when the lab names none for it."""
        try:
            return self._lab.vcenters[self.host(host).vcenter]
        except KeyError:
            raise LabError(
                f"The lab says no vCenter for host {host}.",
                kind="host-unreachable",
                todo=f"Give hosts.{host} a `vcenter` in the lab file.",
                host=host,
            ) from None

    def session(self, host: str) -> Session:
        """The session with the vCenter of a host. Nothing is asked of it yet."""
        vcenter = self.vcenter(host)
        with self._lock:
            sessions = self._own_sessions()
            if vcenter.name not in sessions:
                sessions[vcenter.name] = Session(vcenter)
            return sessions[vcenter.name]

    def close(self) -> None:
        """End the sessions of this process. They are made anew when they are needed again."""
        with self._lock:
            sessions = list(self._own_sessions().values())
            self._sessions = {}
        for session in sessions:
            session.close()

    def _own_sessions(self) -> dict[str, Session]:
        if self._pid != os.getpid():
            # The parent's are its own: ending them here would end them there.
            self._sessions = {}
            self._pid = os.getpid()
        return self._sessions


class Session:
    """One vCenter as this process talks to it, for the whole night. Logs in with the first call that needs it.

    Managed objects that come from it stay valid when it logs in anew. All calls raise `LabError`: `host-unreachable`,
    `tls-untrusted`, `vcenter-login`, `LostReply` (of kind `host-unreachable`); faults of the API are passed on.
    """

    def __init__(self, vcenter: VCenter) -> None:
        self.vcenter = vcenter
        self._stub = _Stub(vcenter)

    @property
    def content(self) -> vim.ServiceInstanceContent:
        """The managers and the root folder of the vCenter."""
        return self._stub.content()

    @property
    def endpoint(self) -> tuple[str, int]:
        """Host and port of the vCenter."""
        return _split(self.vcenter.address)

    @property
    def cookie(self) -> str:
        """What shows other doors of the vCenter whose session this is. A secret. Empty before the first call."""
        return str(self._stub.cookie).partition(";")[0]

    def object(self, kind: Callable[[str, Any], M], identity: str) -> M:
        """The managed object of this identity (`vm-42`), for instance of type `vim.VirtualMachine`. Asks nobody."""
        return kind(identity, self._stub)

    def now(self) -> float:
        """The vCenter's own clock, epoch seconds: what times of its tasks and events are compared with."""
        return float(self._stub.service().CurrentTime().timestamp())

    def close(self) -> None:
        """Log out, if anybody listens."""
        self._stub.close()


class _Stub(SoapStubAdapter):  # type: ignore[misc]
    """pyvmomi's way to a server, with the policy that the module's docstring tells."""

    def __init__(self, vcenter: VCenter) -> None:
        host, port = _split(vcenter.address)
        super().__init__(host=host, port=port, version=FIRST_VERSION)
        self.scheme = CheckedConnection
        self.schemeArgs = {"trust": Trust.of(vcenter)}
        self._vcenter = vcenter
        self._pid = os.getpid()
        self._logging_in = threading.RLock()
        self._content: vim.ServiceInstanceContent | None = None
        self._logins = 0
        self._logged_in = False

    def service(self) -> vim.ServiceInstance:
        """The root of the API."""
        root: vim.ServiceInstance = vim.ServiceInstance("ServiceInstance", self)
        return root

    def content(self) -> vim.ServiceInstanceContent:
        """What the root leads to; asked for once, and with it how new the server is."""
        with self._logging_in:
            if self._content is None:
                content = self.service().RetrieveContent()
                self.ComputeVersionInfo(_newest_version(content.about.apiVersion))
                self._content = content
            return self._content

    def close(self) -> None:
        """Log out and close all connections."""
        with self._logging_in:
            if self._logged_in and self._content is not None:
                # One that is gone needs no logout, and one that can't be reached ends by itself.
                with contextlib.suppress(LabError, vmodl.MethodFault):
                    self._content.sessionManager.Logout()
            self._logged_in = False
        self.DropConnections()

    def InvokeMethod(self, mo: Any, info: Any, args: Any, outerStub: Any = None) -> Any:  # noqa: ANN401, ARG002
        """Make a call, in a session. All of pyvmomi's objects come through here, with properties that they read too."""
        if self._pid != os.getpid():
            raise RuntimeError("An object of vSphere was used in another process than the one that it was made in.")
        name = str(info.wsdlName)
        if name in _WITHOUT_SESSION:
            return self._exchange(name, mo, info, args)
        login = self._ensure_login()
        try:
            answer = self._exchange(name, mo, info, args)
        except vim.fault.NotAuthenticated:
            pass  # it was refused before it did anything, whatever it is
        else:
            if not _is_withheld(answer):
                return answer
        self._login_again(login)
        return self._exchange(name, mo, info, args)

    def GetConnection(self) -> Any:  # noqa: ANN401
        """A connection on which nothing was sent yet that has no answer. One that the server has closed is none."""
        try:
            while True:
                connection = super().GetConnection()
                if connection.is_usable():
                    return connection
                connection.close()
        except (OSError, HTTPException) as error:
            raise unreachable(self._vcenter, error) from error

    def ReturnConnection(self, conn: Any) -> None:  # noqa: ANN401
        """Keep a connection for the next call."""
        conn.rests = True
        super().ReturnConnection(conn)

    def _exchange(self, name: str, mo: Any, info: Any, args: Any) -> Any:  # noqa: ANN401
        try:
            return super().InvokeMethod(mo, info, args)
        except (OSError, HTTPException, ExpatError) as error:
            if name not in READS and name not in _WITHOUT_SESSION:
                raise _lost(self._vcenter, name, error) from error
        try:
            return super().InvokeMethod(mo, info, args)
        except (OSError, HTTPException, ExpatError) as error:
            raise unreachable(self._vcenter, error) from error

    def _ensure_login(self) -> int:
        """Which login this is, counted from 1."""
        with self._logging_in:
            if not self._logged_in:
                self._login()
            return self._logins

    def _login_again(self, login: int) -> None:
        """Log in anew, unless another thread has since the login of this number."""
        with self._logging_in:
            if self._logins == login:
                self._login()

    def _login(self) -> None:
        account = self._vcenter.login
        self._logged_in = False
        manager = self.content().sessionManager
        # A session that still stands in the cookie, whatever became of it, would not be logged in once more.
        self.cookie = ""
        password = resolve(account.password).text.rstrip("\r\n")
        who = self._vcenter.address, account.user, password
        if REFUSED.rests(*who):
            raise self._refused(
                "User and password were refused before; trying them again so soon would lock the account."
            )
        try:
            manager.Login(account.user, password, None)
        except (vim.fault.InvalidLogin, vim.fault.NoPermission) as fault:
            REFUSED.add(*who)
            raise self._refused(said(fault)) from fault
        self._logins += 1
        self._logged_in = True

    def _refused(self, why: str) -> LabError:
        account = self._vcenter.login
        return LabError(
            f"vCenter {self._vcenter.name} ({self._vcenter.address}) doesn't let {account.user} in.",
            kind="vcenter-login",
            why=why,
            todo=f"Check user and {account.password} of vcenters.{self._vcenter.name}; an account may be locked.",
        )


def _is_withheld(answer: Any) -> bool:  # noqa: ANN401
    """Whether an answer of the property collector leaves properties out because nobody is logged in any more: it names the
    objects all the same, instead of a fault."""
    if not isinstance(answer, vmodl.query.PropertyCollector.RetrieveResult):
        return False
    missing = (one.fault for entry in answer.objects for one in entry.missingSet)
    return any(isinstance(fault, vim.fault.NotAuthenticated) for fault in missing)


def said(error: BaseException) -> str:
    """What the library or the server said, in a line."""
    words = str(getattr(error, "msg", "") or "").strip()
    kind = type(error).__name__.removeprefix("vim.fault.").removeprefix("vmodl.fault.")
    if isinstance(error, vmodl.MethodFault):
        return f"{kind}: {words}" if words else kind
    return str(error).strip() or kind


def unreachable(vcenter: VCenter, error: Exception) -> LabError:
    """The error for a vCenter that doesn't answer."""
    return LabError(
        f"vCenter {vcenter.name} ({vcenter.address}) doesn't answer.",
        kind="host-unreachable",
        why=said(error),
        todo=f"Check that it runs, and that https://{vcenter.address}/sdk can be reached from here.",
    )


def _lost(vcenter: VCenter, method: str, error: Exception) -> LostReply:
    return LostReply(
        f"vCenter {vcenter.name} ({vcenter.address}) didn't answer to {method}, which it may have done.",
        kind="host-unreachable",
        why=said(error),
        todo="Look at its recent tasks. labctl looks for what it asked for before it asks again.",
    )


def _split(address: str) -> tuple[str, int]:
    """Host and port of `host`, `host:port`, `[2001:db8::1]` or `[2001:db8::1]:port`."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and not (host.count(":") and not host.endswith("]")):
        return host, int(port)
    return address, 443


def _newest_version(api: str) -> str:
    """pyvmomi's name of the newest version of the API that is no newer than the server's (`8.0.2.0`)."""
    known = {
        _numbers(number): name
        for name, number in VmomiSupport.versionIdMap.items()
        if name.startswith("vim.version.") and number[:1].isdigit() and number.replace(".", "").isdigit()
    }
    return str(known[max((number for number in known if number <= _numbers(api)), default=min(known))])


def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in version.split(".") if part.isdigit()]
    return tuple(numbers + [0] * (4 - len(numbers)))
