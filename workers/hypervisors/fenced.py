"""A driver behind the fence: no call that changes anything reaches a hypervisor without the attempt's token."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from labctl.errors import AttemptCancelled, LabError
from labctl.model.order import MigrationOrder
from labctl.model.result import MigrationSample
from workers.guard import Guard
from workers.hypervisors.base import MigrationOutcome, Vm, VmDriver, VmRequest


def fenced(driver: VmDriver, guard: Guard) -> VmDriver:
    """The driver, with the guard asked before each call that changes something. Calls that only look pass as they are."""
    return cast(VmDriver, _Fenced(driver, guard))


class _Fenced:
    """What it changes it says below; all else is the driver's own."""

    def __init__(self, driver: VmDriver, guard: Guard) -> None:
        self._driver = driver
        self._guard = guard

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the driver has
        return getattr(self._driver, name)

    def create(self, host: str, request: VmRequest, *, timeout: float) -> Vm:
        """Create a VM. One that came about although the attempt was given up meanwhile is removed at once: who cleans
        after the attempt may have looked before it was there."""
        self._guard.confirm()
        vm = self._driver.create(host, request, timeout=timeout)
        try:
            self._guard.confirm()
        except AttemptCancelled:
            with suppress(LabError):
                self._driver.destroy(vm)
            raise
        return vm

    def migrate(
        self,
        vm: Vm,
        destination: str,
        order: MigrationOrder,
        *,
        on_sample: Callable[[MigrationSample], None] | None = None,
    ) -> MigrationOutcome:
        """Move a VM."""
        self._guard.confirm()
        return self._driver.migrate(vm, destination, order, on_sample=on_sample)

    def pause(self, vm: Vm) -> None:
        """Pause a VM."""
        self._guard.confirm()
        self._driver.pause(vm)

    def unpause(self, vm: Vm) -> None:
        """Let a VM go on."""
        self._guard.confirm()
        self._driver.unpause(vm)

    def destroy(self, vm: Vm) -> None:
        """Remove a VM. Those of an attempt that was given up are left to who cleans after it: its hosts may be measured."""
        self._guard.confirm()
        self._driver.destroy(vm)
