# What the host does for half a second in which nobody asks it anything: counters before and after.
#
# In:  nothing
# Out: before, after: [at (100 ns), busy: 100 ns of each logical processor, octets], running: VMIds of running VMs
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

function Get-Counters {
    # The hypervisor's own processors: those of the parent partition don't show what the VMs use.
    $processors = @(Get-CimInstance -ClassName Win32_PerfRawData_HvStats_HyperVHypervisorLogicalProcessor |
            Where-Object { $_.Name -ne '_Total' })
    $octets = [long] 0
    foreach ($adapter in @(Get-NetAdapter -Physical -ErrorAction SilentlyContinue)) {
        # A name is a pattern to this cmdlet.
        $name = [System.Management.Automation.WildcardPattern]::Escape($adapter.Name)
        $count = Get-NetAdapterStatistics -Name $name -ErrorAction SilentlyContinue
        if ($null -ne $count) {
            $octets += [long] $count.ReceivedBytes + [long] $count.SentBytes
        }
    }
    @{
        at     = [long] $processors[0].Timestamp_Sys100NS
        busy   = @($processors | ForEach-Object { [long] $_.PercentTotalRunTime })
        octets = $octets
    }
}

$running = @(Get-VM | Where-Object { $_.State -eq 'Running' } | ForEach-Object { $_.VMId.ToString() })
$before = Get-Counters
Start-Sleep -Milliseconds 500
$after = Get-Counters
@{ before = $before; after = $after; running = $running }
