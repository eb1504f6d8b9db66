# Reads a request from standard input and answers it. The only text of ours on a command line, and always the same.
$ErrorActionPreference = 'Stop'
$ProgressPreference = 'SilentlyContinue'
$request = @($input)
& {
    # In a scope of its own: in the global one, strict mode would hold inside the modules of Windows too, which aren't made for it.
    $prelude = [System.Text.Encoding]::UTF8.GetString([System.Convert]::FromBase64String($request[3]))
    . ([scriptblock]::Create($prelude))
    [System.Console]::Out.Write((Invoke-Request $request))
    [System.Console]::Out.Flush()
}
