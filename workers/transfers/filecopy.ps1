# One step of a file copy between Windows endpoints, for Windows PowerShell 5.1.
# Arguments: a verb, and the path of a JSON document. Values are read from the document and are never code.
param([string] $Verb, [string] $Path)

$ErrorActionPreference = 'Stop'
$ProgressPreference = 'SilentlyContinue'
$asked = Get-Content -LiteralPath $Path -Raw -Encoding UTF8 | ConvertFrom-Json
$source = Join-Path $asked.folder 'source\file'
$target = Join-Path $asked.folder 'copy\file'
$there = '\\' + $asked.server + '\' + $asked.share
$invariant = [Globalization.CultureInfo]::InvariantCulture

function Get-Line([string] $Name, [string] $File) {
    if (-not (Test-Path -LiteralPath $File)) { return "labctl $Name 0 -" }
    $hash = (Get-FileHash -LiteralPath $File -Algorithm SHA256).Hash.ToLowerInvariant()
    return "labctl $Name $((Get-Item -LiteralPath $File).Length) $hash"
}

function New-Bytes {
    New-Item -ItemType Directory -Force -Path (Split-Path $source) | Out-Null
    $random = [Security.Cryptography.RandomNumberGenerator]::Create()
    $block = New-Object byte[] 1048576
    $stream = [IO.File]::Create($source)
    try {
        for ($left = [long] $asked.size; $left -gt 0; $left -= $block.Length) {
            $random.GetBytes($block)
            $stream.Write($block, 0, [int] [Math]::Min($left, $block.Length))
        }
    } finally { $stream.Dispose() }
    Get-Line 'source' $source
    if ($asked.warm) { [IO.File]::OpenRead($source).CopyTo([IO.Stream]::Null) }
}

function Copy-Bytes {
    $from = Join-Path $asked.folder 'source'
    $to = Join-Path $there 'copy'
    if ($asked.reverse) {
        $from = Join-Path $there 'source'
        $to = Join-Path $asked.folder 'copy'
    }
    $clock = [Diagnostics.Stopwatch]::StartNew()
    'labctl start 0 0.0'
    $code = 0
    if ($asked.method -eq 'robocopy') {
        & robocopy.exe $from $to file /NP /NJH /NDL /NFL /R:0 /W:0
        if ($LASTEXITCODE -ge 8) { $code = $LASTEXITCODE }
    } else {
        Copy-Item -LiteralPath (Join-Path $from 'file') -Destination (Join-Path $to 'file')
    }
    $seconds = $clock.Elapsed.TotalSeconds.ToString('0.000000', $invariant)
    "labctl end $seconds $seconds"
    "labctl code $code"
}

function Add-Share {
    $password = ConvertTo-SecureString -String $asked.password -AsPlainText -Force
    New-LocalUser -Name $asked.user -Password $password -Description 'made by labctl for one transfer' | Out-Null
    $account = $env:COMPUTERNAME + '\' + $asked.user
    New-SmbShare -Name $asked.share -Path $asked.folder -FullAccess $account | Out-Null
    $rights = New-Object Security.AccessControl.FileSystemAccessRule($account, 'Modify', 'ContainerInherit,ObjectInherit', 'None', 'Allow')
    $access = Get-Acl -LiteralPath $asked.folder
    $access.AddAccessRule($rights)
    Set-Acl -LiteralPath $asked.folder -AclObject $access
}

function Remove-Everything {
    $ErrorActionPreference = 'SilentlyContinue'
    Remove-SmbMapping -RemotePath $there -Force
    Remove-SmbShare -Name $asked.share -Force
    Remove-LocalUser -Name $asked.user
    Remove-Item -LiteralPath $asked.folder -Recurse -Force
    Remove-Item -LiteralPath $PSCommandPath -Force
    Remove-Item -LiteralPath $Path -Force
}

switch ($Verb) {
    'folder' {
        foreach ($name in 'source', 'copy') {
            New-Item -ItemType Directory -Force -Path (Join-Path $asked.folder $name) | Out-Null
        }
    }
    'make' { New-Bytes }
    'share' { Add-Share }
    'connect' {
        $account = $asked.server + '\' + $asked.user
        New-SmbMapping -RemotePath $there -UserName $account -Password $asked.password | Out-Null
    }
    'copy' { Copy-Bytes }
    'check' { Get-Line 'copy' $target }
    'remove' { Remove-Everything }
}
