# What is sent with each script: it decodes the request, runs the script, and makes the answer. See the package's docstring.
# Windows PowerShell 5.1 and PowerShell 7.
Set-StrictMode -Version 3.0
$global:ErrorActionPreference = 'Stop'
$global:ProgressPreference = 'SilentlyContinue'
$global:WarningPreference = 'SilentlyContinue'
$global:ConfirmPreference = 'None'

function Stop-Script {
    # Ends the script with an error of a kind of its own.
    param(
        [Parameter(Mandatory = $true)] [string] $Kind,
        [Parameter(Mandatory = $true)] [string] $Message,
        [System.Collections.IDictionary] $Detail = @{}
    )
    $exception = New-Object -TypeName System.InvalidOperationException -ArgumentList $Message
    $exception.Data['labctl-kind'] = $Kind
    # As text, because .NET Framework keeps only what can be serialised there.
    $exception.Data['labctl-detail'] = ConvertTo-AnswerJson $Detail
    throw $exception
}

function Write-JobProgress {
    # Says how far a job is. What can't be written at this moment is said the next time.
    param([Parameter(Mandatory = $true)] [System.Collections.IDictionary] $Progress)
    $folder = [System.Environment]::GetEnvironmentVariable('LABCTL_JOB')
    if ($folder) {
        try {
            Write-WholeFile (Join-Path $folder 'progress') (ConvertTo-AnswerJson $Progress)
        } catch [System.IO.IOException], [System.UnauthorizedAccessException] {
            $null = $_
        }
    }
}

function Write-WholeFile([string] $Path, [string] $Text) {
    # Replaced as a whole, so that nobody reads half of it.
    $new = "$Path.new"
    [System.IO.File]::WriteAllText($new, $Text)
    Move-Item -LiteralPath $new -Destination $Path -Force
}

function Read-WholeFile([string] $Path) {
    # Without keeping who replaces it from doing so. Null when there is none.
    try {
        $file = [System.IO.File]::Open($Path, 'Open', 'Read', 'ReadWrite, Delete')
    } catch [System.IO.IOException] {
        return $null
    }
    $reader = New-Object -TypeName System.IO.StreamReader -ArgumentList $file
    try {
        return $reader.ReadToEnd()
    } finally {
        $reader.Dispose()
    }
}

function ConvertFrom-Request([string] $Text) {
    [System.Text.Encoding]::UTF8.GetString([System.Convert]::FromBase64String($Text))
}

function ConvertFrom-Document($Value) {
    # Every text of a document has a mark before it, so that neither edition of ConvertFrom-Json takes one for a date.
    if ($Value -is [string]) {
        return $Value.Substring(1)
    }
    if ($Value -is [System.Collections.IList]) {
        $list = New-Object -TypeName object[] -ArgumentList $Value.Count
        for ($index = 0; $index -lt $Value.Count; $index++) {
            $list[$index] = ConvertFrom-Document $Value[$index]
        }
        return , $list
    }
    if ($Value -is [System.Management.Automation.PSCustomObject]) {
        $object = [ordered] @{}
        foreach ($property in $Value.PSObject.Properties) {
            $object[$property.Name] = ConvertFrom-Document $property.Value
        }
        return [pscustomobject] $object
    }
    return $Value
}

