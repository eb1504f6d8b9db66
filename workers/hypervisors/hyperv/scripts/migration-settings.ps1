# What a host says about live migration, and whether it reaches another one.
#
# In:  reach: name of another host; empty: none is tried
# Out: name, enabled, authentication (kerberos, credssp), maximum, active, anyNetwork, networks, switches, processor,
#      version, reached (null: not tried, else whether the port of live migration accepts connections), clustered
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

$migrationPort = 6600

$vmHost = Get-VMHost
$network = [System.Net.NetworkInformation.IPGlobalProperties]::GetIPGlobalProperties()
$service = Get-CimInstance -Namespace 'root\virtualization\v2' -ClassName Msvm_VirtualSystemMigrationService
$reached = $null
if ($Document.reach -ne '') {
    $client = New-Object System.Net.Sockets.TcpClient
    try {
        $reached = [bool] ($client.ConnectAsync([string] $Document.reach, $migrationPort).Wait(5000) -and $client.Connected)
    } catch {
        $reached = $false
    } finally {
        $client.Close()
    }
}
@{
    # Not what Get-VMHost calls so, which may be the domain alone.
    name           = "$($network.HostName).$($network.DomainName)".TrimEnd('.')
    enabled        = [bool] $vmHost.VirtualMachineMigrationEnabled
    authentication = $vmHost.VirtualMachineMigrationAuthenticationType.ToString().ToLowerInvariant()
    maximum        = [int] $vmHost.MaximumVirtualMachineMigrations
    active         = [int] $service.ActiveVirtualSystemMigrationCount
    anyNetwork     = [bool] $vmHost.UseAnyNetworkForMigration
    networks       = @(Get-VMMigrationNetwork -ErrorAction SilentlyContinue | ForEach-Object { [string] $_.Subnet })
    switches       = @(Get-VMSwitch | ForEach-Object { [string] $_.Name })
    processor      = [string] @(Get-CimInstance -ClassName Win32_Processor)[0].Manufacturer
    version        = [System.Environment]::OSVersion.Version.ToString()
    reached        = $reached
    clustered      = [bool] (Get-Service -Name ClusSvc -ErrorAction SilentlyContinue | Where-Object { $_.Status -eq 'Running' })
}
