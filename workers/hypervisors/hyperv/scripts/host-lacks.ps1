# What the host lacks for making VMs of ours. Starts and changes nothing.
#
# In:  switches, files (disks and ISOs that must be there), storage (folder), migration (whether it must be able to)
# Out: lacks: [what (a word), object, detail]
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

$lacks = New-Object -TypeName System.Collections.ArrayList
function Add-Lack([string] $What, [string] $Object, [string] $Detail = '') {
    [void] $lacks.Add(@{ what = $What; object = $Object; detail = $Detail })
}

# By their identifiers, because the names of groups are in the language of the host.
$administrators = 'S-1-5-32-544'
$hypervAdministrators = 'S-1-5-32-578'
$me = [System.Security.Principal.WindowsIdentity]::GetCurrent()
$principal = New-Object System.Security.Principal.WindowsPrincipal $me
$allowed = @($administrators, $hypervAdministrators | Where-Object {
        $principal.IsInRole([System.Security.Principal.SecurityIdentifier] $_)
    })
if ($allowed.Count -eq 0) {
    Add-Lack 'rights' $me.Name
}
if (@(Get-Module -ListAvailable -Name Hyper-V).Count -eq 0) {
    Add-Lack 'module' 'Hyper-V'
} elseif (-not (Get-Service -Name vmms -ErrorAction SilentlyContinue | Where-Object { $_.Status -eq 'Running' })) {
    Add-Lack 'service' 'vmms'
} elseif ($allowed.Count -gt 0) {
    $names = @(Get-VMSwitch | ForEach-Object { $_.Name })
    foreach ($name in @($Document.switches)) {
        if ($names -notcontains $name) {
            Add-Lack 'switch' $name ($names -join ', ')
        }
    }
    if ($Document.migration -and -not (Get-VMHost).VirtualMachineMigrationEnabled) {
        Add-Lack 'migration' ''
    }
}
foreach ($file in @($Document.files)) {
    if (-not (Test-Path -LiteralPath $file -PathType Leaf)) {
        Add-Lack 'file' $file
    }
}
if ($Document.storage -ne '' -and -not (Test-Path -LiteralPath $Document.storage -PathType Container)) {
    # The folder itself is made with the first VM; the drive or share it is on must be there.
    $parent = Split-Path -Parent $Document.storage
    if (-not $parent -or -not (Test-Path -LiteralPath $parent -PathType Container)) {
        Add-Lack 'storage' $Document.storage
    }
}
@{ lacks = $lacks }
