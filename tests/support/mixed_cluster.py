"""In-memory cluster with instances of a ConfigMap and Machines of MachineSets.

The Machine controller is a stand-in: a deleted Machine is terminating for a while, and its
replacement is created when a test says so. Actions over SSH are simulated. Decisions of the
operator and its writes to the cluster are real.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.support.instance_inventory import machine, machines_path, set_entries
from tests.support.instance_operator import PATH, OperatorHarness
from tests.support.memory_api import MemoryApi
from winpod.instances.cluster.nodes import NODES
from winpod.instances.cluster.resource import InstanceStatus
from winpod.instances.operator.actions import ActionContext, ActionRunner
from winpod.instances.operator.machines import GROUP
from winpod.instances.operator.observe import Observation, observed_instance
from winpod.instances.planner.desired import DesiredState
from winpod.instances.planner.next_action import Action, NextAction, next_action
from winpod.instances.planner.state import InstanceState
from winpod.instances.planner.steps import Step, StepKind
from winpod.operator.instance_settings import InstanceSettings
from winpod.windows.builds import Build

SETS = f"{GROUP}/namespaces/machines/machinesets"
LEFT = "2026-11-17T00:00:00Z"
PUT = Step(StepKind.PUT_FILE, r"C:\k\bin\kubelet.exe", "", "", "")


class MixedCluster(MemoryApi):
    """Cluster; `entries` are those of the ConfigMap, `changed` the converged hosts."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[str] = []
        self.changed: set[str] = set()
        self._made = 0

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        params: Mapping[str, str] | None = None,
        content: str = "",
    ) -> bytes:
        name = path.removeprefix(f"{machines_path()}/")
        if method == "DELETE" and name in self.machines():
            self.requests.append((method, path))
            await self.leave(name)
            return b"{}"
        return await super().request(method, path, body, params=params, content=content)

    async def entry(self, name: str) -> None:
        """Add an instance of the ConfigMap that is a ready node."""
        self.entries.append(name)
        await set_entries(OperatorHarness(api=self), **dict.fromkeys(self.entries, "username=me"))
        await self._node(name, name)

    async def set(
        self, name: str, replicas: int, *, ready: int | None = None, **metadata: Any
    ) -> None:
        """Add a MachineSet; by default its (stale) status reports all replicas as ready."""
        labels = {"machine.openshift.io/os-id": "Windows"}
        spec = {"replicas": replicas, "template": {"metadata": {"labels": labels}}}
        status = {"readyReplicas": replicas if ready is None else ready}
        found = {"metadata": metadata, "spec": spec, "status": status}
        await self.put(f"{SETS}/{name}", found)

    async def node_of_set(self, name: str) -> None:
        """Add a Machine that has long been a ready node."""
        await self.make(name)
        await self._node(name, f"machine-{name}", machine=name)

    async def make(self, name: str, **metadata: Any) -> None:
        self._made += 1
        found = machine(f"192.0.2.{self._made}")
        owners = [{"kind": "MachineSet", "name": name.partition("-")[0]}]
        found["metadata"] |= {"ownerReferences": owners, **metadata}
        await self.put(f"{machines_path()}/{name}", found)

    async def leave(self, name: str) -> None:
        await self.make(name, deletionTimestamp=LEFT)

    async def take_out(self, name: str) -> None:
        await self.remove(f"{machines_path()}/{name}")
        self.objects.pop(f"{NODES}/{name}", None)

    async def join(self, name: str) -> None:
        """Let the kubelet of a host register."""
        await OperatorHarness(api=self).node(name, heartbeat="1")

    async def _node(self, name: str, instance: str, *, machine: str = "") -> None:
        await self.join(name)
        node: dict[str, Any] = {"node": name, "nodeUid": f"{NODES}/{name}", "phase": "Ready"}
        await OperatorHarness(api=self).instance(instance, machine=machine, **node)

    async def begin(self, instance: str) -> None:
        """Record the start of an update, before anything is done."""
        path = f"{PATH}/{instance}"
        now = self.objects[path]
        await self.put(path, {**now, "status": {**now["status"], "changingSince": LEFT}})

    def machines(self) -> dict[str, dict[str, Any]]:
        """Return the metadata of the Machines by name."""
        return {
            path.rpartition("/")[2]: obj["metadata"]
            for path, obj in self.objects.items()
            if path.startswith(f"{machines_path()}/")
        }

    async def step(self) -> None:
        """Let the Machine controller do one thing: remove or create a Machine."""
        machines = self.machines()
        if deleting := [
            name for name, metadata in machines.items() if "deletionTimestamp" in metadata
        ]:
            return await self.take_out(deleting[0])
        for path, obj in list(self.objects.items()):
            owner = path.removeprefix(f"{SETS}/")
            members = [name for name in machines if name.partition("-")[0] == owner]
            if path.startswith(f"{SETS}/") and len(members) < obj["spec"]["replicas"]:
                return await self.make(f"{owner}-new-{self._made}")
        return None

    def down(self) -> int:
        """Return the number of desired nodes that cannot run pods."""
        replicas = [
            int(obj["spec"]["replicas"])
            for path, obj in self.objects.items()
            if path.startswith(f"{SETS}/")
        ]
        nodes = {path.rpartition("/")[2] for path in self.objects if path.startswith(f"{NODES}/")}
        machines = self.machines()
        ready = [
            name for name in machines if name in nodes and "deletionTimestamp" not in machines[name]
        ]
        cordoned = [
            name
            for name in self.entries
            if self.objects[f"{NODES}/{name}"]["spec"]["unschedulable"]
        ]
        return max(0, sum(replicas) - len(ready)) + len(cordoned)

    def exists(self, instance: str) -> bool:
        return f"{PATH}/{instance}" in self.objects

    def is_changed(self) -> bool:
        """Return whether all are updated and nothing is left to do."""
        return (
            self.down() == 0
            and set(self.machines()) | set(self.entries) <= self.changed
            and all(
                obj["status"].get("phase") == "Ready"
                for path, obj in self.objects.items()
                if path.startswith(f"{PATH}/")
            )
        )

    def status(self, instance: str) -> dict[str, Any]:
        return dict(self.objects.get(f"{PATH}/{instance}", {}).get("status", {}))


