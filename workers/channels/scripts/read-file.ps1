# Reads a part of a file, also of one that somebody still writes.
#
# In:  path, offset, length (bytes), digest (whether the whole file's is wanted)
# Out: content (base64), size (of the whole file), sha256 (lower case; null when it was not asked for)
# Errors: no-file
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

if (-not [System.IO.File]::Exists($Document.path)) {
    Stop-Script -Kind 'no-file' -Message "There is no file $($Document.path)."
}
$share = [System.IO.FileShare]::ReadWrite -bor [System.IO.FileShare]::Delete
$stream = [System.IO.File]::Open($Document.path, 'Open', 'Read', $share)
try {
    $size = $stream.Length
    $digest = $null
    if ($Document.digest) {
        $hash = [System.Security.Cryptography.SHA256]::Create()
        $digest = [System.BitConverter]::ToString($hash.ComputeHash($stream)).Replace('-', '').ToLowerInvariant()
    }
    [void] $stream.Seek($Document.offset, [System.IO.SeekOrigin]::Begin)
    $content = New-Object -TypeName byte[] -ArgumentList ([Math]::Max(0, [Math]::Min($Document.length, $size - $Document.offset)))
    $filled = 0
    while ($filled -lt $content.Length) {
        $more = $stream.Read($content, $filled, $content.Length - $filled)
        if ($more -eq 0) {
            break
        }
        $filled += $more
    }
} finally {
    $stream.Dispose()
}
@{ content = [System.Convert]::ToBase64String($content, 0, $filled); size = $size; sha256 = $digest }
