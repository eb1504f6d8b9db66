# Makes a VM and starts it. When anything fails, all that it has made is removed again before the error is told.
#
# In:  name, uuid, notes, folder, generation, vcpus, memory (bytes), disk (null, or parent, path, differencing), iso,
#      secureBoot (windows, linux), adapter (synthetic, legacy, sr-iov, vt-d), switch, vlan (null: untagged), mac,
#      device (location path for vt-d)
# Out: id: the VMId, mac: address of the adapter, of a device its own
# Errors: name-taken, mac-taken, nic-unsupported, no-switch, no-disk, create-failed
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

# Integration services by their component, because their names are in the language of the host.
$heartbeat = '84EAAE65-2F2E-45F5-9BB5-0E857DC8EB47'
$keyValueExchange = '2A34B1C2-FD73-4043-8A5B-DD2159BC743F'

function Find-Device([string] $Location) {
    # The instance of a network device of the host by its location path, whatever Windows calls it.
    foreach ($device in @(Get-PnpDevice -Class Net)) {
        $paths = (Get-PnpDeviceProperty -InstanceId $device.InstanceId -KeyName 'DEVPKEY_Device_LocationPaths').Data
        if (@($paths) -contains $Location) {
            return $device.InstanceId
        }
    }
    Stop-Script -Kind 'nic-unsupported' -Message "The host has no network device at $Location."
}

$named = @(Get-VM | Where-Object { $_.VMName -eq $Document.name })
if ($named.Count -gt 0) {
    Stop-Script -Kind 'name-taken' -Message "A VM named $($Document.name) is here already." -Detail @{
        notes = [string] $named[0].Notes
    }
}
# One that somebody else removes at this moment holds nothing.
$holders = @(Get-VM | Get-VMNetworkAdapter -ErrorAction SilentlyContinue | Where-Object { $_.MacAddress -eq $Document.mac })
if ($Document.adapter -ne 'vt-d' -and $holders.Count -gt 0) {
    Stop-Script -Kind 'mac-taken' -Message "The VM $($holders[0].VMName) has the MAC address $($Document.mac)."
}
$vmSwitch = $null
if ($Document.adapter -ne 'vt-d') {
    $vmSwitch = @(Get-VMSwitch | Where-Object { $_.Name -eq $Document.switch })
    if ($vmSwitch.Count -ne 1) {
        Stop-Script -Kind 'no-switch' -Message "The host has $($vmSwitch.Count) virtual switches named $($Document.switch)."
    }
    $vmSwitch = $vmSwitch[0]
}
if ($Document.adapter -eq 'sr-iov' -and -not $vmSwitch.IovEnabled) {
    Stop-Script -Kind 'nic-unsupported' -Message "The virtual switch $($Document.switch) was made without SR-IOV."
}
$source = if ($null -ne $Document.disk) { $Document.disk.parent } else { $Document.iso }
if (-not (Test-Path -LiteralPath $source -PathType Leaf)) {
    Stop-Script -Kind 'no-disk' -Message "The host has no file $source."
}
if (Test-Path -LiteralPath $Document.folder) {
    Stop-Script -Kind 'create-failed' -Message "The folder $($Document.folder) is there already."
}

