"""The network stack of hosts: offloads that a campaign varies there, set, read back, and restored to what they were."""
