# What the logs of the host say about a VM since a moment, as numbers and properties: texts are in the host's language.
#
# In:  id (VMId), sinceMs (how long ago, by this host's clock), ids (numbers of events)
# Out: events: [id, log, agoMs, properties]
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

$id = ([guid] $Document.id).ToString()
$now = [DateTime]::Now
$since = $now.AddMilliseconds(-1 * [double] $Document.sinceMs)
$logs = 'Microsoft-Windows-Hyper-V-VMMS-Admin', 'Microsoft-Windows-Hyper-V-Worker-Admin',
'Microsoft-Windows-Hyper-V-High-Availability-Admin'
$found = @()
foreach ($log in $logs) {
    try {
        $found += @(Get-WinEvent -FilterHashtable @{ LogName = $log; Id = @($Document.ids); StartTime = $since })
    } catch {
        # A log that isn't there, or has nothing of that kind, has nothing to say.
        if ($_.FullyQualifiedErrorId -notlike 'NoMatchingEventsFound*' -and
            $_.FullyQualifiedErrorId -notlike 'NoMatchingLogsFound*') {
            throw
        }
    }
}
@{
    events = @(foreach ($record in @($found | Sort-Object TimeCreated)) {
        $properties = @($record.Properties | ForEach-Object {
                # Nothing becomes an empty text.
                [string] [System.Convert]::ToString([object] $_.Value, [System.Globalization.CultureInfo]::InvariantCulture)
            })
        if (@($properties | Where-Object { $_.Trim('{', '}') -eq $id }).Count -gt 0) {
            @{
                id         = [int] $record.Id
                log        = [string] $record.LogName
                agoMs      = [long] ($now - $record.TimeCreated).TotalMilliseconds
                properties = $properties
            }
        }
    })
}
