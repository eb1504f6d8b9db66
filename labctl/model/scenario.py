"""Scenarios: where the two endpoints are and what happens to them during the transfer."""

from __future__ import annotations

from enum import StrEnum


class Scenario(StrEnum):
    """Placement and events of a run. The first endpoint named sends by default."""

    SAME_HOST = "same-host"
    CROSS_HOST = "cross-host"
    DURING_MIGRATION = "during-migration"
    VM_TO_HOST = "vm-to-host"
    HOST_TO_VM = "host-to-vm"
    HOST_TO_HOST = "host-to-host"

    @property
    def vms(self) -> int:
        """How many VMs a run of it creates."""
        return {Scenario.HOST_TO_HOST: 0, Scenario.VM_TO_HOST: 1, Scenario.HOST_TO_VM: 1}.get(self, 2)

    @property
    def has_peer(self) -> bool:
        """Whether one side is a host or a plain machine, so that the setting `peer` applies."""
        return self in (Scenario.VM_TO_HOST, Scenario.HOST_TO_VM, Scenario.HOST_TO_HOST)

    @property
    def migrates(self) -> bool:
        """Whether a VM moves during the transfer."""
        return self is Scenario.DURING_MIGRATION


class Side(StrEnum):
    """The two roles of a transfer. Data flows from the sender to the receiver."""

    SENDER = "sender"
    RECEIVER = "receiver"


OWN_HOST = "own-host"
OTHER_HOST = "other-host"
"""Levels of the setting `peer`, beside the names of plain machines of the lab."""
