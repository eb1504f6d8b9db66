# Ends commands and all that they have started, and removes their folders when that is asked for.
#
# In:  folders, remove (whether the folders go too)
# Out: ended: how many were still running, left: list of the folders that could not be removed
# Errors: script-failed
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

function Read-Text([string] $Folder, [string] $Name) {
    $path = Join-Path $Folder $Name
    if (Test-Path -LiteralPath $path) {
        return [System.IO.File]::ReadAllText($path)
    }
    return $null
}

$ended = 0
$left = @()
foreach ($folder in $Document.folders) {
    if (-not (Test-Path -LiteralPath $folder)) {
        continue
    }
    # One that is just being started gets a moment to say who it is.
    $clock = [System.Diagnostics.Stopwatch]::StartNew()
    while ($null -eq (Read-Text $folder 'supervisor') -and $clock.Elapsed.TotalSeconds -lt 2) {
        Start-Sleep -Milliseconds 100
    }
    $said = Read-Text $folder 'supervisor'
    if ($null -ne $said -and $null -eq (Read-Text $folder 'code')) {
        $id, $ticks = $said -split ' '
        $process = Get-Process -Id ([int] $id) -ErrorAction SilentlyContinue
        if ($null -ne $process -and $process.StartTime.ToUniversalTime().Ticks -eq [long] $ticks) {
            # Its death closes the job object, and that ends all that is in it, whoever started it.
            $ended += 1
            Stop-Process -InputObject $process -Force -ErrorAction SilentlyContinue
            [void] $process.WaitForExit(5000)
        }
        $command = Read-Text $folder 'pid'
        if ($null -ne $command) {
            $clock = [System.Diagnostics.Stopwatch]::StartNew()
            while ((Get-Process -Id ([int] $command) -ErrorAction SilentlyContinue) -and $clock.Elapsed.TotalSeconds -lt 5) {
                Start-Sleep -Milliseconds 100
            }
        }
        if ($null -eq (Read-Text $folder 'code')) {
            # As taskkill and the task manager have it.
            [System.IO.File]::WriteAllText((Join-Path $folder 'code'), '1')
        }
    }
    if ($Document.remove) {
        Remove-Item -LiteralPath $folder -Recurse -Force -ErrorAction SilentlyContinue
        if (Test-Path -LiteralPath $folder) {
            $left += $folder
        }
    }
}
@{ ended = $ended; left = @($left) }
