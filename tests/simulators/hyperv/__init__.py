"""Hyper-V hosts that only pretend: they run the scripts of `workers.hypervisors.hyperv` by name and document.

`state.py` is what there is, `operations.py` what each script does to it, `moves.py` live migration, `shell.py` PowerShell on
such a host without a wire between. Guests are those of a `World` (network namespaces), or none at all.
"""
