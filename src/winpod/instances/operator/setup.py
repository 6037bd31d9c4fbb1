"""Instances as a task of the operator's leader, and their metrics.

Everything is created again whenever this replica becomes the leader, so nothing depends on what the
process observed when it led before.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from winpod.concurrency import supervise
from winpod.instances.cluster.bootstrap_tokens import BootstrapTokens
from winpod.instances.cluster.endpoint import ClusterEndpoint, find_cluster_endpoint
from winpod.instances.cluster.nodes import NodeClient
from winpod.instances.cluster.resource import WindowsInstance
from winpod.instances.operator.conditions import CONTAINERD_RUNNING, REACHABLE, find_condition
from winpod.instances.operator.context import OperatorContext
from winpod.instances.operator.controller import InstanceController
from winpod.instances.operator.csr_approver import CsrApprover
from winpod.instances.operator.desired_state import DesiredStateSource
from winpod.instances.operator.instance_objects import InstanceStore
from winpod.instances.operator.inventory_watcher import InventoryWatcher
from winpod.instances.operator.machine_watcher import MachineWatcher
from winpod.instances.operator.rollout import Rollout
from winpod.operator.instance_settings import InstanceSettings
from winpod.operator.manager import ManagedTask, ManagerContext


class InstanceMetrics(Collector):
    """Metrics of the leader; other replicas do not watch instances."""

    def __init__(
        self, instances: Callable[[], Iterable[WindowsInstance]], count_invalid: Callable[[], int]
    ) -> None:
        self._instances = instances
        self._count_invalid = count_invalid

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        instances = list(self._instances())
        counts: Counter[tuple[str, ...]] = Counter(
            (instance.status.phase or "Pending", instance.status.version) for instance in instances
        )
        yield _family("winpod_instances", "Windows Server instances.", ("phase", "version"), counts)
        for name, kind, help_text in (
            ("winpod_instances_reachable", REACHABLE, "Whether instances answer."),
            ("winpod_instances_containerd_running", CONTAINERD_RUNNING, "Whether containerd runs."),
        ):
            statuses: Counter[tuple[str, ...]] = Counter(
                (status,)
                for instance in instances
                if (status := find_condition(instance.status.conditions, kind).lower())
            )
            yield _family(name, help_text, ("status",), statuses)
        yield GaugeMetricFamily(
            "winpod_instance_entries_bad",
            "Entries of the ConfigMap that are not understood.",
            value=float(self._count_invalid()),
        )


def _family(
    name: str, help_text: str, labels: tuple[str, ...], counts: Counter[tuple[str, ...]]
) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=labels)
    for values, count in sorted(counts.items()):
        family.add_metric(values, count)
    return family


def setup_instances(payload: Path, shared: ManagerContext) -> ManagedTask:
    """Register the task and its metrics; `payload` is the directory of the files to install."""
    leader = _LeaderTask(payload, shared)
    shared.registry.register(InstanceMetrics(leader.known, leader.count_invalid_entries))
    return "instances", leader.run


class _LeaderTask:
    def __init__(self, payload: Path, shared: ManagerContext) -> None:
        self._payload = payload
        self._shared = shared
        self._context: OperatorContext | None = None
        self._settings_changed = shared.settings.subscribe()

    def known(self) -> Iterable[WindowsInstance]:
        return self._context.objects.known.values() if self._context else ()

    def count_invalid_entries(self) -> int:
        return len(self._context.inputs.entries.invalid) if self._context else 0

    async def run(self) -> None:
        instances = InstanceController(self._shared.options.namespace)
        context = self._context = self._create_context(instances)
        approver = CsrApprover(self._shared.api, context)
        try:
            async with asyncio.TaskGroup() as group:
                for name, work in (
                    ("instance objects", context.objects.run),
                    ("instance inventory", context.inputs.run),
                    ("instance payload", context.desired_source.run),
                    ("instance certificates", approver.run),
                    ("instance settings", lambda: self._follow_settings(instances, context)),
                    ("instances", lambda: instances.run(context)),
                ):
                    group.create_task(supervise(name, work))
        finally:
            self._context = None

    def _create_context(self, instances: InstanceController) -> OperatorContext:
        api, namespace = self._shared.api, self._shared.options.namespace
        changed = instances.on_any_change
        objects = InstanceStore(api, namespace, instances.on_instance_change)
        machines = MachineWatcher(api, self._settings, instances.on_inventory_change)
        return OperatorContext(
            settings=self._settings,
            desired_source=DesiredStateSource(
                self._payload, self._settings, self._cluster, changed
            ),
            inputs=InventoryWatcher(
                api, namespace, self._settings, machines, instances.on_inventory_change, changed
            ),
            objects=objects,
            nodes=NodeClient(api),
            machines=machines,
            tokens=BootstrapTokens(api),
            rollout=Rollout(objects, machines, lambda: self._settings().at_most),
            tell_event=self._shared.record_event,
        )

    def _settings(self) -> InstanceSettings:
        return self._shared.settings.now.instances

    async def _cluster(self) -> ClusterEndpoint:
        configured = self._settings().api_server
        return await find_cluster_endpoint(self._shared.api, self._shared.rest_config, configured)

    async def _follow_settings(
        self, instances: InstanceController, context: OperatorContext
    ) -> None:
        while True:
            await self._settings_changed.wait()
            self._settings_changed.clear()
            context.machines.settings_changed()
            instances.on_any_change()
