"""What goes wrong with WinRM, as errors that say what to do. Codes: wsmerror.h; faults: MS-WSMV 3.1.4, DSP0226 14.

Two things are asked of a failure beside its message: whether the request may have begun to act, and whether the session or
the shell is of any more use. `Broken` carries both to who decides about another try.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

import requests
from requests_credssp.exceptions import AuthenticationException, NTStatusException
from winrm.exceptions import AuthenticationError, WinRMTransportError, WSManFaultError

from labctl.errors import LabError
from workers.winrm.tickets import TicketRefused

SHELL_GONE = frozenset({2150858843, 2147943418, 995})
"""The shell was closed or timed out (ERROR_WSMAN_UNEXPECTED_SELECTORS); its user's profile was unloaded under it
(ERROR_KEY_DELETED, as pywinrm's and WinRb's users report); its operations were aborted (ERROR_OPERATION_ABORTED)."""

PIPE_CLOSED = frozenset({109, 232, 2147942509, 2147942632})
"""ERROR_BROKEN_PIPE and ERROR_NO_DATA, bare and as HRESULT: the command has ended before it had read its input."""

ACCESS_DENIED = frozenset({5, 2147942405})

BUSY = frozenset({170, 2150858819})
"""ERROR_BUSY, and the plug-in is not ready yet: the service is starting."""


@dataclass(frozen=True, kw_only=True)
class Quota:
    """A limit of WinRM: what it limits, and where it is raised."""

    what: str
    setting: str
    default: str


_SHELLS = Quota(what="open shells of one user", setting="WSMan:\\localhost\\Shell\\MaxShellsPerUser", default="30")
_OPERATIONS = Quota(
    what="operations of one user at once",
    setting="WSMan:\\localhost\\Service\\MaxConcurrentOperationsPerUser",
    default="1500",
)
_PROCESSES = Quota(
    what="processes of one shell", setting="WSMan:\\localhost\\Shell\\MaxProcessesPerShell", default="25"
)
_USERS = Quota(what="users with shells at once", setting="WSMan:\\localhost\\Shell\\MaxConcurrentUsers", default="10")
_MEMORY = Quota(
    what="memory of one shell and its processes, in MB",
    setting="WSMan:\\localhost\\Shell\\MaxMemoryPerShellMB",
    default="1024, and since Windows Server 2012 R2 2147483647",
)
_RATE = Quota(
    what="load that the service takes from one user or from all",
    setting="WSMan:\\localhost\\Service\\MaxConcurrentOperationsPerUser",
    default="1500",
)
_CONNECTIONS = Quota(what="connections", setting="WSMan:\\localhost\\Service\\MaxConnections", default="300")

QUOTAS = {
    2150859173: _SHELLS,  # ERROR_WSMAN_QUOTA_MAX_SHELLS
    2150859236: _SHELLS,  # ..._MAX_SHELLS_PPQ
    2150859238: _SHELLS,  # ..._MAX_PLUGINSHELLS_PPQ
    2150859174: _OPERATIONS,  # ..._MAX_OPERATIONS
    2150859239: _OPERATIONS,  # ..._MAX_PLUGINOPERATIONS_PPQ
    2150859240: _OPERATIONS,  # ..._MAX_OPERATIONS_USER_PPQ
    2150859241: _PROCESSES,  # ..._MAX_COMMANDS_PER_SHELL_PPQ
    2147944216: _PROCESSES,  # HRESULT of ERROR_NOT_ENOUGH_QUOTA: the job object of the shell takes no more processes
    2150859179: _USERS,  # ..._MAX_SHELLUSERS
    2150859237: _USERS,  # ..._MAX_USERS_PPQ
    2147942414: _MEMORY,  # E_OUTOFMEMORY
    2147942408: _MEMORY,  # HRESULT of ERROR_NOT_ENOUGH_MEMORY
    2150859175: _RATE,  # ..._QUOTA_USER
    2150859176: _RATE,  # ..._QUOTA_SYSTEM
    2150859242: _MEMORY,  # ..._MIN_REQUIREMENT_NOT_AVAILABLE_PPQ
    2150858815: _CONNECTIONS,  # ERROR_WSMAN_QUOTA_LIMIT
}


class Broken(Exception):
    """A request that did not get through, and what is known of it."""

    begun = False
    """Whether the script may have begun to act."""

    def __init__(self, error: LabError, *, stale: bool = False, code: int = 0) -> None:
        """`stale`: the session was used before and may just have been too old; `code`: of the fault, if it is one."""
        super().__init__(error.what)
        self.error = error
        self.stale = stale
        self.code = code

    @property
    def shell_gone(self) -> bool:
        """Whether the shell is not there any more."""
        return self.code in SHELL_GONE


def from_exception(problem: Exception, *, where: str, url: str, user: str, host: str) -> LabError:
    """An exception of pywinrm or requests as an error of kind `refused`, `quota`, `timeout`, `unreachable` or `protocol`."""
    if isinstance(problem, PermissionError) or _NOT_OFFERED in str(problem):
        return _of_offer(problem, where=where, host=host)
    if is_refusal(problem):
        return refused_credentials(where=where, user=user, host=host)
    if isinstance(problem, WSManFaultError):
        return _of_fault(problem, where=where, user=user, host=host)
    if type(problem).__module__.startswith(_KERBEROS):
        return _of_kerberos(problem, where=where, url=url, host=host)
    if isinstance(problem, requests.exceptions.SSLError):
        return _of_tls(problem, where=where, url=url, host=host)
    if isinstance(problem, requests.exceptions.ReadTimeout):
        return LabError(f"WinRM on {where} did not answer in time.", kind="timeout", why=url, todo=_LOOK, host=host)
    if isinstance(problem, requests.exceptions.RequestException):
        return LabError(
            f"WinRM on {where} can't be reached.", kind="unreachable", why=_innermost(problem), todo=_LOOK, host=host
        )
    if isinstance(problem, WinRMTransportError):
        return _of_status(problem, where=where, url=url, host=host)
    return LabError(
        f"WinRM on {where} answered something that can't be read.",
        kind="protocol",
        why=f"{type(problem).__name__}: {problem}",
        todo="Look whether a proxy or another service is at that address.",
        host=host,
    )


def refused_credentials(*, where: str, user: str, host: str, again: bool = False) -> LabError:
    """The user or the password is wrong; `again`: it was refused before and was not tried this time."""
    tried = "They were refused before, and are not tried again: that would lock the account." if again else ""
    return LabError(
        f"{where[:1].upper()}{where[1:]} refuses the user {user}.",
        kind="refused",
        why=tried
        or "User or password is wrong, the account is locked, or this way of logging in is switched off there.",
        todo=(
            "Correct the user or the secret in the lab file; a new password is used at once. If the account was locked and "
            "the password is right, restart the worker."
        ),
        host=host,
    )


def is_refusal(problem: Exception) -> bool:
    """Whether credentials were shown and refused."""
    if isinstance(problem, AuthenticationException):
        return _NOT_OFFERED not in str(problem)
    return isinstance(problem, AuthenticationError | NTStatusException | TicketRefused)


def fault_code(problem: Exception) -> int:
    """The code of a fault of WS-Management; 0 when it is none."""
    if not isinstance(problem, WSManFaultError):
        return 0
    return problem.wsman_fault_code or problem.wmierror_code or 0


def _of_fault(problem: WSManFaultError, *, where: str, user: str, host: str) -> LabError:
    code = fault_code(problem)
    said = " ".join(str(problem.reason).split())
    if code in QUOTAS:
        quota = QUOTAS[code]
        return LabError(
            f"WinRM on {where} has reached a quota: {quota.what}.",
            kind="quota",
            why=f"{said} (code {code})",
            todo=f"Raise it there: Set-Item {quota.setting} NUMBER (default: {quota.default}); then Restart-Service WinRM.",
            host=host,
        )
    if code in ACCESS_DENIED:
        return LabError(
            f"{where[:1].upper()}{where[1:]} lets the user {user} in, but doesn't let it work.",
            kind="refused",
            why=f"{said} (code {code})",
            todo=(
                "Make it a member of Administrators there. A local account that isn't the built-in Administrator also needs "
                "LocalAccountTokenFilterPolicy. Another user needs Read and Execute in `winrm configSDDL default`, Remote Enable "
                "and Execute Methods in the WMI namespaces root\\cimv2 and root\\virtualization\\v2, and the group Hyper-V "
                "Administrators."
            ),
            host=host,
        )
    if code in SHELL_GONE or code in BUSY:
        return LabError(
            f"The shell on {where} is gone.", kind="unreachable", why=f"{said} (code {code})", todo=_LOOK, host=host
        )
    return LabError(
        f"WinRM on {where} refused a request.",
        kind="protocol",
        why=f"{said} (code {code}, {problem.fault_subcode})",
        todo="Look into its log: Microsoft-Windows-WinRM/Operational.",
        host=host,
    )


def _of_status(problem: WinRMTransportError, *, where: str, url: str, host: str) -> LabError:
    if problem.code in (502, 503, 504):
        kind, todo = "unreachable", "The service is starting, or too busy; look at Get-Service WinRM there."
    elif problem.code == 404:
        kind, todo = "protocol", "Correct `url` in the lab file: it ends in /wsman."
    else:
        kind, todo = "protocol", "Look whether WinRM itself answers there: winrm enumerate winrm/config/listener."
    return LabError(
        f"WinRM on {where} answered with the HTTP status {problem.code}.", kind=kind, why=url, todo=todo, host=host
    )


def _of_offer(problem: Exception, *, where: str, host: str) -> LabError:
    return LabError(
        f"WinRM on {where} doesn't offer this way of logging in.",
        kind="refused",
        why=str(problem),
        todo="Switch it on there (Get-ChildItem WSMan:\\localhost\\Service\\Auth), or change `transport` in the lab file.",
        host=host,
    )


def _of_kerberos(problem: Exception, *, where: str, url: str, host: str) -> LabError:
    return LabError(
        f"Kerberos brings no login to {where} about.",
        kind="refused",
        why=f"{problem} ({url})",
        todo=(
            "Use the name in `url` that the machine has in its domain: the service is HTTP/NAME (setspn -L NAME). Look at the "
            "clocks too."
        ),
        host=host,
    )


_KERBEROS = "winrm.vendor.requests_kerberos"
"""Can't be imported where the module `kerberos` is not installed."""

