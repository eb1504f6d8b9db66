# Runs a command to its end, as a job: its output goes to the files `out` and `err` of its folder, its exit code to `code`.
# It is ended after its lifetime, and it dies with this process, together with all that it has started: they are enclosed in
# a job object (kernel) whose only handle is here.
#
# In:  folder, program, line (its arguments, quoted as CommandLineToArgvW takes them apart; null for none), seconds (lifetime)
# Out: code (exit code, as Windows says it), overdue (whether it was ended because its time was over)
# Errors: script-failed
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

$source = @'
using System;
using System.ComponentModel;
using System.Runtime.InteropServices;

public static class LabctlEnclosure
{
    [StructLayout(LayoutKind.Sequential)]
    private struct BasicLimits
    {
        public long PerProcessUserTimeLimit, PerJobUserTimeLimit;
        public uint LimitFlags;
        public UIntPtr MinimumWorkingSetSize, MaximumWorkingSetSize;
        public uint ActiveProcessLimit;
        public UIntPtr Affinity;
        public uint PriorityClass, SchedulingClass;
    }

    [StructLayout(LayoutKind.Sequential)]
    private struct ExtendedLimits
    {
        public BasicLimits Basic;
        public ulong ReadOperations, WriteOperations, OtherOperations, ReadBytes, WriteBytes, OtherBytes;
        public UIntPtr ProcessMemoryLimit, JobMemoryLimit, PeakProcessMemoryUsed, PeakJobMemoryUsed;
    }

    private const int ExtendedLimitInformation = 9;
    private const uint KillOnJobClose = 0x2000;

    [DllImport("kernel32.dll", CharSet = CharSet.Unicode, SetLastError = true)]
    private static extern IntPtr CreateJobObjectW(IntPtr attributes, string name);

    [DllImport("kernel32.dll", SetLastError = true)]
    private static extern bool SetInformationJobObject(IntPtr job, int kind, ref ExtendedLimits limits, int size);

    [DllImport("kernel32.dll", SetLastError = true)]
    private static extern bool AssignProcessToJobObject(IntPtr job, IntPtr process);

    [DllImport("kernel32.dll")]
    private static extern IntPtr GetCurrentProcess();

    // Puts this process, and so all that it will start, into a job object that is never closed but by its death.
    public static void Enclose()
    {
        IntPtr job = CreateJobObjectW(IntPtr.Zero, null);
        ExtendedLimits limits = new ExtendedLimits();
        limits.Basic.LimitFlags = KillOnJobClose;
        if (job == IntPtr.Zero
            || !SetInformationJobObject(job, ExtendedLimitInformation, ref limits, Marshal.SizeOf(limits))
            || !AssignProcessToJobObject(job, GetCurrentProcess()))
        {
            throw new Win32Exception();
        }
    }
}
'@

function Write-Result([string] $Name, [string] $Text) {
    # The file appears when it is whole.
    $path = Join-Path $Document.folder $Name
    [System.IO.File]::WriteAllText("$path.new", $Text)
    Move-Item -LiteralPath "$path.new" -Destination $path -Force
}

function Exit-Unstarted([int] $Code, [string] $Message) {
    [System.IO.File]::WriteAllText((Join-Path $Document.folder 'err'), $Message)
    Write-Result 'code' ([string] $Code)
}

function Stop-Tree([int] $Id) {
    # Its words on stderr are no error of the script.
    $ErrorActionPreference = 'Continue'
    [void] (& "$env:SystemRoot\System32\taskkill.exe" /F /T /PID $Id 2>&1)
}

Add-Type -TypeDefinition $source
[LabctlEnclosure]::Enclose()
$own = Get-Process -Id $PID
Write-Result 'supervisor' "$PID $($own.StartTime.ToUniversalTime().Ticks)"

$files = @{}
foreach ($name in 'in', 'out', 'err') {
    $files[$name] = Join-Path $Document.folder $name
    if (-not (Test-Path -LiteralPath $files[$name])) {
        [System.IO.File]::WriteAllBytes($files[$name], (New-Object -TypeName byte[] -ArgumentList 0))
    }
}

# 9009 is what cmd.exe says of a program that is not there.
$name = [System.Management.Automation.WildcardPattern]::Escape($Document.program)
$found = @(Get-Command -Name $name -CommandType Application -ErrorAction SilentlyContinue)
if ($found.Count -eq 0) {
    Exit-Unstarted 9009 "$($Document.program) is not found."
    return @{ code = 9009; overdue = $false }
}
$program = [string] $found[0].Path
if ([System.IO.Path]::GetExtension($program) -in '.bat', '.cmd') {
    # cmd.exe takes command lines apart in a way of its own, in which no quoting is safe.
    Exit-Unstarted 193 "$program is a batch file; name cmd.exe and its arguments instead."
    return @{ code = 193; overdue = $false }
}
$start = @{
    FilePath               = $program
    WorkingDirectory       = $Document.folder
    RedirectStandardInput  = $files['in']
    RedirectStandardOutput = $files['out']
    RedirectStandardError  = $files['err']
    NoNewWindow            = $true
    PassThru               = $true
}
if ($null -ne $Document.line) {
    $start['ArgumentList'] = $Document.line
}
try {
    $process = Start-Process @start
} catch {
    $win32 = $_.Exception
    while ($null -ne $win32 -and $win32 -isnot [System.ComponentModel.Win32Exception]) {
        $win32 = $win32.InnerException
    }
    $code = 193
    if ($null -ne $win32) {
        $code = $win32.NativeErrorCode
    }
    Exit-Unstarted $code ([string] $_.Exception.Message)
    return @{ code = $code; overdue = $false }
}
# Without its handle a process takes its exit code with it.
[void] $process.Handle
Write-Result 'pid' ([string] $process.Id)
$milliseconds = [Math]::Min([Math]::Ceiling($Document.seconds * 1000), [int]::MaxValue)
$overdue = -not $process.WaitForExit([int] $milliseconds)
if ($overdue) {
    Stop-Tree $process.Id
    [void] $process.WaitForExit(5000)
}
# What goes on even now is ended with this process.
$code = 1
if ($process.HasExited) {
    $code = $process.ExitCode
}
Write-Result 'code' ([string] $code)
@{ code = $code; overdue = $overdue }
