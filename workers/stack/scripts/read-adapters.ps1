# The network adapters of a guest, or of a host under its test network, with what their drivers are told; and the system.
#
# By CIM and by the registry, where drivers read their settings (standardised INF keywords such as *LsoV2IPv4), because both are
# there in every Windows. What drivers have made of them is asked of Get-NetAdapter* where those are: Windows 8 and later.
#
# In:  mac (of a guest's adapter, with colons, or null), switch, address (of a host, or null), keywords, tool (or null)
# Out: adapters: list of { name, index, description, pnp, mac, up, speed (bit/s or null), mtu, addresses, driver, driver_version,
#      driver_date, driver_provider, settings: list of { keyword, value, choices }, actual: { lso, ... } as far as known },
#      chimney (null where Windows has none), windows, build, integration_services, tools, tool (its version), power_plan
# Errors: script-failed
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

$class = 'HKLM:\SYSTEM\CurrentControlSet\Control\Class\{4D36E972-E325-11CE-BFC1-08002BE10318}'

function Get-Value($Path, [string] $Name) {
    # A value of the registry as text; null where there is none.
    if (-not (Test-Path -LiteralPath $Path)) {
        return $null
    }
    $key = Get-Item -LiteralPath $Path
    $value = $key.GetValue($Name)
    if ($null -eq $value) {
        return $null
    }
    return [string] (@($value)[0])
}

function Test-Command([string] $Name) {
    return $null -ne (Get-Command -Name $Name -ErrorAction SilentlyContinue)
}

function Get-ClassKey([string] $Guid) {
    foreach ($key in @(Get-ChildItem -LiteralPath $class -ErrorAction SilentlyContinue)) {
        if ([string] $key.GetValue('NetCfgInstanceId') -eq $Guid) {
            return $key.PSPath
        }
    }
    return $null
}

function Get-Settings($Key) {
    # A keyword that was never set has the default that its driver's INF has named.
    foreach ($keyword in $Document.keywords) {
        $parameter = Join-Path (Join-Path $Key 'Ndi\params') $keyword
        $value = Get-Value $Key $keyword
        if ($null -eq $value) {
            $value = Get-Value $parameter 'default'
        }
        if ($null -ne $value) {
            $choices = @()
            $enumeration = Join-Path $parameter 'enum'
            if (Test-Path -LiteralPath $enumeration) {
                $choices = @((Get-Item -LiteralPath $enumeration).GetValueNames())
            }
            @{ keyword = $keyword; value = $value; choices = @($choices) }
        }
    }
}

function Test-Any($Object, [string[]] $Names) {
    # Whether one of these is true; null where the object has none of them.
    $found = @($Names | Where-Object { $null -ne $Object.PSObject.Properties[$_] })
    if ($found.Count -eq 0) {
        return $null
    }
    return @($found | Where-Object { $Object.$_ }).Count -gt 0
}

function Get-Actual([string] $Name) {
    # What the driver has made of its settings.
    $actual = @{}
    $wanted = [System.Management.Automation.WildcardPattern]::Escape($Name)
    if (Test-Command 'Get-NetAdapterLso') {
        foreach ($lso in @(Get-NetAdapterLso -Name $wanted -ErrorAction SilentlyContinue)) {
            $actual['lso'] = Test-Any $lso 'IPv4Enabled', 'IPv6Enabled'
            $actual['lsov1'] = Test-Any $lso 'V1IPv4Enabled'
        }
    }
    if (Test-Command 'Get-NetAdapterRss') {
        foreach ($rss in @(Get-NetAdapterRss -Name $wanted -ErrorAction SilentlyContinue)) {
            $actual['rss'] = Test-Any $rss 'Enabled'
        }
    }
    if (Test-Command 'Get-NetAdapterRsc') {
        foreach ($rsc in @(Get-NetAdapterRsc -Name $wanted -ErrorAction SilentlyContinue)) {
            $actual['rsc'] = Test-Any $rsc 'IPv4Enabled', 'IPv6Enabled'
        }
    }
    if (Test-Command 'Get-NetAdapterVmq') {
        foreach ($vmq in @(Get-NetAdapterVmq -Name $wanted -ErrorAction SilentlyContinue)) {
            $actual['vmq'] = Test-Any $vmq 'Enabled'
        }
    }
    return $actual
}

