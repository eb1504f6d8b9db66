# Ends a job with all that it has started. Its folder stays for a while, so that it can't be started once more.
#
# In:  id (name of the job's folder)
# Out: state: what it was: none (it has not begun), ended, running
# Errors: job-not-ended
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

$root = Join-Path ([System.Environment]::GetFolderPath('CommonApplicationData')) 'labctl'
$folder = Join-Path (Join-Path $root 'jobs') $Document.id
$claim = Join-Path $folder 'claim'

function Test-JobRuns {
    try {
        [System.IO.File]::Open($claim, 'Open', 'ReadWrite', 'None').Dispose()
        return $false
    } catch [System.IO.IOException] {
        return $true
    }
}

if (-not (Test-Path -LiteralPath $folder)) {
    return @{ state = 'none' }
}
$state = 'running'
try {
    # Whoever comes first has the job: a process that is only starting finds it taken.
    [System.IO.File]::Open($claim, 'CreateNew', 'Write', 'Read').Dispose()
    $state = 'none'
} catch [System.IO.IOException] {
    $null = $_
}
Write-WholeFile (Join-Path $folder 'cancelled') ''
if ($state -eq 'running' -and -not (Test-JobRuns)) {
    $state = 'ended'
}
if ($state -eq 'running') {
    $process = [int] (Read-WholeFile $claim)
    & taskkill.exe /PID $process /T /F | Out-Null
    $until = [DateTime]::UtcNow.AddSeconds(10)
    while (Test-JobRuns) {
        if ([DateTime]::UtcNow -gt $until) {
            Stop-Script -Kind 'job-not-ended' -Message "Process $process goes on after taskkill."
        }
        Start-Sleep -Milliseconds 100
    }
}
foreach ($name in 'request', 'progress', 'answer') {
    Remove-Item -LiteralPath (Join-Path $folder $name) -Force -ErrorAction SilentlyContinue
}
@{ state = $state }
