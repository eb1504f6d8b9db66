# Makes the folder of a command that is about to be started, private to the user, and removes those that nobody collected.
#
# In:  token (hexadecimal digits), port (that it shall listen on, or null)
# Out: folder (null when it was not made), busy (whether somebody listens on the port already)
# Errors: script-failed
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

if ($null -ne $Document.port) {
    $network = [System.Net.NetworkInformation.IPGlobalProperties]::GetIPGlobalProperties()
    $listeners = @($network.GetActiveTcpListeners()) + @($network.GetActiveUdpListeners())
    if (@($listeners | Where-Object { $_.Port -eq $Document.port }).Count -gt 0) {
        return @{ folder = $null; busy = $true }
    }
}
$base = [System.Environment]::GetFolderPath('LocalApplicationData')
if (-not $base) {
    $base = [System.Environment]::GetFolderPath('CommonApplicationData')
}
$base = Join-Path $base 'labctl-commands'
[void] (New-Item -ItemType Directory -Path $base -Force)
$old = [datetime]::UtcNow.AddDays(-2)
foreach ($left in @(Get-ChildItem -LiteralPath $base -Directory | Where-Object { $_.LastWriteTimeUtc -lt $old })) {
    Remove-Item -LiteralPath $left.FullName -Recurse -Force -ErrorAction SilentlyContinue
}
$folder = Join-Path $base $Document.token
if (Test-Path -LiteralPath $folder) {
    throw "There is a folder $folder already."
}
[void] (New-Item -ItemType Directory -Path $folder)
@{ folder = $folder; busy = $false }