function Get-SaidVersion([string] $Program) {
    # The first line that a program says of its version, on whichever stream: stderr is no error here.
    $ErrorActionPreference = 'Continue'
    $said = @(& $Program '--version' 2>&1 | ForEach-Object { [string] $_ } | Where-Object { $_ })
    if ($said.Count -gt 0) {
        return $said[0]
    }
    return 'unknown'
}

function Get-Mtu([int] $Index) {
    # The words of netsh are in the language of Windows; the numbers stand first: index, metric, MTU.
    foreach ($line in @(& "$env:SystemRoot\System32\netsh.exe" interface ipv4 show interfaces)) {
        if ($line -match '^\s*(\d+)\s+(\d+)\s+(\d+)\s' -and [int] $Matches[1] -eq $Index) {
            return [long] $Matches[3]
        }
    }
    return $null
}

function Get-PrefixLength([string] $Mask) {
    if ($Mask -notmatch '\.') {
        return [int] $Mask
    }
    $bits = 0
    foreach ($byte in ([System.Net.IPAddress]::Parse($Mask)).GetAddressBytes()) {
        $bits += ([System.Convert]::ToString($byte, 2)).Replace('0', '').Length
    }
    return $bits
}

function Get-UnderNetwork {
    # Interface descriptions of what a virtual switch is bound to (members of teams too), and of what has the host's address.
    if ($null -ne $Document.switch -and (Test-Command 'Get-VMSwitch')) {
        $name = [System.Management.Automation.WildcardPattern]::Escape($Document.switch)
        foreach ($switch in @(Get-VMSwitch -Name $name -ErrorAction SilentlyContinue)) {
            # The second is of Windows Server 2016 and later, for switches with several adapters.
            $bounds = @(foreach ($property in 'NetAdapterInterfaceDescription', 'NetAdapterInterfaceDescriptions') {
                    if ($null -ne $switch.PSObject.Properties[$property]) {
                        @($switch.$property)
                    }
                })
            foreach ($bound in @($bounds | Where-Object { $_ })) {
                [string] $bound
                if (Test-Command 'Get-NetLbfoTeamMember') {
                    $teams = @(Get-NetLbfoTeamNic -ErrorAction SilentlyContinue | Where-Object { $_.InterfaceDescription -eq $bound })
                    foreach ($team in $teams) {
                        $of = @(Get-NetLbfoTeamMember -ErrorAction SilentlyContinue | Where-Object { $_.Team -eq $team.Team })
                        @($of | ForEach-Object { [string] $_.InterfaceDescription })
                    }
                }
            }
        }
    }
}

