"""Instance controller: one WindowsInstance and one reconciler task per inventory entry.

Instances wait for each other only in a rollout.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import replace

from winpod.errors import WinpodError
from winpod.instances.cluster.inventory import Inventory, InventoryEntry
from winpod.instances.cluster.resource import InstanceStatus, WindowsInstance
from winpod.instances.operator.conditions import ENTRY_GOOD, find_condition, invalid_entry_event
from winpod.instances.operator.context import OperatorContext
from winpod.instances.operator.reconciler import InstanceReconciler

_SETTLE_SECONDS, _RETRY_SECONDS = 0.1, 5.0
_log = logging.getLogger(__name__)


class InstanceController:
    """Notified of every change: inventory, settings, payload and objects."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._changed = asyncio.Event()
        self._tasks: dict[str, tuple[InstanceReconciler, asyncio.Task[None]]] = {}
        self._reported: set[str] = set()

    def on_inventory_change(self) -> None:
        self._changed.set()

    def on_any_change(self) -> None:
        for reconciler, _ in self._tasks.values():
            reconciler.wake()
        self._changed.set()

    def on_instance_change(self, name: str) -> None:
        if running := self._tasks.get(name):
            running[0].wake()
        self._changed.set()

    async def run(self, context: OperatorContext) -> None:
        """Run until cancelled; interrupted work is continued later."""
        try:
            await context.inputs.wait_synced()
            await context.objects.wait_synced()
            while True:
                self._changed.clear()
                wait = await self._reconcile(context)
                self._start_reconcilers(context)
                await self._wait_changed(wait)
        finally:
            tasks = [task for _, task in self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._tasks = {}

    async def _wait_changed(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return
        await asyncio.sleep(_SETTLE_SECONDS)

    async def _reconcile(self, context: OperatorContext) -> float | None:
        """Create, update and delete objects; return the retry delay, None if all succeeded."""
        inventory = context.inputs.entries
        self._report_invalid(context, inventory)
        failed = False
        for entry in inventory.valid:
            failed |= not await _succeeds(self._ensure(context, entry))
        names = {entry.name for entry in inventory.valid}
        for instance in list(context.objects.known.values()):
            if instance.name not in names and not context.inputs.is_retained(_entry_of(instance)):
                failed |= not await _succeeds(context.objects.delete(instance.name))
            failed |= not await _succeeds(
                self._update_entry_condition(context, inventory, instance)
            )
        return _RETRY_SECONDS if failed else None

    async def _ensure(self, context: OperatorContext, entry: InventoryEntry) -> None:
        instance = context.objects.known.get(entry.name)
        if instance is None and _may_be_a_machine(context, entry):
            _log.info(
                "Instance %s waits for the Machines to be listed: a Machine had its address",
                entry.name,
            )
        elif instance is None:
            await context.objects.create(entry)
        elif not instance.is_deleting and _entry_of(instance) != replace(entry, addresses=()):
            await context.objects.update_spec(entry.name, entry)

    async def _update_entry_condition(
        self, context: OperatorContext, inventory: Inventory, instance: WindowsInstance
    ) -> None:
        """Report an invalid entry of an existing instance in its condition."""
        problems = [
            invalid.problem
            for invalid in inventory.invalid
            if invalid.key.lower() == instance.spec.address
        ]
        if not problems and find_condition(instance.status.conditions, ENTRY_GOOD) != "False":
            return

        def change(status: InstanceStatus) -> None:
            reason = "EntryBad" if problems else "EntryGood"
            context.condition(status, ENTRY_GOOD, not problems, reason, " ".join(problems))

        await context.objects.save(instance.name, change)

    def _report_invalid(self, context: OperatorContext, inventory: Inventory) -> None:
        for invalid in inventory.invalid:
            if invalid.problem not in self._reported:
                _log.warning("Invalid inventory entry: %s", invalid.problem)
                context.tell_event(invalid_entry_event(self._namespace, invalid))
        self._reported = {invalid.problem for invalid in inventory.invalid}

    def _start_reconcilers(self, context: OperatorContext) -> None:
        for name in context.objects.known:
            running = self._tasks.get(name)
            if running is None or running[1].done():
                reconciler = InstanceReconciler(name, context)
                task = asyncio.create_task(_run_reconciler(reconciler))
                self._tasks[name] = (reconciler, task)
        self._tasks = {
            name: running for name, running in self._tasks.items() if not running[1].done()
        }


def _may_be_a_machine(context: OperatorContext, entry: InventoryEntry) -> bool:
    """Whether a Machine may have this address; Machines are never reconfigured."""
    if entry.machine or context.machines.is_synced:
        return False
    return any(
        instance.spec.machine and instance.spec.address == entry.address
        for instance in context.objects.known.values()
    )


async def _succeeds(work: Coroutine[None, None, None]) -> bool:
    """Run a task; log errors, so that they do not affect other instances."""
    try:
        await work
    except WinpodError as error:
        _log.warning("Failed to reconcile instance object: %s", error)
        return False
    return True


async def _run_reconciler(reconciler: InstanceReconciler) -> None:
    """Restart the reconciler after unexpected errors."""
    while True:
        try:
            return await reconciler.run()
        except Exception:
            _log.exception("Reconciler of instance %s failed, restarting", reconciler.name)
        await asyncio.sleep(_RETRY_SECONDS)


def _entry_of(instance: WindowsInstance) -> InventoryEntry:
    spec = instance.spec
    return InventoryEntry(instance.name, spec.address, spec.username, spec.port, spec.machine)
