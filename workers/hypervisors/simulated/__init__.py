"""A hypervisor that only pretends: hosts, VMs and transfers for rehearsals, fault schedules and benchmarks."""
