# Gives an adapter of a running guest a static IPv4 address, by the key-value exchange
# (SetGuestNetworkAdapterConfiguration of root\virtualization\v2). Only synthetic adapters can be told so.
#
# In:  vmId, mac, address, subnet
# Out: state: done, or not-yet while the guest's side of the exchange isn't there
# Errors: not-found, no-static-address, address-refused
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

$space = 'root\virtualization\v2'
# What Hyper-V returns while the guest doesn't answer: failed, no answer in time, not in this state, not available.
$notYet = 32768, 32772, 32775, 32777

$id = ([guid] $Document.vmId).ToString()
$system = @(Get-CimInstance -Namespace $space -ClassName Msvm_ComputerSystem | Where-Object { $_.Name -eq $id })
if ($system.Count -ne 1) {
    Stop-Script -Kind 'not-found' -Message "The host has no VM $id."
}
$settings = Get-CimAssociatedInstance -InputObject $system[0] -Association Msvm_SettingsDefineState `
    -ResultClassName Msvm_VirtualSystemSettingData
$port = @(Get-CimAssociatedInstance -InputObject $settings -ResultClassName Msvm_SyntheticEthernetPortSettingData |
        Where-Object { $_.Address -eq $Document.mac })
if ($port.Count -ne 1) {
    Stop-Script -Kind 'no-static-address' -Message "The VM has no synthetic adapter with address $($Document.mac)."
}
$configuration = @(Get-CimAssociatedInstance -InputObject $port[0] -ResultClassName Msvm_GuestNetworkAdapterConfiguration)
if ($configuration.Count -ne 1) {
    return @{ state = 'not-yet' }
}
$properties = $configuration[0].CimInstanceProperties
$properties['DHCPEnabled'].Value = $false
$properties['IPAddresses'].Value = [string[]] @($Document.address)
$properties['Subnets'].Value = [string[]] @($Document.subnet)
$properties['DefaultGateways'].Value = [string[]] @()
$properties['DNSServers'].Value = [string[]] @()
$properties['ProtocolIFType'].Value = [uint16] 4096  # IPv4

# The method takes the instance as a text of CIM-XML, which is made by the library of CIM.
$serializer = [Microsoft.Management.Infrastructure.Serialization.CimSerializer]::Create()
$bytes = $serializer.Serialize($configuration[0],
    [Microsoft.Management.Infrastructure.Serialization.InstanceSerializationOptions]::None)
$service = Get-CimInstance -Namespace $space -ClassName Msvm_VirtualSystemManagementService
$result = Invoke-CimMethod -InputObject $service -MethodName SetGuestNetworkAdapterConfiguration -Arguments @{
    ComputerSystem       = $system[0]
    NetworkConfiguration = [string[]] @([System.Text.Encoding]::Unicode.GetString($bytes))
}
$code = [long] $result.ReturnValue
$said = "Hyper-V returned $code."
if ($code -eq 4096) {
    # A job was started. States: 2 new, 3 starting, 4 running, 7 completed.
    $job = Get-CimInstance -InputObject $result.Job
    while ($job.JobState -in 2, 3, 4) {
        Start-Sleep -Milliseconds 100
        $job = Get-CimInstance -InputObject $job
    }
    $code = if ($job.JobState -eq 7) { 0 } else { [long] $job.ErrorCode }
    if ($job.JobState -ne 7 -and $code -eq 0) {
        # One that was ended has failed without a code.
        $code = 32768
    }
    $said = [string] $job.ErrorDescription
}
if ($code -eq 0) {
    return @{ state = 'done' }
}
if ($code -in $notYet) {
    return @{ state = 'not-yet' }
}
Stop-Script -Kind 'address-refused' -Message $said -Detail @{ code = $code }
