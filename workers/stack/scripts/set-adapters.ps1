# Sets what drivers are told, the MTU and TCP chimney, and restarts the adapters whose drivers have to read it anew. As a job,
# because the restart cuts connections that go through the adapter.
#
# In:  changes: list of { adapter (name; empty for the system), keyword (or `mtu`, `chimney`), value }
# Out: failed: list of sentences, one for each change that Windows refused
# Errors: script-failed
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

$class = 'HKLM:\SYSTEM\CurrentControlSet\Control\Class\{4D36E972-E325-11CE-BFC1-08002BE10318}'
$netsh = "$env:SystemRoot\System32\netsh.exe"

function Get-Adapter([string] $Name) {
    $found = @(Get-CimInstance -ClassName Win32_NetworkAdapter | Where-Object { [string] $_.NetConnectionID -eq $Name })
    if ($found.Count -ne 1) {
        throw "There are $($found.Count) adapters named $Name."
    }
    return $found[0]
}

function Set-Keyword($Adapter, [string] $Keyword, [string] $Value) {
    foreach ($key in @(Get-ChildItem -LiteralPath $class -ErrorAction SilentlyContinue)) {
        if ([string] $key.GetValue('NetCfgInstanceId') -eq [string] $Adapter.GUID) {
            # Standardised keywords are texts, whatever they hold.
            Set-ItemProperty -LiteralPath $key.PSPath -Name $Keyword -Value $Value -Type String
            return
        }
    }
    throw "$($Adapter.NetConnectionID) has no driver."
}

function Set-Chimney([string] $Value) {
    if (Get-Command -Name 'Set-NetOffloadGlobalSetting' -ErrorAction SilentlyContinue) {
        [void] (Set-NetOffloadGlobalSetting -Chimney $Value)
        return
    }
    [void] (& $netsh interface tcp set global "chimney=$Value")
    if ($LASTEXITCODE -ne 0) {
        throw "netsh ended with exit code $LASTEXITCODE."
    }
}

function Set-Mtu($Adapter, [string] $Value) {
    [void] (& $netsh interface ipv4 set subinterface ([string] $Adapter.InterfaceIndex) "mtu=$Value" 'store=active')
    if ($LASTEXITCODE -ne 0) {
        throw "netsh ended with exit code $LASTEXITCODE."
    }
}

function Restart-Adapter([string] $Name) {
    # Disable and Enable are methods of the class in all versions of Windows; 0 is success, as for all of its kind.
    $adapter = Get-Adapter $Name
    foreach ($method in 'Disable', 'Enable') {
        $said = Invoke-CimMethod -InputObject $adapter -MethodName $method
        if ($said.ReturnValue -ne 0) {
            throw "$method of $Name ended with $($said.ReturnValue)."
        }
    }
    # One that is connected has the status 2; it may be missing for a moment.
    $clock = [System.Diagnostics.Stopwatch]::StartNew()
    do {
        Start-Sleep -Milliseconds 200
        $up = @(Get-CimInstance -ClassName Win32_NetworkAdapter |
                Where-Object { [string] $_.NetConnectionID -eq $Name -and [int] $_.NetConnectionStatus -eq 2 })
    } while ($up.Count -eq 0 -and $clock.Elapsed.TotalSeconds -lt 30)
}

$restart = @()
$failed = @()
foreach ($change in @($Document.changes | Where-Object { $_.keyword -ne 'mtu' })) {
    try {
        if ($change.keyword -eq 'chimney') {
            Set-Chimney $change.value
        } else {
            Set-Keyword (Get-Adapter $change.adapter) $change.keyword $change.value
            if ($change.adapter -notin $restart) {
                $restart += $change.adapter
            }
        }
    } catch {
        $failed += "$($change.adapter) $($change.keyword): $($_.Exception.Message)".Trim()
    }
}
foreach ($name in $restart) {
    try {
        Restart-Adapter $name
    } catch {
        $failed += "${name}: $($_.Exception.Message)"
    }
}
# A restarted adapter has forgotten the MTU that was set before.
foreach ($change in @($Document.changes | Where-Object { $_.keyword -eq 'mtu' })) {
    try {
        Set-Mtu (Get-Adapter $change.adapter) $change.value
    } catch {
        $failed += "$($change.adapter) mtu: $($_.Exception.Message)"
    }
}
@{ failed = @($failed) }
