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

function Stop-Failed([System.Exception] $Exception) {
    # With how many are in progress: the surplus waits for its turn, and then fails.
    $service = Get-CimInstance -Namespace $space -ClassName Msvm_VirtualSystemMigrationService
    Stop-Script -Kind 'move-failed' -Message $Exception.Message -Detail @{
        active  = [int] $service.ActiveVirtualSystemMigrationCount
        maximum = [int] (Get-VMHost).MaximumVirtualMachineMigrations
        code    = [long] $Exception.HResult
    }
}

$vm = @(Get-VM | Where-Object { $_.VMId -eq [guid] $id })
if ($vm.Count -ne 1) {
    Stop-Script -Kind 'not-found' -Message "The host has no VM $id."
}
$vm = $vm[0]
$move = @{ VM = $vm; DestinationHost = $Document.destination; AsJob = $true }
if ($Document.storage -ne '') {
    $move['IncludeStorage'] = $true
    $move['DestinationStoragePath'] = $Document.storage
    # Without this, what the disk is based on may be removed from this host once the VM has moved: the user's image.
    $move['RetainVhdCopiesOnSource'] = $true
}
$watch = [System.Diagnostics.Stopwatch]::StartNew()
$queuedMs = [long] 0
if ($vm.IsClustered) {
    # Only the cluster may move what somebody has made a role of it; it knows its nodes by their short names.
    $node = ([string] $Document.destination).Split('.')[0]
    try {
        [void] (Move-ClusterVirtualMachineRole -VMId $vm.VMId -Node $node -MigrationType Live)
    } catch {
        Stop-Failed $_.Exception
    }
    return @{ queuedMs = $queuedMs; totalMs = [long] $watch.ElapsedMilliseconds }
}
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
    Stop-Failed $_.Exception
}
@{
    queuedMs = $queuedMs
    totalMs  = [long] $watch.ElapsedMilliseconds
}
