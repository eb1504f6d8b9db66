# What a VM really is: its settings and its adapters as Hyper-V has them.
#
# In:  id (VMId)
# Out: name, state, generation, version, vcpus, memory (bytes), dynamicMemory, heartbeat, integrationServices, compatibleCpu,
#      adapters: [name, mac, legacy, switch, vlan (null: untagged), iovWeight, iovUsage, vmqWeight, vmqUsage, status],
#      devices: [location], disks: [path, parent], checkpoints
# Errors: not-found
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

$vm = @(Get-VM | Where-Object { $_.VMId -eq [guid] $Document.id })
if ($vm.Count -ne 1) {
    Stop-Script -Kind 'not-found' -Message "The host has no VM $($Document.id)."
}
$vm = $vm[0]
$memory = Get-VMMemory -VM $vm
$processor = Get-VMProcessor -VM $vm
$devices = @()
if (Get-Command Get-VMAssignableDevice -ErrorAction SilentlyContinue) {
    $devices = @(Get-VMAssignableDevice -VM $vm)
}
@{
    name                = [string] $vm.VMName
    state               = $vm.State.ToString()
    generation          = [int] $vm.Generation
    # Windows Server 2012 R2 has one version of VMs only, and doesn't tell it.
    version             = $(if ($null -ne $vm.PSObject.Properties['Version']) { [string] $vm.Version } else { '' })
    vcpus               = [int] $processor.Count
    memory              = [long] $memory.Startup
    dynamicMemory       = [bool] $memory.DynamicMemoryEnabled
    heartbeat           = [string] $vm.Heartbeat
    integrationServices = [string] $vm.IntegrationServicesVersion
    compatibleCpu       = [bool] $processor.CompatibilityForMigrationEnabled
    adapters            = @(foreach ($adapter in @(Get-VMNetworkAdapter -VM $vm)) {
        $vlan = Get-VMNetworkAdapterVlan -VMNetworkAdapter $adapter
        @{
            name      = [string] $adapter.Name
            mac       = [string] $adapter.MacAddress
            legacy    = [bool] $adapter.IsLegacy
            switch    = [string] $adapter.SwitchName
            vlan      = $(if ($vlan.OperationMode.ToString() -eq 'Access') { [int] $vlan.AccessVlanId } else { $null })
            iovWeight = [int] $adapter.IovWeight
            iovUsage  = [int] $adapter.IovUsage
            vmqWeight = [int] $adapter.VmqWeight
            vmqUsage  = [int] $adapter.VmqUsage
            status    = @($adapter.Status | ForEach-Object { [string] $_ }) -join ', '
        }
    })
    devices             = @(foreach ($device in $devices) { @{ location = [string] $device.LocationPath } })
    disks               = @(foreach ($drive in @(Get-VMHardDiskDrive -VM $vm)) {
        @{ path = [string] $drive.Path; parent = [string] (Get-VHD -Path $drive.Path).ParentPath }
    })
    checkpoints         = [int] @(Get-VMSnapshot -VM $vm).Count
}
