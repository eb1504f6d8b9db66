# Cmdlets of Windows for a real PowerShell elsewhere: with their own parameter sets, as far as the scripts of
# `workers.hypervisors.hyperv` use them. They do nothing themselves: a simulated host does it, which `LABCTL_HYPERV` says
# (address:port/name of the host). What each returns is made by `tests/simulators/hyperv/cmdlets.py`.
Set-StrictMode -Version 3.0
$ErrorActionPreference = 'Stop'

function Invoke-Simulator([string] $Cmdlet, [System.Collections.IDictionary] $Arguments = @{}) {
    $at, $simulated = $env:LABCTL_HYPERV -split '/', 2
    $address, $port = $at -split ':', 2
    $client = New-Object -TypeName System.Net.Sockets.TcpClient -ArgumentList $address, ([int] $port)
    try {
        $stream = $client.GetStream()
        $request = ConvertTo-Json -Compress -Depth 8 @{ host = $simulated; cmdlet = $Cmdlet; arguments = $Arguments }
        $bytes = [System.Text.Encoding]::UTF8.GetBytes("$request`n")
        $stream.Write($bytes, 0, $bytes.Length)
        $reader = New-Object -TypeName System.IO.StreamReader -ArgumentList $stream, ([System.Text.Encoding]::UTF8)
        $answer = ConvertFrom-Json $reader.ReadToEnd()
    } finally {
        $client.Close()
    }
    if ($null -ne $answer.error) {
        throw (New-Object -TypeName System.InvalidOperationException -ArgumentList ([string] $answer.error))
    }
    $answer.objects
}

function Get-VM {
    [CmdletBinding(DefaultParameterSetName = 'Name')]
    param(
        [Parameter(ParameterSetName = 'Name', Position = 0)] [string] $Name = '',
        [Parameter(ParameterSetName = 'Id', Mandatory = $true)] [guid] $Id
    )
    $wanted = if ($PSCmdlet.ParameterSetName -eq 'Id') { $Id.ToString() } else { '' }
    Invoke-Simulator 'Get-VM' @{ name = $Name; id = $wanted }
}

function New-VM {
    [CmdletBinding(DefaultParameterSetName = 'No VHD')]
    param(
        [Parameter(Position = 0)] [string] $Name,
        [Parameter(Position = 1)] [long] $MemoryStartupBytes = 536870912,
        [Parameter(ParameterSetName = 'No VHD')] [switch] $NoVHD,
        [Parameter(ParameterSetName = 'Existing VHD', Mandatory = $true)] [string] $VHDPath,
        [Parameter(ParameterSetName = 'New VHD', Mandatory = $true)] [string] $NewVHDPath,
        [Parameter(ParameterSetName = 'New VHD', Mandatory = $true)] [uint64] $NewVHDSizeBytes,
        [string] $SwitchName,
        [string] $Path,
        [ValidateSet(1, 2)] [int16] $Generation = 1
    )
    Invoke-Simulator 'New-VM' @{ name = $Name; memory = $MemoryStartupBytes; path = $Path; generation = $Generation }
}

function Set-VM {
    [CmdletBinding()]
    param(
        [Parameter(Mandatory = $true, Position = 0)] $VM,
        [string] $Notes,
        [ValidateSet('Nothing', 'StartIfRunning', 'Start')] [string] $AutomaticStartAction,
        [ValidateSet('TurnOff', 'Save', 'ShutDown')] [string] $AutomaticStopAction,
        [ValidateSet('Disabled', 'Production', 'ProductionOnly', 'Standard')] [string] $CheckpointType
    )
    if ($PSBoundParameters.ContainsKey('Notes')) {
        Invoke-Simulator 'Set-VM' @{ vm = $VM.VMId; notes = $Notes }
    }
}

function Start-VM {
    param([Parameter(Mandatory = $true)] $VM)
    Invoke-Simulator 'Start-VM' @{ vm = $VM.VMId }
}
function Suspend-VM {
    param([Parameter(Mandatory = $true)] $VM)
    Invoke-Simulator 'Suspend-VM' @{ vm = $VM.VMId }
}
function Resume-VM {
    param([Parameter(Mandatory = $true)] $VM)
    Invoke-Simulator 'Resume-VM' @{ vm = $VM.VMId }
}
function Stop-VM {
    param([Parameter(Mandatory = $true)] $VM, [switch] $TurnOff, [switch] $Force)
    Invoke-Simulator 'Stop-VM' @{ vm = $VM.VMId; off = [bool] $TurnOff }
}
function Remove-VM {
    param([Parameter(Mandatory = $true)] $VM, [switch] $Force)
    Invoke-Simulator 'Remove-VM' @{ vm = $VM.VMId }
}