$configurations = @{}
foreach ($configuration in @(Get-CimInstance -ClassName Win32_NetworkAdapterConfiguration)) {
    $configurations[[int] $configuration.Index] = $configuration
}
$under = @(Get-UnderNetwork)
$adapters = @(foreach ($adapter in @(Get-CimInstance -ClassName Win32_NetworkAdapter)) {
        if (-not $adapter.NetConnectionID) {
            continue
        }
        $configuration = $configurations[[int] $adapter.Index]
        $mine = $false
        if ($null -ne $Document.mac) {
            $mine = [string] $adapter.MACAddress -eq $Document.mac
        } else {
            $mine = [string] $adapter.Name -in $under
            if ($null -ne $Document.address -and $null -ne $configuration -and $null -ne $configuration.IPAddress) {
                $mine = $mine -or $Document.address -in @($configuration.IPAddress)
            }
        }
        if (-not $mine) {
            continue
        }
        $addresses = @()
        if ($null -ne $configuration -and $null -ne $configuration.IPAddress) {
            $addresses = @(for ($at = 0; $at -lt $configuration.IPAddress.Count; $at++) {
                    "$($configuration.IPAddress[$at])/$(Get-PrefixLength ([string] $configuration.IPSubnet[$at]))"
                })
        }
        $key = Get-ClassKey ([string] $adapter.GUID)
        $settings = @()
        if ($null -ne $key) {
            $settings = @(Get-Settings $key)
        }
        @{
            name            = [string] $adapter.NetConnectionID
            index           = [long] $adapter.InterfaceIndex
            description     = [string] $adapter.Name
            pnp             = [string] $adapter.PNPDeviceID
            mac             = [string] $adapter.MACAddress
            up              = ([int] $adapter.NetConnectionStatus -eq 2)
            speed           = $(if ($adapter.Speed -gt 0 -and $adapter.Speed -lt [long]::MaxValue) { [long] $adapter.Speed } else { $null })
            mtu             = (Get-Mtu ([int] $adapter.InterfaceIndex))
            addresses       = @($addresses)
            driver          = [string] $adapter.ServiceName
            driver_version  = $(if ($null -ne $key) { Get-Value $key 'DriverVersion' } else { $null })
            driver_date     = $(if ($null -ne $key) { Get-Value $key 'DriverDate' } else { $null })
            driver_provider = $(if ($null -ne $key) { Get-Value $key 'ProviderName' } else { $null })
            settings        = @($settings)
            actual          = (Get-Actual ([string] $adapter.NetConnectionID))
        }
    })

$chimney = $null
if (Test-Command 'Get-NetOffloadGlobalSetting') {
    $system = @(Get-NetOffloadGlobalSetting)[0]
    if ($null -ne $system.PSObject.Properties['Chimney']) {
        $chimney = ([string] $system.Chimney).ToLowerInvariant()
    }
} else {
    # Windows 7 and Windows Server 2008 R2: automatic where nobody has said on or off.
    $set = Get-Value 'HKLM:\SYSTEM\CurrentControlSet\Services\Tcpip\Parameters' 'EnableTCPChimney'
    $chimney = $(if ($set -eq '0') { 'disabled' } elseif ($set -eq '1') { 'enabled' } else { 'automatic' })
}

$version = $null
if ($null -ne $Document.tool) {
    $name = [System.Management.Automation.WildcardPattern]::Escape($Document.tool)
    $found = @(Get-Command -Name $name -CommandType Application -ErrorAction SilentlyContinue)
    if ($found.Count -gt 0) {
        $version = [System.Diagnostics.FileVersionInfo]::GetVersionInfo($found[0].Path).FileVersion
        if (-not $version) {
            # Programs for Cygwin have no version of Windows' kind, and say it themselves.
            $version = Get-SaidVersion $found[0].Path
        }
    }
}

$current = 'HKLM:\SOFTWARE\Microsoft\Windows NT\CurrentVersion'
$build = Get-Value $current 'CurrentBuild'
$revision = Get-Value $current 'UBR'
if ($null -ne $revision) {
    $build = "$build.$revision"
}
$tools = $null
$daemon = Join-Path $env:ProgramFiles 'VMware\VMware Tools\vmtoolsd.exe'
if (Test-Path -LiteralPath $daemon) {
    $tools = [System.Diagnostics.FileVersionInfo]::GetVersionInfo($daemon).FileVersion
}
$plan = @(Get-CimInstance -Namespace 'root\cimv2\power' -ClassName Win32_PowerPlan -ErrorAction SilentlyContinue |
    Where-Object { $_.IsActive } | ForEach-Object { [string] $_.ElementName })
@{
    adapters             = @($adapters)
    chimney              = $chimney
    windows              = (Get-Value $current 'ProductName')
    build                = $build
    integration_services = (Get-Value 'HKLM:\SOFTWARE\Microsoft\Virtual Machine\Auto' 'IntegrationServicesVersion')
    tools                = $tools
    tool                 = $version
    power_plan           = $(if ($plan.Count -gt 0) { $plan[0] } else { $null })
}
