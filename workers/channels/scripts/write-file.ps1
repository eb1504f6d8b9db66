# Writes a part of a file beside the one that is meant, and puts it in that one's place with the last part, if it is whole.
#
# In:  path, beside (the path of the file that is written first), offset, content (base64), sha256 (null before the last part)
# Out: size (bytes so far)
# Errors: not-whole
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

$content = [System.Convert]::FromBase64String($Document.content)
try {
    if ([System.IO.Directory]::Exists($Document.path)) {
        throw "$($Document.path) is a folder."
    }
    $mode = [System.IO.FileMode]::Open
    if ($Document.offset -eq 0) {
        $mode = [System.IO.FileMode]::Create
    }
    $stream = [System.IO.File]::Open($Document.beside, $mode, [System.IO.FileAccess]::ReadWrite)
    try {
        $stream.SetLength($Document.offset)
        [void] $stream.Seek($Document.offset, [System.IO.SeekOrigin]::Begin)
        $stream.Write($content, 0, $content.Length)
        $size = $stream.Length
        if ($null -ne $Document.sha256) {
            [void] $stream.Seek(0, [System.IO.SeekOrigin]::Begin)
            $hash = [System.Security.Cryptography.SHA256]::Create()
            $found = [System.BitConverter]::ToString($hash.ComputeHash($stream)).Replace('-', '').ToLowerInvariant()
            if ($found -ne $Document.sha256) {
                Stop-Script -Kind 'not-whole' -Message "$size bytes of $($Document.path) arrived, and they are others."
            }
        }
    } finally {
        $stream.Dispose()
    }
    if ($null -ne $Document.sha256) {
        Move-Item -LiteralPath $Document.beside -Destination $Document.path -Force
    }
} catch {
    Remove-Item -LiteralPath $Document.beside -Force -ErrorAction SilentlyContinue
    throw
}
@{ size = $size }
