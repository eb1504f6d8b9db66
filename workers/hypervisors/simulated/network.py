"""A small model of what a path carries: by NIC models, offloads, streams and placement. Figures of nobody's machine."""

from __future__ import annotations

import math

from workers.hypervisors.simulated.lines import End
from workers.hypervisors.simulated.world import World

NIC_RATES = {
    "virtio": 22e9,
    "vmxnet3": 18e9,
    "synthetic": 14e9,
    "vt-d": 24e9,
    "sr-iov": 23e9,
    "igb": 2.6e9,
    "e1000e": 2.4e9,
    "e1000": 1.9e9,
    "vmxnet2": 1.2e9,
    "pcnet32": 0.6e9,
    "rtl8139": 0.4e9,
    "legacy": 0.09e9,
}
"""What one stream moves through an adapter, in bit/s."""

HOST_RATE = 38e9
"""What one stream moves out of or into a host itself."""

_OFF = {"tso": 0.6, "gso": 0.85, "gro": 0.75, "tx": 0.7, "rx": 0.85, "sg": 0.7}
"""What is left with an offload off."""

_ROUND_TRIP = 0.0002
"""Seconds; with a window it bounds the rate of a stream."""


def path_rate(
    world: World, sender: End, receiver: End, *, streams: int = 1, window: int | None = None, mtu: int = 1500
) -> float:
    """What the path from sender to receiver carries over all streams, in bit/s."""
    rate = min(_end_rate(world, sender), _end_rate(world, receiver))
    rate *= 1 + 0.12 * math.log2(streams)
    if window is not None:
        rate = min(rate, streams * window * 8 / _ROUND_TRIP)
    if sender.host != receiver.host:
        rate = min(0.9 * rate, world.figures.wire)
    if mtu > 1500:
        rate *= 1.05
    for end in (sender, receiver):
        rate *= world.like(world.figures.between_boots, "boot", end.name)
    return rate / max(world.slowness(sender.host), world.slowness(receiver.host))


def _end_rate(world: World, end: End) -> float:
    if end.shape is None:
        rate = HOST_RATE
    else:
        shape = end.shape
        rate = NIC_RATES.get(shape.nic_model, 1e9)
        for name, on in shape.offloads.items():
            rate *= 1.0 if on else _OFF.get(name, 1.0)
        if shape.vhost is False:
            rate *= 0.45
        rate *= 1 + 0.1 * math.log2(shape.queues)
    return rate * world.like(world.figures.between_hosts, "host", end.host)