_NOT_OFFERED = "being an available authentication method"
"""In the message of requests_credssp when the machine doesn't offer CredSSP."""

_LOOK = "Look whether the machine runs, its WinRM service is started (winrm quickconfig), and the firewall lets labctl through."

_TLS_REASONS = {
    9: ("is not valid yet", "Correct the clock there or here, or renew the certificate."),
    10: ("has expired", "Renew the certificate of its WinRM listener."),
    62: (
        "is for another name",
        "Use the name that is in the certificate as `url` in the lab file, or renew it with this one.",
    ),
    64: ("is for another address", "Use the name that is in the certificate as `url` in the lab file."),
}
"""By the codes of X509_verify_cert_error_string(3)."""
_UNKNOWN = (
    "is of no known authority",
    "Name the authority's certificate as `ca_file` of its winrm in the lab file, or have the system trust it.",
)


def _of_tls(problem: Exception, *, where: str, url: str, host: str) -> LabError:
    cause = _find(problem, ssl.SSLCertVerificationError)
    if cause is None:
        return LabError(
            f"No secure connection to {where} came about.",
            kind="refused",
            why=_innermost(problem),
            todo=f"Look whether WinRM speaks HTTPS at {url}.",
            host=host,
        )
    assert isinstance(cause, ssl.SSLCertVerificationError)
    reason, todo = _TLS_REASONS.get(cause.verify_code, _UNKNOWN)
    return LabError(
        f"The certificate of {where} {reason}.",
        kind="refused",
        why=f"{cause.verify_message} ({url})",
        todo=todo,
        host=host,
    )


def _find(problem: BaseException, kind: type[BaseException]) -> BaseException | None:
    seen: list[BaseException] = [problem]
    for one in seen:
        if isinstance(one, kind):
            return one
        further = [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]
        seen += [next_one for next_one in further if isinstance(next_one, BaseException) and next_one not in seen]
    return None


def _innermost(problem: BaseException) -> str:
    cause = _find(problem, OSError)
    told = problem if cause is None or not str(cause) else cause
    return f"{type(told).__name__}: {told}"
