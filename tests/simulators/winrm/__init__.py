"""A WinRM endpoint for tests: as real on the wire as it can be, with scripts that are run by name and input."""

from tests.simulators.winrm.endpoint import WinrmEndpoint
from tests.simulators.winrm.mishaps import Mishaps
from tests.simulators.winrm.processes import Context, Run, ScriptFailure
from tests.simulators.winrm.shells import Quotas

__all__ = ["Context", "Mishaps", "Quotas", "Run", "ScriptFailure", "WinrmEndpoint"]
