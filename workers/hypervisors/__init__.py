"""Drivers of hypervisors, with the same file names in each."""
