"""The embedded lab: hosts in network namespaces on one Linux machine, and the probe guest."""
