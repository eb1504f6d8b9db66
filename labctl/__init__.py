"""labctl: what the network between virtual machines really delivers (the control side)."""

__version__ = "0.1.0"
