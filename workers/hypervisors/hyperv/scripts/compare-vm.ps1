# Whether a VM can be moved to another host as both are now. Nothing is moved.
#
# In:  id (VMId), destination (the host's name for the other), storage (folder there; empty: the files stay)
# Out: incompatibilities: [id, message], active: migrations in progress on this host, maximum: how many it allows,
#      iov: whether its adapter uses SR-IOV now
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
$where = @{ VM = $vm; DestinationHost = $Document.destination }
if ($Document.storage -ne '') {
    $where['IncludeStorage'] = $true
    $where['DestinationStoragePath'] = $Document.storage
}
# A role of a cluster is compared by the cluster, when it moves it.
$found = if ($vm.IsClustered) { @() } else { @((Compare-VM @where).Incompatibilities) }
$service = Get-CimInstance -Namespace 'root\virtualization\v2' -ClassName Msvm_VirtualSystemMigrationService
@{
    incompatibilities = @(foreach ($one in @($found)) {
        if ($null -ne $one) {
            @{ id = [long] $one.MessageId; message = [string] $one.Message }
        }
    })
    active            = [int] $service.ActiveVirtualSystemMigrationCount
    maximum           = [int] (Get-VMHost).MaximumVirtualMachineMigrations
    iov               = [bool] (@(Get-VMNetworkAdapter -VM $vm | Where-Object { $_.IovUsage -gt 0 }).Count -gt 0)
}