function Get-VMMemory {
    param([Parameter(Mandatory = $true)] $VM)
    Invoke-Simulator 'Get-VMMemory' @{ vm = $VM.VMId }
}
function Set-VMMemory {
    param([Parameter(Mandatory = $true)] $VM, [bool] $DynamicMemoryEnabled, [long] $StartupBytes)
    Invoke-Simulator 'Set-VMMemory' @{ vm = $VM.VMId; memory = $StartupBytes }
}
function Get-VMProcessor {
    param([Parameter(Mandatory = $true)] $VM)
    Invoke-Simulator 'Get-VMProcessor' @{ vm = $VM.VMId }
}
function Set-VMProcessor {
    param([Parameter(Mandatory = $true)] $VM, [long] $Count)
    Invoke-Simulator 'Set-VMProcessor' @{ vm = $VM.VMId; count = $Count }
}
function Get-VMSnapshot { param([Parameter(Mandatory = $true)] $VM) }
function Get-VMIntegrationService {
    param([Parameter(Mandatory = $true)] $VM)
    Invoke-Simulator 'Get-VMIntegrationService' @{ vm = $VM.VMId }
}
function Enable-VMIntegrationService { param([Parameter(Mandatory = $true)] $VMIntegrationService) }
function Set-VMFirmware {
    param(
        [Parameter(Mandatory = $true)] $VM,
        $FirstBootDevice,
        [ValidateSet('On', 'Off')] [string] $EnableSecureBoot,
        [ValidateSet('MicrosoftWindows', 'MicrosoftUEFICertificateAuthority', 'OpenSourceShieldedVM')] [string] $SecureBootTemplate
    )
    Invoke-Simulator 'Set-VMFirmware' @{ vm = $VM.VMId }
}

function Get-VMNetworkAdapter {
    [CmdletBinding()]
    param([Parameter(Mandatory = $true, ValueFromPipeline = $true)] $VM)
    process { Invoke-Simulator 'Get-VMNetworkAdapter' @{ vm = $VM.VMId } }
}
function Remove-VMNetworkAdapter {
    [CmdletBinding()]
    param([Parameter(Mandatory = $true, ValueFromPipeline = $true)] $VMNetworkAdapter)
    process { Invoke-Simulator 'Remove-VMNetworkAdapter' @{ adapter = $VMNetworkAdapter.Id } }
}
function Add-VMNetworkAdapter {
    [CmdletBinding(DefaultParameterSetName = 'VMName')]
    param(
        [Parameter(ParameterSetName = 'ManagementOS', Mandatory = $true)] [switch] $ManagementOS,
        [Parameter(ParameterSetName = 'VMName', Mandatory = $true, Position = 0)] [string] $VMName,
        [Parameter(ParameterSetName = 'VMObject', Mandatory = $true, Position = 0)] $VM,
        [string] $SwitchName,
        [Parameter(ParameterSetName = 'VMName')] [Parameter(ParameterSetName = 'VMObject')] [bool] $IsLegacy,
        [string] $Name,
        [string] $StaticMacAddress,
        [switch] $Passthru
    )
    $made = Invoke-Simulator 'Add-VMNetworkAdapter' @{
        vm = $VM.VMId; switch = $SwitchName; legacy = $IsLegacy; mac = $StaticMacAddress
    }
    if ($Passthru) { $made }
}
function Set-VMNetworkAdapter {
    param([Parameter(Mandatory = $true)] $VMNetworkAdapter, [uint32] $IovWeight)
    Invoke-Simulator 'Set-VMNetworkAdapter' @{ adapter = $VMNetworkAdapter.Id; iov = $IovWeight }
}
function Get-VMNetworkAdapterVlan {
    param([Parameter(Mandatory = $true)] $VMNetworkAdapter)
    Invoke-Simulator 'Get-VMNetworkAdapterVlan' @{ adapter = $VMNetworkAdapter.Id }
}
function Set-VMNetworkAdapterVlan {
    param([Parameter(Mandatory = $true)] $VMNetworkAdapter, [switch] $Access, [int] $VlanId)
    Invoke-Simulator 'Set-VMNetworkAdapterVlan' @{ adapter = $VMNetworkAdapter.Id; vlan = $VlanId }
}
function Get-VMSwitch { Invoke-Simulator 'Get-VMSwitch' }

