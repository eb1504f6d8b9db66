# Ends the migration of a VM, which then stays where it is. Nothing happens when there is none.
#
# In:  id (VMId)
# Out: asked: how many migrations were asked to end, left: how many of them still go on
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

$space = 'root\virtualization\v2'
$id = ([guid] $Document.id).ToString()
$terminate = 4

function Get-MigrationJob {
    @(Get-CimInstance -Namespace $space -ClassName Msvm_MigrationJob |
            Where-Object { $_.VirtualSystemName -eq $id -and $_.JobState -in 2, 3, 4 })
}

$jobs = @(Get-MigrationJob)
foreach ($job in $jobs) {
    # One that ends by itself at this moment can't be asked any more; what counts is what is left.
    [void] (Invoke-CimMethod -InputObject $job -MethodName RequestStateChange -ErrorAction SilentlyContinue `
            -Arguments @{ RequestedState = [uint16] $terminate })
}
$until = [DateTime]::UtcNow.AddSeconds(10)
while (@(Get-MigrationJob).Count -gt 0 -and [DateTime]::UtcNow -lt $until) {
    Start-Sleep -Milliseconds 200
}
@{
    asked = [int] $jobs.Count
    left  = [int] @(Get-MigrationJob).Count
}
