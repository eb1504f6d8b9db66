# The VMs of the host, all of them or those with the given VMIds: who they are, what they do, whose they are.
#
# In:  ids: list of VMIds; empty: all
# Out: vms: [id, name, state, notes, heartbeat, memory, path, clustered], host: the host's own name
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

$ids = @($Document.ids)
$found = @(Get-VM | Where-Object { $ids.Count -eq 0 -or $ids -contains $_.VMId.ToString() })
@{
    host = [System.Net.Dns]::GetHostName()
    vms  = @(foreach ($vm in $found) {
        try {
            @{
                id        = $vm.VMId.ToString()
                name      = [string] $vm.VMName
                state     = $vm.State.ToString()
                notes     = [string] $vm.Notes
                heartbeat = [string] $vm.Heartbeat
                memory    = [long] $vm.MemoryAssigned
                path      = [string] $vm.Path
                clustered = [bool] $vm.IsClustered
            }
        } catch {
            # Properties are asked for when they are read: a VM that was removed in between has none.
            if (@(Get-VM -Id $vm.VMId -ErrorAction SilentlyContinue).Count -gt 0) {
                throw
            }
        }
    })
}
