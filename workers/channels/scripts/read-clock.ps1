# The clock of the system.
#
# In:
# Out: microseconds (since the Unix epoch)
# Errors: script-failed
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

$epoch = New-Object -TypeName datetime -ArgumentList 1970, 1, 1, 0, 0, 0, ([System.DateTimeKind]::Utc)
@{ microseconds = [long] (([datetime]::UtcNow - $epoch).Ticks / 10) }
