# Answers what it is given.
#
# In:  value
# Out: value
param(
    [Parameter(Mandatory = $true)]
    [psobject] $Document
)

@{ value = $Document.value }
