"""PowerShell on Windows machines by WinRM (WS-Management, MS-WSMV). The only room that imports `winrm`.

The way of a call, from the top:

1. `powershell.py`: one call of a script, or a job; what is done again when something breaks, and what never is.
2. `lane.py`: one session with one remote shell, through which one request goes at a time.
3. `session.py`: one message there and back, with its deadline and nothing sent in clear; `access.py` makes it of what the lab
   file says, `refusals.py` keeps passwords from being tried twice.
4. `failures.py`: exceptions of the libraries and fault codes of Windows as errors that say what to do.
"""

from workers.winrm.powershell import WinrmPowerShell

__all__ = ["WinrmPowerShell"]
