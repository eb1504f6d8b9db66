# Has a request answered inside a VM, by PowerShell Direct (VMBus): without a network, on the host that the VM runs on.
#
# In:  vm (VMId), user, password, arguments (of powershell.exe), request (lines)
# Out: stdout, exit (code of the PowerShell in the guest)
# Errors: no-vm, not-running, no-session, bad-login
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

function Get-Resource([string] $Name) {
    # A message of PowerShell in the language that it speaks here, to know it by.
    $assembly = [System.Management.Automation.PSObject].Assembly
    foreach ($base in 'RemotingErrorIdStrings', 'System.Management.Automation.resources.RemotingErrorIdStrings') {
        try {
            return (New-Object -TypeName System.Resources.ResourceManager -ArgumentList $base, $assembly).GetString($Name)
        } catch {
            $null = $_
        }
    }
    return $null
}

function Test-BadLogin($Record) {
    $refused = Get-Resource 'InvalidCredential'
    $exception = $Record.Exception
    while ($null -ne $exception) {
        if ($exception.GetType().Name -eq 'PSDirectException' -and ($null -eq $refused -or $exception.Message -eq $refused)) {
            return $true
        }
        $exception = $exception.InnerException
    }
    return $false
}

$id = [guid] $Document.vm
$vm = @(Get-VM | Where-Object { $_.VMId -eq $id })
if ($vm.Count -ne 1) {
    Stop-Script -Kind 'no-vm' -Message "The host has no VM $id."
}
if ($vm[0].State.ToString() -ne 'Running') {
    Stop-Script -Kind 'not-running' -Message "The VM is $($vm[0].State)."
}
$password = New-Object -TypeName System.Security.SecureString
foreach ($letter in $Document.password.ToCharArray()) {
    $password.AppendChar($letter)
}
$credential = New-Object -TypeName System.Management.Automation.PSCredential -ArgumentList $Document.user, $password
try {
    $session = New-PSSession -VMId $id -Credential $credential
} catch {
    if (Test-BadLogin $_) {
        Stop-Script -Kind 'bad-login' -Message ([string] $_.Exception.Message)
    }
    Stop-Script -Kind 'no-session' -Message ([string] $_.Exception.Message)
}
try {
    # A process of its own in the guest for each request, as everywhere else. What it says on stderr comes as text: it is no
    # answer, whatever it says.
    $said = @(Invoke-Command -Session $session -ArgumentList @($Document.arguments), @($Document.request) -ScriptBlock {
            param([string[]] $Arguments, [string[]] $Request)
            $ErrorActionPreference = 'Continue'
            $ProgressPreference = 'SilentlyContinue'
            $Request | & powershell.exe $Arguments 2>&1 | ForEach-Object { [string] $_ }
            "exit $LASTEXITCODE"
        })
} finally {
    Remove-PSSession -Session $session -ErrorAction SilentlyContinue
}
$code = 0
if ($said.Count -gt 0 -and [string] $said[-1] -match '^exit (-?\d+)$') {
    $code = [long] $Matches[1]
}
@{ stdout = ($said -join "`n"); exit = $code }
