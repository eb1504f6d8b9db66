# What has become of a job.
#
# In:  id (name of the job's folder)
# Out: state: none, running, ended, cancelled, lost; progress: JSON (null: it has said nothing), answer: base64 (null: none)
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

$root = Join-Path ([System.Environment]::GetFolderPath('CommonApplicationData')) 'labctl'
$folder = Join-Path (Join-Path $root 'jobs') $Document.id
$claim = Join-Path $folder 'claim'
if (-not (Test-Path -LiteralPath $claim)) {
    return @{ state = 'none'; progress = $null; answer = $null }
}
if (Test-Path -LiteralPath (Join-Path $folder 'cancelled')) {
    return @{ state = 'cancelled'; progress = $null; answer = $null }
}
$running = $false
try {
    [System.IO.File]::Open($claim, 'Open', 'ReadWrite', 'None').Dispose()
} catch [System.IO.IOException] {
    $running = $true
}
# Read after it was asked whether the process lives: one that has ended meanwhile has left its answer.
$answer = Read-WholeFile (Join-Path $folder 'answer')
$progress = Read-WholeFile (Join-Path $folder 'progress')
$state = if ($null -ne $answer) { 'ended' } elseif ($running) { 'running' } else { 'lost' }
@{ state = $state; progress = $progress; answer = $answer }
