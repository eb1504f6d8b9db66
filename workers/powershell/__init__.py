"""PowerShell as data: scripts in files of their own, one JSON document in, one JSON document out.

How a script is written
=======================

Each operation is one file, `PACKAGE/scripts/NAME.ps1`::

    # Renames a VM.
    #
    # In:  id (VMId), name
    # Out: old: the name that it had, adapters: list of the names of its adapters
    # Errors: not-found, name-taken
    param(
        [Parameter(Mandatory = $true)]
        [psobject] $Document
    )

    $vm = @(Get-VM | Where-Object { $_.VMId -eq [guid] $Document.id })
    if ($vm.Count -ne 1) {
        Stop-Script -Kind 'not-found' -Message "The host has no VM $($Document.id)."
    }
    ...
    @{ old = $old; adapters = @($adapters | ForEach-Object { [string] $_.Name }) }

- **The header** names every key of the document (`In:`), every key of the answer (`Out:`) and every kind of error
  (`Errors:`). `tests/powershell/test_scripts.py` holds the script to it. A kind is one word in lower case with hyphens.
- **The document** arrives decoded. Every key that a script reads is always there, null for none, because scripts run in
  strict mode. Lists are lists, with one element or none too. Texts are texts: nothing is taken for a date. Whole numbers
  have 64 bits. Values are data: a script never makes script text, a filter or a query of them (`Invoke-Expression`,
  `[scriptblock]::Create`, `-Filter "Name='$name'"` are refused by the test); `-LiteralPath` rather than `-Path`.
- **The answer** is the one object (hashtable or `[pscustomobject]`) that the script puts out; whatever else it would put
  out goes to `[void] (...)`. It holds texts, numbers, `$true`, `$false`, `$null`, lists (written `@(...)`, so that one element
  stays a list) and objects of those. Enums become their names, `[datetime]` ISO 8601 in UTC, `[timespan]` seconds, `[guid]`,
  `[version]` and addresses text. Anything else is an error: what is wanted of it is named key by key.
- **Errors**: `Stop-Script -Kind 'not-found' -Message '...' [-Detail @{ ... }]` ends the script; so does every error of a
  cmdlet (`$ErrorActionPreference` is `Stop`), as kind `script-failed`, with its message, `id`, `category`, `position` and
  `hresult`. Who must tell errors apart asks `$_.FullyQualifiedErrorId` or `$_.Exception.HResult`, never the message, which is
  in the language of Windows.
- **Progress** of a job: `Write-JobProgress @{ percent = 40 }`, at most once a second. Nothing happens outside of a job.
- **It runs in** Windows PowerShell 5.1 (Windows Server 2012 R2 with WMF 5.1, and later) and in PowerShell 7: no `??`,
  `?:`, `&&`, `ConvertTo-Json -AsArray`, `Get-WmiObject`. The culture is the invariant one. Each call is a process of its own,
  so nothing is left of the one before.
- **Files** come and go as base64 in pieces: a document has at most `envelope.DOCUMENT_LIMIT` bytes. Answers of several MB
  are fine.

How it gets there and back
==========================

`envelope.py` makes of a script and its document one request, lines of ASCII, and reads the answer out of whatever comes
back. `prelude.ps1` is sent with each script: it decodes the request, runs the script and makes the answer. `bootstrap.ps1` is
all that stands on a command line. `jobs.py` with the scripts of this package is for what takes longer than a call may.
"""
