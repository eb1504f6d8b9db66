# How a command stands, after waiting for a moment of its life.
#
# In:  folder, until (`start`, `port` or `end`), port (or null), seconds (to wait at most), limit (bytes of output to send)
# Out: state (`waiting`: not there yet; `running`; `listening`; `ended`; `died`: without an exit code; `gone`: no such folder),
#      pid, code (null where there is none), out, err (bytes that it has printed), stdout, stderr (base64; null when both
#      together are more than the limit)
# Errors: script-failed
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

function Read-Text([string] $Name) {
    $path = Join-Path $Document.folder $Name
    if (Test-Path -LiteralPath $path) {
        return [System.IO.File]::ReadAllText($path)
    }
    return $null
}

function Read-Shared([string] $Name, [long] $Length) {
    # What a program that still has the file open has written so far.
    $share = [System.IO.FileShare]::ReadWrite -bor [System.IO.FileShare]::Delete
    $stream = [System.IO.File]::Open((Join-Path $Document.folder $Name), 'Open', 'Read', $share)
    try {
        $content = New-Object -TypeName byte[] -ArgumentList $Length
        $filled = 0
        while ($filled -lt $Length) {
            $more = $stream.Read($content, $filled, $Length - $filled)
            if ($more -eq 0) {
                break
            }
            $filled += $more
        }
        return [System.Convert]::ToBase64String($content, 0, $filled)
    } finally {
        $stream.Dispose()
    }
}

function Get-Length([string] $Name) {
    $path = Join-Path $Document.folder $Name
    if (-not (Test-Path -LiteralPath $path)) {
        return [long] 0
    }
    # By a handle: what a folder says of an open file lags behind.
    $share = [System.IO.FileShare]::ReadWrite -bor [System.IO.FileShare]::Delete
    $stream = [System.IO.File]::Open($path, 'Open', 'Read', $share)
    try {
        return $stream.Length
    } finally {
        $stream.Dispose()
    }
}

function Test-Supervisor {
    # Whether it lives; an id is used again, so it is told by its start too.
    $id, $ticks = (Read-Text 'supervisor') -split ' '
    $process = Get-Process -Id ([int] $id) -ErrorAction SilentlyContinue
    return $null -ne $process -and $process.StartTime.ToUniversalTime().Ticks -eq [long] $ticks
}

function Test-Listening {
    $network = [System.Net.NetworkInformation.IPGlobalProperties]::GetIPGlobalProperties()
    $listeners = @($network.GetActiveTcpListeners()) + @($network.GetActiveUdpListeners())
    return @($listeners | Where-Object { $_.Port -eq $Document.port }).Count -gt 0
}

function Get-State {
    if (-not (Test-Path -LiteralPath $Document.folder)) {
        return 'gone'
    }
    if ($null -ne (Read-Text 'code')) {
        return 'ended'
    }
    if ($null -eq (Read-Text 'supervisor')) {
        return 'waiting'
    }
    if (-not (Test-Supervisor)) {
        # It may have written the exit code and ended since.
        if ($null -ne (Read-Text 'code')) {
            return 'ended'
        }
        return 'died'
    }
    if ($null -eq (Read-Text 'pid')) {
        return 'waiting'
    }
    if ($Document.until -eq 'port' -and (Test-Listening)) {
        return 'listening'
    }
    return 'running'
}

$awaited = @{ start = @('waiting'); port = @('waiting', 'running'); end = @('waiting', 'running') }[$Document.until]
$clock = [System.Diagnostics.Stopwatch]::StartNew()
$state = Get-State
while ($state -in $awaited -and $clock.Elapsed.TotalSeconds -lt $Document.seconds) {
    Start-Sleep -Milliseconds 100
    $state = Get-State
}
$process = Read-Text 'pid'
$code = Read-Text 'code'
$out = Get-Length 'out'
$err = Get-Length 'err'
$sent = $out + $err -le $Document.limit
@{
    state  = $state
    pid    = $(if ($null -ne $process) { [long] $process } else { $null })
    code   = $(if ($null -ne $code) { [long] $code } else { $null })
    out    = $out
    err    = $err
    stdout = $(if ($sent -and $state -ne 'gone' -and $out -gt 0) { Read-Shared 'out' $out } elseif ($sent) { '' } else { $null })
    stderr = $(if ($sent -and $state -ne 'gone' -and $err -gt 0) { Read-Shared 'err' $err } elseif ($sent) { '' } else { $null })
}