function ConvertTo-JsonText([string] $Text) {
    $escaped = $Text.Replace('\', '\\').Replace('"', '\"')
    if ($escaped.IndexOfAny([char[]] (0..31)) -ge 0) {
        foreach ($code in 0..31) {
            $escaped = $escaped.Replace([string] [char] $code, '\u{0:x4}' -f $code)
        }
    }
    '"' + $escaped + '"'
}

function ConvertTo-AnswerJson($Value, [int] $Depth = 0) {
    # JSON of what an answer may hold. ConvertTo-Json of the various editions cuts depth, unwraps lists and writes dates and
    # enums each in its own way; this one refuses what it can't write without doubt.
    if ($Depth -gt 32) {
        throw 'An answer is nested more than 32 deep.'
    }
    if ($null -eq $Value -or $Value -is [System.DBNull]) {
        return 'null'
    }
    if ($Value -is [psobject] -and $Value -isnot [System.Management.Automation.PSCustomObject]) {
        $Value = $Value.PSObject.BaseObject
    }
    $invariant = [System.Globalization.CultureInfo]::InvariantCulture
    if ($Value -is [string] -or $Value -is [char]) {
        return ConvertTo-JsonText ([string] $Value)
    }
    if ($Value -is [bool] -or $Value -is [switch]) {
        if ($Value) { return 'true' } else { return 'false' }
    }
    if ($Value -is [System.Enum]) {
        return ConvertTo-JsonText ($Value.ToString())
    }
    if ($Value -is [byte] -or $Value -is [sbyte] -or $Value -is [int16] -or $Value -is [uint16] -or $Value -is [int] -or
        $Value -is [uint32] -or $Value -is [long] -or $Value -is [uint64] -or $Value -is [decimal]) {
        return $Value.ToString($invariant)
    }
    if ($Value -is [double] -or $Value -is [single]) {
        if ([double]::IsNaN($Value) -or [double]::IsInfinity($Value)) {
            throw 'An answer holds a number that is none.'
        }
        return $Value.ToString('R', $invariant)
    }
    if ($Value -is [datetime]) {
        return ConvertTo-JsonText ($Value.ToUniversalTime().ToString("yyyy-MM-dd'T'HH:mm:ss.ffffff'Z'", $invariant))
    }
    if ($Value -is [System.DateTimeOffset]) {
        return ConvertTo-JsonText ($Value.UtcDateTime.ToString("yyyy-MM-dd'T'HH:mm:ss.ffffff'Z'", $invariant))
    }
    if ($Value -is [timespan]) {
        return $Value.TotalSeconds.ToString('R', $invariant)
    }
    if ($Value -is [guid] -or $Value -is [version] -or $Value -is [uri] -or $Value -is [System.Net.IPAddress] -or
        $Value -is [System.Net.NetworkInformation.PhysicalAddress]) {
        return ConvertTo-JsonText ($Value.ToString())
    }
    if ($Value -is [System.Collections.IDictionary]) {
        # Entry by entry: `.Keys` of one that has an entry of this name would be that.
        $members = @(foreach ($entry in $Value.GetEnumerator()) {
                (ConvertTo-JsonText ([string] $entry.Key)) + ':' + (ConvertTo-AnswerJson $entry.Value ($Depth + 1))
            })
        return '{' + ($members -join ',') + '}'
    }
    if ($Value -is [System.Management.Automation.PSCustomObject]) {
        $members = @(foreach ($property in $Value.PSObject.Properties) {
                (ConvertTo-JsonText $property.Name) + ':' + (ConvertTo-AnswerJson $property.Value ($Depth + 1))
            })
        return '{' + ($members -join ',') + '}'
    }
    if ($Value -is [System.Collections.IList]) {
        $elements = @(foreach ($element in $Value) { ConvertTo-AnswerJson $element ($Depth + 1) })
        return '[' + ($elements -join ',') + ']'
    }
    throw "An answer holds a $($Value.GetType().FullName); it has to name what is wanted of it."
}

function Get-Failure($Record) {
    # An error as an object of the answer.
    $exception = $Record.Exception
    $kind = 'script-failed'
    $detail = '{}'
    if ($exception.Data.Contains('labctl-kind')) {
        $kind = [string] $exception.Data['labctl-kind']
        $detail = [string] $exception.Data['labctl-detail']
    }
    $position = ''
    if ($null -ne $Record.InvocationInfo) {
        $position = "line $($Record.InvocationInfo.ScriptLineNumber): $(([string] $Record.InvocationInfo.Line).Trim())"
    }
    $members = @(
        '"kind":' + (ConvertTo-AnswerJson $kind)
        '"message":' + (ConvertTo-AnswerJson ([string] $exception.Message))
        '"id":' + (ConvertTo-AnswerJson ([string] $Record.FullyQualifiedErrorId))
        '"category":' + (ConvertTo-AnswerJson ([string] $Record.CategoryInfo.Category))
        '"position":' + (ConvertTo-AnswerJson $position)
        '"hresult":' + (ConvertTo-AnswerJson ([long] $exception.GetBaseException().HResult))
        '"detail":' + $detail
    )
    '{"ok":false,"data":null,"error":{' + ($members -join ',') + '}}'
}

function Get-Answer([string] $Script, [string] $Document) {
    # The envelope of a script's answer.
    try {
        if ($PSVersionTable.PSVersion -lt [version] '5.1') {
            Stop-Script -Kind 'powershell-too-old' -Message (
                "This is PowerShell $($PSVersionTable.PSVersion); labctl needs 5.1 (Windows Management Framework 5.1).")
        }
        $given = ConvertFrom-Document (ConvertFrom-Json $Document)
        $answers = @(& ([scriptblock]::Create($Script)) -Document $given)
        if ($answers.Count -ne 1) {
            throw "The script has put out $($answers.Count) objects instead of one."
        }
        '{"ok":true,"data":' + (ConvertTo-AnswerJson $answers[0]) + ',"error":null}'
    } catch {
        Get-Failure $_
    }
}

function Get-EncodedAnswer([string[]] $Request) {
    # The answer to a request in base64, so that no code page on its way means anything. Lines of a request: version, number
    # of this request, name of the script, this text, the script, the document.
    [System.Threading.Thread]::CurrentThread.CurrentCulture = [System.Globalization.CultureInfo]::InvariantCulture
    try {
        # Programs that scripts start are read as UTF-8, where they care.
        [System.Console]::OutputEncoding = New-Object -TypeName System.Text.UTF8Encoding -ArgumentList $false
    } catch [System.IO.IOException] {
        # Without a console there is no code page either.
        $null = $_
    }
    $answer = Get-Answer (ConvertFrom-Request $Request[4]) (ConvertFrom-Request $Request[5])
    [System.Convert]::ToBase64String([System.Text.Encoding]::UTF8.GetBytes($answer))
}

function Invoke-Request([string[]] $Request) {
    # The answer to a request, between the markers that the request asks for.
    "`n<labctl $($Request[1])>`n$(Get-EncodedAnswer $Request)`n</labctl $($Request[1])>`n"
}
