# What is true of the host: versions, processor, memory, firmware, network adapters with their drivers and offloads, teams,
# virtual switches. Changes nothing.
#
# In:  nothing
# Out: facts: flat; sizes in bytes, rates in bit/s
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

$facts = @{}
$system = Get-CimInstance -ClassName Win32_OperatingSystem
$computer = Get-CimInstance -ClassName Win32_ComputerSystem
$processors = @(Get-CimInstance -ClassName Win32_Processor)
$bios = Get-CimInstance -ClassName Win32_BIOS
$windows = Get-ItemProperty -LiteralPath 'HKLM:\SOFTWARE\Microsoft\Windows NT\CurrentVersion'

$facts['hostname'] = [System.Net.Dns]::GetHostName()
$facts['windows.name'] = [string] $system.Caption
$facts['windows.version'] = [string] $system.Version
$facts['windows.build'] = [string] $windows.CurrentBuildNumber
if ($windows.PSObject.Properties.Name -contains 'UBR') {
    # The number that updates raise; Windows Server 2012 R2 has none.
    $facts['windows.build'] += ".$($windows.UBR)"
}
$facts['hyperv.module'] = (@(Get-Module -ListAvailable -Name Hyper-V) | ForEach-Object { $_.Version.ToString() } |
        Select-Object -First 1)
$installer = 'HKLM:\SOFTWARE\Microsoft\Windows NT\CurrentVersion\Virtualization\GuestInstaller\Version'
if (Test-Path -LiteralPath $installer) {
    # What the host has for guests that don't get theirs by updates.
    $offered = Get-ItemProperty -LiteralPath $installer
    if ($offered.PSObject.Properties.Name -contains 'Microsoft-Hyper-V-Guest-Installer') {
        $facts['integration_services.offered'] = [string] $offered.'Microsoft-Hyper-V-Guest-Installer'
    }
}
$facts['powershell.version'] = $PSVersionTable.PSVersion.ToString()
$facts['machine'] = "$($computer.Manufacturer) $($computer.Model)".Trim()
$facts['firmware.version'] = [string] $bios.SMBIOSBIOSVersion
$facts['firmware.date'] = if ($bios.ReleaseDate) { $bios.ReleaseDate.ToUniversalTime().ToString('yyyy-MM-dd') } else { $null }
$facts['cpu.model'] = ([string] $processors[0].Name).Trim()
$facts['cpu.vendor'] = [string] $processors[0].Manufacturer
$facts['cpu.sockets'] = [int] $processors.Count
$facts['cpu.count'] = [int] ($processors | Measure-Object -Property NumberOfLogicalProcessors -Sum).Sum
$facts['cpu.mhz'] = [int] $processors[0].MaxClockSpeed
$facts['memory.bytes'] = [long] $computer.TotalPhysicalMemory
$facts['memory.free_bytes'] = [long] $system.FreePhysicalMemory * 1024
$facts['boot.time'] = $system.LastBootUpTime.ToUniversalTime()
$plan = @(Get-CimInstance -Namespace 'root\cimv2\power' -ClassName Win32_PowerPlan -ErrorAction SilentlyContinue |
        Where-Object { $_.IsActive })
$facts['power_plan'] = if ($plan.Count -gt 0) { [string] $plan[0].ElementName } else { $null }
$facts['power_plan.id'] = if ($plan.Count -gt 0) { ([string] $plan[0].InstanceID -replace '^.*\{(.*)\}$', '$1') } else { $null }

$vmHost = Get-VMHost
$facts['numa.spanning'] = [bool] $vmHost.NumaSpanningEnabled
$facts['iov.supported'] = [bool] $vmHost.IovSupport

