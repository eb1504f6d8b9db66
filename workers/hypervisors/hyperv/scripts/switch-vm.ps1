# Stops the virtual processors of a VM, or lets them go on. Nothing happens when it is so already.
#
# In:  id (VMId), paused
# Out: state
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
if ($Document.paused -and $vm.State -eq 'Running') {
    Suspend-VM -VM $vm
} elseif (-not $Document.paused -and $vm.State -eq 'Paused') {
    Resume-VM -VM $vm
}
@{ state = (Get-VM -Id $vm.VMId).State.ToString() }
