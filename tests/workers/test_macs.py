from __future__ import annotations

import re
from ipaddress import IPv4Address

import pytest

from labctl.model.nic import Hypervisor
from workers.macs import mac_of_address, mac_of_serial, serials

RANGES = {
    Hypervisor.KVM: "52:54:00:..:..:..",
    Hypervisor.VSPHERE: "00:50:56:[0-3].:..:..",
    Hypervisor.HYPERV: "02:4c:43:..:..:..",
}


@pytest.mark.parametrize("hypervisor", Hypervisor)
def test_macs_stay_in_the_range_of_their_hypervisor(hypervisor: Hypervisor) -> None:
    """V13: vSphere takes 00:50:56:00:00:00 to 00:50:56:3f:ff:ff by hand, and gives out the rest by itself."""
    macs = [mac_of_address(hypervisor, IPv4Address(text)) for text in ("10.0.0.0", "10.255.255.255", "192.0.2.7")]
    macs += [mac_of_serial(hypervisor, serial, store="s") for serial in (0, 1, serials(hypervisor) - 1)]
    for mac in macs:
        assert re.fullmatch(RANGES[hypervisor], mac)
    assert len(set(macs)) == len(macs)


def test_the_mac_of_a_static_address_shows_the_address() -> None:
    assert mac_of_address(Hypervisor.KVM, IPv4Address("198.18.1.2")) == "52:54:00:12:01:02"


def test_two_stores_count_from_different_places() -> None:
    one, other = ({mac_of_serial(Hypervisor.VSPHERE, n, store=store) for n in range(1000)} for store in ("a", "b"))
    assert len(one) == len(other) == 1000
    assert not one & other
