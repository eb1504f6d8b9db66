# Watches the migration of a VM until it has ended, or for so long. One process that sleeps, instead of one for each look.
#
# In:  id (VMId), seconds (how long at most)
# Out: active: whether it still goes on, samples: [percent, agoMs]
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

$id = ([guid] $Document.id).ToString()
$watch = [System.Diagnostics.Stopwatch]::StartNew()
$samples = New-Object -TypeName System.Collections.ArrayList
while ($true) {
    # States: 2 new, 3 starting, 4 running.
    $current = @(Get-CimInstance -Namespace 'root\virtualization\v2' -ClassName Msvm_MigrationJob |
            Where-Object { $_.VirtualSystemName -eq $id -and $_.JobState -in 2, 3, 4 })
    if ($current.Count -eq 0) {
        break
    }
    [void] $samples.Add(@{ percent = [int] $current[0].PercentComplete; atMs = [long] $watch.ElapsedMilliseconds })
    if ($watch.Elapsed.TotalSeconds -ge $Document.seconds) {
        break
    }
    Start-Sleep -Milliseconds 500
}
@{
    active  = [bool] ($current.Count -gt 0)
    samples = @(foreach ($one in $samples) {
        @{ percent = $one.percent; agoMs = [long] ($watch.ElapsedMilliseconds - $one.atMs) }
    })
}
