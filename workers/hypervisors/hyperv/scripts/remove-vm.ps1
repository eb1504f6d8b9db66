# Ends a VM of ours, and removes it and its folder. The mark is looked at again, in the moment before.
#
# In:  id (VMId; empty: only the folder), uuid (ours), name, folder
# Out: present: whether the VM is still there, folder: whether its folder still is
# Errors: not-ours, folder-in-use
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

function Get-Folder($Machine) {
    # Where the files of a VM are. One that somebody else removes at this moment has none.
    try {
        return [string] $Machine.Path
    } catch {
        if (@(Get-VM -Id $Machine.VMId -ErrorAction SilentlyContinue).Count -gt 0) {
            throw
        }
        return ''
    }
}

if ((Split-Path -Leaf $Document.folder) -ne "labctl-$([guid] $Document.uuid)") {
    Stop-Script -Kind 'not-ours' -Message "The folder $($Document.folder) is not that of VM $($Document.uuid)."
}

if ($Document.id -ne '') {
    $vm = @(Get-VM | Where-Object { $_.VMId -eq [guid] $Document.id })
    if ($vm.Count -eq 1) {
        $vm = $vm[0]
        $marked = "`"vm`": `"$($Document.uuid)`""
        if ($vm.VMName -ne $Document.name -or -not ([string] $vm.Notes).Contains($marked)) {
            Stop-Script -Kind 'not-ours' -Message "The VM $($vm.VMName) doesn't carry the mark of VM $($Document.uuid)."
        }
        if ($vm.State.ToString() -notin 'Off', 'Saved') {
            Stop-VM -VM $vm -TurnOff -Force
        }
        $assigned = @()
        if (Get-Command Get-VMAssignableDevice -ErrorAction SilentlyContinue) {
            $assigned = @(Get-VMAssignableDevice -VM $vm)
        }
        foreach ($device in $assigned) {
            # Back to the host: dismounted, it would be of no use to anybody.
            Remove-VMAssignableDevice -VM $vm -LocationPath $device.LocationPath
            Mount-VMHostAssignableDevice -LocationPath $device.LocationPath
            foreach ($found in @(Get-PnpDevice -Class Net)) {
                $paths = (Get-PnpDeviceProperty -InstanceId $found.InstanceId -KeyName 'DEVPKEY_Device_LocationPaths').Data
                if (@($paths) -contains $device.LocationPath) {
                    Enable-PnpDevice -InstanceId $found.InstanceId -Confirm:$false
                }
            }
        }
        Remove-VM -VM $vm -Force
    }
}

# One that was given up between its making and its marking: it has our name, is off, has no notes at all, and lies in the
# folder that was made for it, whose name holds the UUID that only we know.
foreach ($half in @(Get-VM | Where-Object { $_.VMName -eq $Document.name -and -not $_.Notes -and $_.State -eq 'Off' })) {
    if ((Get-Folder $half).StartsWith("$($Document.folder)\", 'OrdinalIgnoreCase')) {
        Remove-VM -VM $half -Force
    }
}
$users = @(Get-VM | Where-Object { (Get-Folder $_).StartsWith($Document.folder, 'OrdinalIgnoreCase') })
if ($users.Count -gt 0) {
    Stop-Script -Kind 'folder-in-use' -Message "The VM $($users[0].VMName) is in the folder $($Document.folder)."
}
# The management service and the VM's process may be about to close and remove files there themselves.
$clock = [System.Diagnostics.Stopwatch]::StartNew()
while (Test-Path -LiteralPath $Document.folder) {
    try {
        Remove-Item -LiteralPath $Document.folder -Recurse -Force
    } catch {
        if ($clock.Elapsed.TotalSeconds -gt 15) {
            # That it is still there, the answer says.
            break
        }
        Start-Sleep -Milliseconds 500
    }
}
@{
    present = ($Document.id -ne '' -and @(Get-VM | Where-Object { $_.VMId -eq [guid] $Document.id }).Count -gt 0)
    folder  = [bool] (Test-Path -LiteralPath $Document.folder)
}
