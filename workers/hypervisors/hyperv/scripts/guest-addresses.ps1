# The IPv4 addresses of an adapter of a VM: as the guest says by the key-value exchange, and as the host's neighbours say.
#
# In:  id (VMId), mac
# Out: told: addresses that the guest says it has, seen: addresses at which the host has seen the adapter,
#      exchange: whether the guest's side of the key-value exchange is there, heartbeat
# Errors: not-found
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

$keyValueExchange = '2A34B1C2-FD73-4043-8A5B-DD2159BC743F'

$vm = @(Get-VM | Where-Object { $_.VMId -eq [guid] $Document.id })
if ($vm.Count -ne 1) {
    Stop-Script -Kind 'not-found' -Message "The host has no VM $($Document.id)."
}
$vm = $vm[0]
$service = @(Get-VMIntegrationService -VM $vm | Where-Object { $_.Id -like "*$keyValueExchange" })
$told = @(Get-VMNetworkAdapter -VM $vm | Where-Object { $_.MacAddress -eq $Document.mac } |
        ForEach-Object { $_.IPAddresses } | Where-Object { $_ -match '^\d+\.\d+\.\d+\.\d+$' })
$dashed = ($Document.mac -replace '(..)(?=.)', '$1-')
$seen = @(Get-NetNeighbor -AddressFamily IPv4 -ErrorAction SilentlyContinue |
        Where-Object { $_.LinkLayerAddress -eq $dashed -and $_.State.ToString() -ne 'Unreachable' } |
        ForEach-Object { $_.IPAddress })
@{
    told      = @($told | ForEach-Object { [string] $_ })
    seen      = @($seen | Select-Object -Unique | ForEach-Object { [string] $_ })
    # 2 is OK, in whatever language the description is.
    exchange  = [bool] ($service.Count -eq 1 -and $service[0].Enabled -and [int] $service[0].PrimaryOperationalStatus -eq 2)
    heartbeat = [string] $vm.Heartbeat
}
