# Starts a request as a process of its own that outlives the shell, or finds the one that was started before.
#
# The process is made by WMI, so it belongs to no shell, and runs as the same user without its password being kept anywhere.
# It claims the job by creating a file that must not be there, and keeps it open as long as it lives: so a job runs once
# however often it is started, and who wants to know whether it still runs tries to open that file.
#
# In:  id (name of the job's folder), request (text), keepDays (ended jobs that are older are removed)
# Out: state: started, found
# Errors: job-not-started
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

# What the process does. It finds its folder as its current one.
$work = {
    $ErrorActionPreference = 'Stop'
    $ProgressPreference = 'SilentlyContinue'
    $folder = [System.Environment]::CurrentDirectory
    $given = Join-Path $folder 'request'
    try {
        $claim = [System.IO.File]::Open((Join-Path $folder 'claim'), 'CreateNew', 'Write', 'Read')
    } catch [System.IO.IOException] {
        # Another process has it.
        exit 0
    }
    $own = [System.Text.Encoding]::ASCII.GetBytes([string] $PID)
    $claim.Write($own, 0, $own.Length)
    $claim.Flush()
    [System.Environment]::SetEnvironmentVariable('LABCTL_JOB', $folder)
    $request = [System.IO.File]::ReadAllLines($given)
    # It may hold secrets.
    [System.IO.File]::Delete($given)
    & {
        # In a scope of its own, as in bootstrap.ps1.
        $prelude = [System.Text.Encoding]::UTF8.GetString([System.Convert]::FromBase64String($request[3]))
        . ([scriptblock]::Create($prelude))
        Write-WholeFile (Join-Path $folder 'answer') (Get-EncodedAnswer $request)
    }
}

function Get-JobsFolder {
    # The folder of all jobs, which only administrators and this user may look into: requests hold secrets.
    $root = Join-Path ([System.Environment]::GetFolderPath('CommonApplicationData')) 'labctl'
    # Administrators and SYSTEM, by what they are called in no language.
    $own = [System.Security.Principal.WindowsIdentity]::GetCurrent().User.Value
    $trusted = 'S-1-5-32-544', 'S-1-5-18', $own
    if (Test-Path -LiteralPath $root) {
        $owner = (Get-Acl -LiteralPath $root).GetOwner([System.Security.Principal.SecurityIdentifier]).Value
        if ($trusted -notcontains $owner) {
            Stop-Script -Kind 'job-not-started' -Message "The folder $root belongs to $owner, who could read requests there."
        }
    } else {
        [void] (New-Item -ItemType Directory -Path $root)
    }
    $acl = Get-Acl -LiteralPath $root
    if (-not $acl.AreAccessRulesProtected) {
        # New, or of a process that has ended before it came to this.
        $acl.SetAccessRuleProtection($true, $false)
        foreach ($sid in $trusted) {
            $who = New-Object -TypeName System.Security.Principal.SecurityIdentifier -ArgumentList $sid
            $acl.AddAccessRule((New-Object -TypeName System.Security.AccessControl.FileSystemAccessRule -ArgumentList (
                        $who, 'FullControl', 'ContainerInherit, ObjectInherit', 'None', 'Allow')))
        }
        Set-Acl -LiteralPath $root -AclObject $acl
    }
    $jobs = Join-Path $root 'jobs'
    [void] (New-Item -ItemType Directory -Path $jobs -Force)
    $jobs
}

function Test-JobEnded([string] $Folder) {
    # Whether nobody holds the job's claim.
    $claim = Join-Path $Folder 'claim'
    if (-not (Test-Path -LiteralPath $claim)) {
        return $true
    }
    try {
        [System.IO.File]::Open($claim, 'Open', 'ReadWrite', 'None').Dispose()
        return $true
    } catch [System.IO.IOException] {
        return $false
    }
}

$jobs = Get-JobsFolder
$oldest = [DateTime]::UtcNow.AddDays(-1 * $Document.keepDays)
foreach ($old in @(Get-ChildItem -LiteralPath $jobs -Directory)) {
    if ($old.LastWriteTimeUtc -lt $oldest -and $old.Name -ne $Document.id -and (Test-JobEnded $old.FullName)) {
        Remove-Item -LiteralPath $old.FullName -Recurse -Force -ErrorAction SilentlyContinue
    }
}

$folder = Join-Path $jobs $Document.id
$claim = Join-Path $folder 'claim'
if (Test-Path -LiteralPath $claim) {
    return @{ state = 'found' }
}
[void] (New-Item -ItemType Directory -Path $folder -Force)
Write-WholeFile (Join-Path $folder 'request') $Document.request
$encoded = [System.Convert]::ToBase64String([System.Text.Encoding]::Unicode.GetBytes($work.ToString()))
$options = '-NoLogo -NoProfile -NonInteractive -ExecutionPolicy Bypass -EncodedCommand'
$process = @{
    CommandLine      = '"{0}" {1} {2}' -f (Get-Process -Id $PID).Path, $options, $encoded
    CurrentDirectory = $folder
}
# Outside of the job object (kernel) of WMI's own processes, whose limits on memory and processes are meant for those.
$created = $null
try {
    $breakaway = New-CimInstance -ClassName Win32_ProcessStartup -ClientOnly -Property @{ CreateFlags = [uint32] 0x01000000 }
    $created = Invoke-CimMethod -ClassName Win32_Process -MethodName Create -Arguments (
        $process + @{ ProcessStartupInformation = $breakaway })
} catch {
    $null = $_
}
if ($null -eq $created -or $created.ReturnValue -ne 0) {
    # Where a job object lets nobody go: within it. Should the first have begun all the same, it has the claim.
    $created = Invoke-CimMethod -ClassName Win32_Process -MethodName Create -Arguments $process
}
if ($created.ReturnValue -ne 0) {
    Stop-Script -Kind 'job-not-started' -Message "Win32_Process.Create returned $($created.ReturnValue)."
}
$until = [DateTime]::UtcNow.AddSeconds(20)
while (-not (Test-Path -LiteralPath $claim)) {
    if ([DateTime]::UtcNow -gt $until) {
        try {
            # Taken here, so that a process that is only slow finds it taken, and never begins what was given up.
            [System.IO.File]::Open($claim, 'CreateNew', 'Write', 'Read').Dispose()
        } catch [System.IO.IOException] {
            # It has begun at this very moment.
            break
        }
        Write-WholeFile (Join-Path $folder 'cancelled') ''
        Remove-Item -LiteralPath (Join-Path $folder 'request') -Force -ErrorAction SilentlyContinue
        Stop-Script -Kind 'job-not-started' -Message "Process $($created.ProcessId) has not begun within 20 seconds."
    }
    Start-Sleep -Milliseconds 100
}
@{ state = 'started' }