foreach ($adapter in @(Get-NetAdapter -Physical -ErrorAction SilentlyContinue)) {
    $key = "nic.$($adapter.Name)"
    # Names are patterns to these cmdlets.
    $name = [System.Management.Automation.WildcardPattern]::Escape($adapter.Name)
    $facts["$key.description"] = [string] $adapter.InterfaceDescription
    $facts["$key.driver"] = [string] $adapter.DriverName
    $facts["$key.driver_version"] = [string] $adapter.DriverVersionString
    $facts["$key.driver_date"] = [string] $adapter.DriverDate
    $facts["$key.driver_provider"] = [string] $adapter.DriverProvider
    $facts["$key.link"] = [string] $adapter.Status
    # Without a link, drivers say nothing, or as much as fits into 64 bits.
    $isKnown = $null -ne $adapter.ReceiveLinkSpeed -and $adapter.ReceiveLinkSpeed -lt [long]::MaxValue
    $facts["$key.speed"] = if ($isKnown) { [long] $adapter.ReceiveLinkSpeed } else { $null }
    $facts["$key.mtu"] = [long] $adapter.MtuSize
    foreach ($property in @(Get-NetAdapterAdvancedProperty -Name $name -ErrorAction SilentlyContinue)) {
        # Keywords of NDIS (`*LsoV2IPv4`, `*RSS`, `*JumboPacket`, ...): the same in every language and of every maker.
        if (([string] $property.RegistryKeyword).StartsWith('*')) {
            $keyword = ([string] $property.RegistryKeyword).Substring(1)
            $facts["$key.ndis.$keyword"] = (@($property.RegistryValue) -join ',')
        }
    }
    $vmq = Get-NetAdapterVmq -Name $name -ErrorAction SilentlyContinue
    if ($null -ne $vmq) { $facts["$key.vmq"] = [bool] $vmq.Enabled }
    $iov = Get-NetAdapterSriov -Name $name -ErrorAction SilentlyContinue
    if ($null -ne $iov) { $facts["$key.sriov"] = [bool] $iov.Enabled }
}

$tcp = Get-NetOffloadGlobalSetting -ErrorAction SilentlyContinue
if ($null -ne $tcp) {
    foreach ($name in 'ReceiveSideScaling', 'ReceiveSegmentCoalescing', 'Chimney', 'TaskOffload', 'PacketCoalescingFilter') {
        if ($tcp.PSObject.Properties.Name -contains $name) {
            $facts["offload.$($name.ToLowerInvariant())"] = ([string] $tcp.$name).ToLowerInvariant()
        }
    }
}

# Teams: LBFO of Windows, switch-embedded teams, and those of makers, which show as adapters of their own intermediate driver.
$teaming = @()
foreach ($team in @(Get-NetLbfoTeam -ErrorAction SilentlyContinue)) {
    $teaming += 'lbfo'
    $facts["team.$($team.Name).software"] = 'lbfo'
    $facts["team.$($team.Name).mode"] = $team.TeamingMode.ToString()
    $facts["team.$($team.Name).balancing"] = $team.LoadBalancingAlgorithm.ToString()
    $facts["team.$($team.Name).members"] = (@($team.Members | Sort-Object) -join ', ')
}
foreach ($vmSwitch in @(Get-VMSwitch)) {
    $key = "switch.$($vmSwitch.Name)"
    $facts["$key.type"] = $vmSwitch.SwitchType.ToString()
    $facts["$key.adapter"] = [string] $vmSwitch.NetAdapterInterfaceDescription
    $facts["$key.sriov"] = [bool] $vmSwitch.IovEnabled
    $facts["$key.management"] = [bool] $vmSwitch.AllowManagementOS
    if ($vmSwitch.PSObject.Properties.Name -contains 'EmbeddedTeamingEnabled' -and $vmSwitch.EmbeddedTeamingEnabled) {
        $teaming += 'set'
        $name = [System.Management.Automation.WildcardPattern]::Escape($vmSwitch.Name)
        $team = Get-VMSwitchTeam -Name $name -ErrorAction SilentlyContinue
        $facts["$key.team"] = 'set'
        if ($null -ne $team) {
            $facts["$key.team_members"] = (@($team.NetAdapterInterfaceDescription | Sort-Object) -join ', ')
            $facts["$key.team_balancing"] = $team.LoadBalancingAlgorithm.ToString()
        }
    }
}
foreach ($adapter in @(Get-NetAdapter -ErrorAction SilentlyContinue | Where-Object { $_.Virtual -and -not $_.Hidden })) {
    # hpqteam: HP Network Configuration Utility; iansprotocol, iANSMiniport: Intel ANS; basp: Broadcom BASP/BACS.
    $component = [string] $adapter.ComponentID
    $maker = switch -Regex ($component) {
        'cpqteam|hpqteam' { 'hp-ncu'; break }
        'ians' { 'intel-ans'; break }
        'basp|bcm_virt|b57vlan' { 'broadcom-basp'; break }
        default { '' }
    }
    if ($maker -ne '') {
        $teaming += $maker
        $facts["team.$($adapter.Name).software"] = $maker
        $facts["team.$($adapter.Name).driver_version"] = [string] $adapter.DriverVersionString
    }
}
$facts['teaming'] = if ($teaming.Count -gt 0) { (@($teaming | Sort-Object -Unique) -join ', ') } else { 'none' }

@{ facts = $facts }