class OperatorProcess:
    """Operator process; a test lets it decide and act on an instance."""

    def __init__(self, harness: OperatorHarness, cluster: MixedCluster) -> None:
        self.context = harness.context
        self._cluster = cluster

    async def decide(self, name: str) -> NextAction:
        return (await self._situation(name))[1]

    async def act(self, name: str) -> NextAction:
        """Carry out the decision; changing and joining a host is simulated."""
        case, decision = await self._situation(name)
        if decision.action is Action.APPLY:
            await self._apply(case)
        else:
            await ActionRunner(self.context).run(decision.action, case)
        return decision

    async def reconcile(self) -> None:
        """Create and delete objects to match the inventory."""
        context = self.context
        entries = context.inputs.entries.valid
        for entry in entries:
            if entry.name not in context.objects.known:
                await context.objects.create(entry)
        for name in set(context.objects.known) - {entry.name for entry in entries}:
            await context.objects.delete(name)

    async def _situation(self, name: str) -> tuple[ActionContext, NextAction]:
        instance = self.context.objects.get_copy(name)
        assert instance
        host = instance.spec.machine or name
        if not instance.status.node:
            await self.context.objects.save(name, lambda status: setattr(status, "node", host))
            instance.status.node = host
        steps = () if host in self._cluster.changed else (PUT,)
        state = InstanceState(Build(10, 0, 20348), "", host, "1")
        observation = Observation(state, DesiredState("1.1.0"), steps, "", 0.0)
        node = await self.context.nodes.get(host)
        observed = await observed_instance(self.context, instance, observation, node, "")
        decision = next_action(observed)
        return ActionContext(instance, observation, observed, decision.why, 0.0), decision

    async def _apply(self, case: ActionContext) -> None:
        host = case.instance.spec.machine or case.instance.name
        self._cluster.changed.add(host)
        if case.observed.node is None:

            def give_token(status: InstanceStatus) -> None:
                status.tokens = ["abcdef"]

            await self.context.objects.save(case.instance.name, give_token)
            await self._cluster.join(host)


@asynccontextmanager
async def running_operator(
    cluster: MixedCluster,
    limit: int = 1,
    *,
    api: MemoryApi | None = None,
    namespace: str = "machines",
) -> AsyncIterator[OperatorProcess]:
    """Run the watches of an operator."""
    settings = InstanceSettings(at_most=limit, machine_namespace=namespace)
    harness = OperatorHarness(settings, api=api or cluster)
    context = harness.context
    working = [
        asyncio.ensure_future(watch) for watch in (context.objects.run(), context.inputs.run())
    ]
    try:
        await context.objects.wait_synced()
        await context.inputs.wait_synced()
        yield OperatorProcess(harness, cluster)
    finally:
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
