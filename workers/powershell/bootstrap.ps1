# Reads a request from standard input and answers it. The only text of ours on a command line, and always the same.
$ErrorActionPreference = 'Stop'
$ProgressPreference = 'SilentlyContinue'
$request = @($input)
$prelude = [System.Text.Encoding]::UTF8.GetString([System.Convert]::FromBase64String($request[3]))
. ([scriptblock]::Create($prelude))
[System.Console]::Out.Write((Invoke-Request $request))
[System.Console]::Out.Flush()
