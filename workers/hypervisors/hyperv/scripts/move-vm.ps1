# Moves a running VM to another host. Runs as a job; `await-move.ps1` watches what the host does then.
#
# In:  id (VMId), destination (the host's name for the other), storage (folder there; empty: the files stay)
# Out: queuedMs (how long it was seen to wait for its turn), totalMs (with that)
# Errors: not-found; move-failed with active, maximum, code
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

$space = 'root\virtualization\v2'
$id = ([guid] $Document.id).ToString()

$vm = @(Get-VM | Where-Object { $_.VMId -eq [guid] $id })
if ($vm.Count -ne 1) {
    Stop-Script -Kind 'not-found' -Message "The host has no VM $id."
}
$vm = $vm[0]
$move = @{ VM = $vm; DestinationHost = $Document.destination; AsJob = $true }
if ($Document.storage -ne '') {
    $move['IncludeStorage'] = $true
    $move['DestinationStoragePath'] = $Document.storage
}
$watch = [System.Diagnostics.Stopwatch]::StartNew()
$queuedMs = [long] 0
$job = Move-VM @move
while ($job.State.ToString() -in 'NotStarted', 'Running', 'Blocked') {
    # States of its job: 2 new, 3 starting, 4 running.
    $current = @(Get-CimInstance -Namespace $space -ClassName Msvm_MigrationJob |
            Where-Object { $_.VirtualSystemName -eq $id -and $_.JobState -in 2, 3 })
    if ($current.Count -gt 0) {
        $queuedMs = [long] $watch.ElapsedMilliseconds
    }
    [void] (Wait-Job -Job $job -Timeout 1)
}
$watch.Stop()
try {
    [void] (Receive-Job -Job $job -ErrorAction Stop)
    if ($job.State.ToString() -ne 'Completed') {
        throw "Move-VM has ended in the state $($job.State)."
    }
} catch {
    $service = Get-CimInstance -Namespace $space -ClassName Msvm_VirtualSystemMigrationService
    Stop-Script -Kind 'move-failed' -Message $_.Exception.Message -Detail @{
        active  = [int] $service.ActiveVirtualSystemMigrationCount
        maximum = [int] (Get-VMHost).MaximumVirtualMachineMigrations
        code    = [long] $_.Exception.HResult
    }
}
@{
    queuedMs = $queuedMs
    totalMs  = [long] $watch.ElapsedMilliseconds
}