$vm = $null
$device = $null
$mac = [string] $Document.mac
try {
    [void] (New-Item -ItemType Directory -Force -Path $Document.folder)
    $vm = New-VM -Name $Document.name -Generation $Document.generation -MemoryStartupBytes $Document.memory `
        -Path $Document.folder -NoVHD
    # The mark comes first: from here on the VM can be told from those of others.
    Set-VM -VM $vm -Notes $Document.notes -AutomaticStartAction Nothing -AutomaticStopAction TurnOff
    if ((Get-Command Set-VM).Parameters.ContainsKey('CheckpointType')) {
        Set-VM -VM $vm -CheckpointType Disabled
    }
    Set-VMMemory -VM $vm -DynamicMemoryEnabled $false -StartupBytes $Document.memory
    Set-VMProcessor -VM $vm -Count $Document.vcpus
    foreach ($service in @(Get-VMIntegrationService -VM $vm)) {
        if ($service.Id -like "*$heartbeat" -or $service.Id -like "*$keyValueExchange") {
            Enable-VMIntegrationService -VMIntegrationService $service
        }
    }

    # New-VM adds an adapter of its own.
    Get-VMNetworkAdapter -VM $vm | Remove-VMNetworkAdapter
    if ($Document.adapter -eq 'vt-d') {
        $device = Find-Device $Document.device
        $own = @(Get-NetAdapter | Where-Object { $_.PnPDeviceID -eq $device })
        if ($own.Count -eq 1) {
            $mac = $own[0].MacAddress -replace '-', ''
        }
        Disable-PnpDevice -InstanceId $device -Confirm:$false
        Dismount-VMHostAssignableDevice -LocationPath $Document.device -Force
        Add-VMAssignableDevice -VM $vm -LocationPath $Document.device
    } else {
        $adapter = Add-VMNetworkAdapter -VM $vm -Name 'labctl' -SwitchName $Document.switch `
            -StaticMacAddress $Document.mac -IsLegacy ($Document.adapter -eq 'legacy') -Passthru
        if ($null -ne $Document.vlan) {
            Set-VMNetworkAdapterVlan -VMNetworkAdapter $adapter -Access -VlanId $Document.vlan
        }
        if ($Document.adapter -eq 'sr-iov') {
            Set-VMNetworkAdapter -VMNetworkAdapter $adapter -IovWeight 100
        }
    }

    if ($null -ne $Document.disk) {
        if ($Document.disk.differencing) {
            [void] (New-VHD -Path $Document.disk.path -ParentPath $Document.disk.parent -Differencing)
        } else {
            Copy-Item -LiteralPath $Document.disk.parent -Destination $Document.disk.path
            Set-ItemProperty -LiteralPath $Document.disk.path -Name IsReadOnly -Value $false
        }
        $drive = Add-VMHardDiskDrive -VM $vm -Path $Document.disk.path -Passthru
    } elseif ($Document.generation -eq 1) {
        # One of generation 1 has an empty drive already.
        $drive = Set-VMDvdDrive -VMDvdDrive @(Get-VMDvdDrive -VM $vm)[0] -Path $Document.iso -Passthru
    } else {
        $drive = Add-VMDvdDrive -VM $vm -Path $Document.iso -Passthru
    }
    if ($Document.generation -eq 2) {
        $template = if ($Document.secureBoot -eq 'windows') { 'MicrosoftWindows' } else { 'MicrosoftUEFICertificateAuthority' }
        $firmware = @{ VM = $vm; FirstBootDevice = $drive; EnableSecureBoot = 'On' }
        if ((Get-Command Set-VMFirmware).Parameters.ContainsKey('SecureBootTemplate')) {
            $firmware['SecureBootTemplate'] = $template
        } elseif ($Document.secureBoot -ne 'windows') {
            # Windows Server 2012 R2 has no template that lets Linux boot.
            $firmware['EnableSecureBoot'] = 'Off'
        }
        Set-VMFirmware @firmware
    }
    Start-VM -VM $vm
} catch {
    $failure = $_
    if ($null -ne $vm) {
        # By its VMId: another VM may have the same name.
        $made = @(Get-VM -Id $vm.VMId -ErrorAction SilentlyContinue)
        foreach ($one in $made) {
            if ($one.State -ne 'Off') { Stop-VM -VM $one -TurnOff -Force -ErrorAction SilentlyContinue }
            if ($null -ne $device) {
                Remove-VMAssignableDevice -VM $one -LocationPath $Document.device -ErrorAction SilentlyContinue
            }
            Remove-VM -VM $one -Force -ErrorAction SilentlyContinue
        }
    }
    if ($null -ne $device) {
        Mount-VMHostAssignableDevice -LocationPath $Document.device -ErrorAction SilentlyContinue
        Enable-PnpDevice -InstanceId $device -Confirm:$false -ErrorAction SilentlyContinue
    }
    if (Test-Path -LiteralPath $Document.folder) {
        Remove-Item -LiteralPath $Document.folder -Recurse -Force -ErrorAction SilentlyContinue
    }
    throw $failure
}
@{ id = $vm.VMId.ToString(); mac = $mac }