function New-VHD {
    [CmdletBinding(DefaultParameterSetName = 'Dynamic')]
    param(
        [Parameter(Mandatory = $true, Position = 0)] [string] $Path,
        [Parameter(ParameterSetName = 'Differencing', Mandatory = $true, Position = 1)] [string] $ParentPath,
        [Parameter(ParameterSetName = 'Differencing')] [switch] $Differencing,
        [Parameter(ParameterSetName = 'Dynamic', Mandatory = $true)] [uint64] $SizeBytes
    )
    Invoke-Simulator 'New-VHD' @{ path = $Path; parent = $ParentPath }
}
function Get-VHD {
    param([Parameter(Mandatory = $true)] [string] $Path)
    Invoke-Simulator 'Get-VHD' @{ path = $Path }
}
function Add-VMHardDiskDrive {
    param([Parameter(Mandatory = $true)] $VM, [string] $Path, [switch] $Passthru)
    Invoke-Simulator 'Add-VMHardDiskDrive' @{ vm = $VM.VMId; path = $Path }
}
function Get-VMHardDiskDrive {
    param([Parameter(Mandatory = $true)] $VM)
    Invoke-Simulator 'Get-VMHardDiskDrive' @{ vm = $VM.VMId }
}
function Get-VMDvdDrive {
    param([Parameter(Mandatory = $true)] $VM)
    Invoke-Simulator 'Get-VMDvdDrive' @{ vm = $VM.VMId }
}
function Add-VMDvdDrive {
    param([Parameter(Mandatory = $true)] $VM, [string] $Path, [switch] $Passthru)
    Invoke-Simulator 'Add-VMDvdDrive' @{ vm = $VM.VMId; path = $Path }
}
function Set-VMDvdDrive {
    param([Parameter(Mandatory = $true)] $VMDvdDrive, [string] $Path, [switch] $Passthru)
    Invoke-Simulator 'Add-VMDvdDrive' @{ vm = $VMDvdDrive.VMId; path = $Path }
}

function Get-VMHost { Invoke-Simulator 'Get-VMHost' }
function Compare-VM {
    [CmdletBinding(DefaultParameterSetName = 'Name')]
    param(
        [Parameter(ParameterSetName = 'Name', Mandatory = $true, Position = 0)] [string] $Name,
        [Parameter(ParameterSetName = 'VM', Mandatory = $true, Position = 0)] $VM,
        [Parameter(Mandatory = $true, Position = 1)] [string] $DestinationHost,
        [switch] $IncludeStorage,
        [string] $DestinationStoragePath
    )
    Invoke-Simulator 'Compare-VM' @{ vm = $VM.VMId; destination = $DestinationHost }
}
function Move-VM {
    [CmdletBinding(DefaultParameterSetName = 'Name')]
    param(
        [Parameter(ParameterSetName = 'Name', Mandatory = $true, Position = 0)] [string] $Name,
        [Parameter(ParameterSetName = 'VM', Mandatory = $true, Position = 0)] $VM,
        [Parameter(Mandatory = $true, Position = 1)] [string] $DestinationHost,
        [switch] $IncludeStorage,
        [string] $DestinationStoragePath = '',
        [switch] $RetainVhdCopiesOnSource,
        [switch] $AsJob
    )
    $arguments = @{
        vm = $VM.VMId; destination = $DestinationHost; storage = $DestinationStoragePath
        retain = [bool] $RetainVhdCopiesOnSource
    }
    if (-not $AsJob) {
        return Invoke-Simulator 'Move-VM' $arguments
    }
    Start-ThreadJob -ArgumentList (Join-Path $PSScriptRoot 'Hyper-V.psm1'), $arguments -ScriptBlock {
        param($Module, $Arguments)
        Import-Module $Module
        Invoke-Simulator 'Move-VM' $Arguments
    }
}
function Move-ClusterVirtualMachineRole {
    [CmdletBinding(DefaultParameterSetName = 'VMId')]
    param(
        [Parameter(ParameterSetName = 'Default', Mandatory = $true)] [string] $Name,
        [Parameter(ParameterSetName = 'VMId', Mandatory = $true)] [guid] $VMId,
        [Parameter(Position = 1)] [string] $Node,
        [ValidateSet('TurnOff', 'Quick', 'Shutdown', 'ShutdownForce', 'Live')] [string] $MigrationType = 'Live'
    )
    Invoke-Simulator 'Move-VM' @{ vm = $VMId.ToString(); destination = $Node; storage = ''; retain = $false }
}

