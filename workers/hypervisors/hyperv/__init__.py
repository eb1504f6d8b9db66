"""VMs on Hyper-V hosts, through PowerShell scripts that run on the hosts."""