function Get-VMAssignableDevice {
    param([Parameter(Mandatory = $true)] $VM)
    Invoke-Simulator 'Get-VMAssignableDevice' @{ vm = $VM.VMId }
}
function Add-VMAssignableDevice {
    param([Parameter(Mandatory = $true)] $VM, [Parameter(Mandatory = $true)] [string] $LocationPath)
    Invoke-Simulator 'Add-VMAssignableDevice' @{ vm = $VM.VMId; location = $LocationPath }
}
function Remove-VMAssignableDevice {
    param([Parameter(Mandatory = $true)] $VM, [Parameter(Mandatory = $true)] [string] $LocationPath)
    Invoke-Simulator 'Remove-VMAssignableDevice' @{ vm = $VM.VMId; location = $LocationPath }
}
function Dismount-VMHostAssignableDevice {
    param([Parameter(Mandatory = $true)] [string] $LocationPath, [switch] $Force)
    Invoke-Simulator 'Dismount-VMHostAssignableDevice' @{ location = $LocationPath }
}
function Mount-VMHostAssignableDevice {
    param([Parameter(Mandatory = $true)] [string] $LocationPath)
    Invoke-Simulator 'Mount-VMHostAssignableDevice' @{ location = $LocationPath }
}

# Of other modules of Windows.
function Get-PnpDevice {
    param([string] $Class)
    Invoke-Simulator 'Get-PnpDevice'
}
function Get-PnpDeviceProperty {
    param([Parameter(Mandatory = $true)] [string] $InstanceId, [string[]] $KeyName)
    @{ Data = @($InstanceId) }
}
function Enable-PnpDevice {
    [CmdletBinding(SupportsShouldProcess = $true)]
    param([Parameter(Mandatory = $true)] [string] $InstanceId)
}
function Disable-PnpDevice {
    [CmdletBinding(SupportsShouldProcess = $true)]
    param([Parameter(Mandatory = $true)] [string] $InstanceId)
}
function Get-NetAdapter { }
function Get-NetNeighbor {
    [CmdletBinding()]
    param([string] $AddressFamily)
    Invoke-Simulator 'Get-NetNeighbor'
}
function Get-CimInstance {
    [CmdletBinding()]
    param([string] $Namespace, [Parameter(Mandatory = $true)] [string] $ClassName)
    Invoke-Simulator $ClassName
}
function Invoke-CimMethod {
    [CmdletBinding()]
    param($InputObject, [string] $MethodName, [System.Collections.IDictionary] $Arguments)
    Invoke-Simulator "$($InputObject.Class).$MethodName" @{ vm = $InputObject.VirtualSystemName }
}
function Get-WinEvent {
    [CmdletBinding()]
    param([Parameter(Mandatory = $true)] [hashtable] $FilterHashtable)
    Invoke-Simulator 'Get-WinEvent' @{ log = $FilterHashtable.LogName; ids = @($FilterHashtable.Id) } | ForEach-Object {
        $_.TimeCreated = [DateTime]::Now.AddMilliseconds(-1 * $_.TimeCreated)
        if ($_.TimeCreated -ge $FilterHashtable.StartTime) { $_ }
    }
}

# Files of the host. Those of this machine, which have no drive, are this machine's.
function Test-IsOfHost([string] $Path) { $Path -match '^([A-Za-z]:)?\\' }
function Test-Path {
    [CmdletBinding()]
    param([Parameter(Mandatory = $true)] [string] $LiteralPath, [string] $PathType = 'Any')
    if (-not (Test-IsOfHost $LiteralPath)) {
        return Microsoft.PowerShell.Management\Test-Path -LiteralPath $LiteralPath -PathType $PathType
    }
    (Invoke-Simulator 'Test-Path' @{ path = $LiteralPath }).There
}
function New-Item {
    [CmdletBinding()]
    param([string] $ItemType, [switch] $Force, [Parameter(Mandatory = $true)] [string] $Path)
    Invoke-Simulator 'New-Item' @{ path = $Path }
}
function Copy-Item {
    [CmdletBinding()]
    param([Parameter(Mandatory = $true)] [string] $LiteralPath, [Parameter(Mandatory = $true)] [string] $Destination)
    Invoke-Simulator 'Copy-Item' @{ path = $Destination }
}
function Remove-Item {
    [CmdletBinding()]
    param([Parameter(Mandatory = $true)] [string] $LiteralPath, [switch] $Recurse, [switch] $Force)
    Invoke-Simulator 'Remove-Item' @{ path = $LiteralPath }
}
function Set-ItemProperty {
    [CmdletBinding()]
    param([Parameter(Mandatory = $true)] [string] $LiteralPath, [string] $Name, $Value)
}

Export-ModuleMember -Function *
