"""A cluster in memory with both: instances of a ConfigMap, and Machines of MachineSets.

The controller of Machines is a stand-in: one that is deleted leaves for a while, and another is
made when a test says so. What an operator would do on a host over SSH is played, too. All that an
operator decides, and writes into the cluster, is real.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.instances.memory_api import MemoryApi
from tests.instances.operator.caring import PATH, Caring
from tests.instances.operator.test_live_inputs import ask_for, folder, machine
from winpod.cluster.instance_settings import InstanceSettings
from winpod.instances.cluster.nodes import NODES
from winpod.instances.cluster.resource import Status
from winpod.instances.operator.deeds import Case, Deeds
from winpod.instances.operator.looking import Seen, situation
from winpod.instances.operator.machines import GROUP
from winpod.instances.rules.desired import Desired
from winpod.instances.rules.next_deed import Decision, Deed, next_deed
from winpod.instances.rules.state import State
from winpod.instances.rules.steps import Do, Step
from winpod.windows.builds import Build

SETS = f"{GROUP}/namespaces/machines/machinesets"
LEFT = "2026-11-17T00:00:00Z"
PUT = Step(Do.PUT_FILE, r"C:\k\bin\kubelet.exe", "", "", "")


class MixedCluster(MemoryApi):
    """`entries` are the ConfigMap's, and `changed` the hosts that are as they should be."""

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
        name = path.removeprefix(f"{folder()}/")
        if method == "DELETE" and name in self.machines():
            self.asked.append((method, path))
            await self.leave(name)
            return b"{}"
        return await super().request(method, path, body, params=params, content=content)

    async def entry(self, name: str) -> None:
        """An instance of the ConfigMap, which is a ready node."""
        self.entries.append(name)
        await ask_for(Caring(api=self), **dict.fromkeys(self.entries, "username=me"))
        await self._node(name, name)

    async def set(
        self, name: str, replicas: int, *, ready: int | None = None, **metadata: Any
    ) -> None:
        """Unless told, its status says all the time that it is whole, as one that is late does."""
        labels = {"machine.openshift.io/os-id": "Windows"}
        spec = {"replicas": replicas, "template": {"metadata": {"labels": labels}}}
        status = {"readyReplicas": replicas if ready is None else ready}
        found = {"metadata": metadata, "spec": spec, "status": status}
        await self.put(f"{SETS}/{name}", found)

    async def node_of_set(self, name: str) -> None:
        """A Machine that has been a ready node for long."""
        await self.make(name)
        await self._node(name, f"machine-{name}", machine=name)

    async def make(self, name: str, **metadata: Any) -> None:
        self._made += 1
        found = machine(f"192.0.2.{self._made}")
        owners = [{"kind": "MachineSet", "name": name.partition("-")[0]}]
        found["metadata"] |= {"ownerReferences": owners, **metadata}
        await self.put(f"{folder()}/{name}", found)

    async def leave(self, name: str) -> None:
        await self.make(name, deletionTimestamp=LEFT)

    async def take_out(self, name: str) -> None:
        await self.remove(f"{folder()}/{name}")
        self.objects.pop(f"{NODES}/{name}", None)

    async def join(self, name: str) -> None:
        """Its kubelet runs, and is heard of."""
        await Caring(api=self).node(name, beat="1")

    async def _node(self, name: str, instance: str, *, machine: str = "") -> None:
        await self.join(name)
        node: dict[str, Any] = {"node": name, "nodeUid": f"{NODES}/{name}", "phase": "Ready"}
        await Caring(api=self).instance(instance, machine=machine, **node)

    async def begin(self, instance: str) -> None:
        """It has its turn, and nothing is done yet."""
        path = f"{PATH}/{instance}"
        now = self.objects[path]
        await self.put(path, {**now, "status": {**now["status"], "changingSince": LEFT}})

    def machines(self) -> dict[str, dict[str, Any]]:
        """Their metadata by their names."""
        return {
            path.rpartition("/")[2]: obj["metadata"]
            for path, obj in self.objects.items()
            if path.startswith(f"{folder()}/")
        }

    async def step(self) -> None:
        """The controller of Machines does one thing: somebody goes, or somebody comes."""
        now = self.machines()
        if going := [name for name, one in now.items() if "deletionTimestamp" in one]:
            return await self.take_out(going[0])
        for path, obj in list(self.objects.items()):
            owner = path.removeprefix(f"{SETS}/")
            own = [name for name in now if name.partition("-")[0] == owner]
            if path.startswith(f"{SETS}/") and len(own) < obj["spec"]["replicas"]:
                return await self.make(f"{owner}-new-{self._made}")
        return None

    def down(self) -> int:
        """How many are no nodes that take pods, of all that should be."""
        wanted = [
            int(obj["spec"]["replicas"])
            for path, obj in self.objects.items()
            if path.startswith(f"{SETS}/")
        ]
        nodes = {path.rpartition("/")[2] for path in self.objects if path.startswith(f"{NODES}/")}
        now = self.machines()
        there = [name for name in now if name in nodes and "deletionTimestamp" not in now[name]]
        cordoned = [
            name
            for name in self.entries
            if self.objects[f"{NODES}/{name}"]["spec"]["unschedulable"]
        ]
        return max(0, sum(wanted) - len(there)) + len(cordoned)

    def is_there(self, instance: str) -> bool:
        return f"{PATH}/{instance}" in self.objects

    def is_changed(self) -> bool:
        """All of them, and nothing is left to be done."""
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


class Life:
    """One operator: what it decides about an instance, and does, when a test wants it to."""

    def __init__(self, caring: Caring, cluster: MixedCluster) -> None:
        self.care = caring.care
        self._cluster = cluster

    async def decide(self, name: str) -> Decision:
        return (await self._situation(name))[1]

    async def act(self, name: str) -> Decision:
        """What it decides is done; a host is changed, and joins, as soon as that is to be done."""
        case, decision = await self._situation(name)
        if decision.deed is Deed.APPLY:
            await self._apply(case)
        else:
            await Deeds(self.care).do(decision.deed, case)
        return decision

    async def reconcile(self) -> None:
        """An object for everybody who is asked for, and for nobody else."""
        care = self.care
        asked = care.inputs.entries.asked
        for one in asked:
            if one.name not in care.objects.known:
                await care.objects.create(one)
        for name in set(care.objects.known) - {one.name for one in asked}:
            await care.objects.delete(name)

    async def _situation(self, name: str) -> tuple[Case, Decision]:
        instance = self.care.objects.copy_of(name)
        assert instance
        host = instance.spec.machine or name
        if not instance.status.node:
            await self.care.objects.save(name, lambda status: setattr(status, "node", host))
            instance.status.node = host
        steps = () if host in self._cluster.changed else (PUT,)
        state = State(Build(10, 0, 20348), "", host, "1")
        seen = Seen(state, Desired("1.1.0"), steps, "", 0.0)
        node = await self.care.nodes.get(host)
        now = await situation(self.care, instance, seen, node, "")
        decision = next_deed(now)
        return Case(instance, seen, now, decision.why, 0.0), decision

    async def _apply(self, case: Case) -> None:
        host = case.instance.spec.machine or case.instance.name
        self._cluster.changed.add(host)
        if case.now.node is None:

            def give_token(status: Status) -> None:
                status.tokens = ["abcdef"]

            await self.care.objects.save(case.instance.name, give_token)
            await self._cluster.join(host)


@asynccontextmanager
async def life(
    cluster: MixedCluster,
    limit: int = 1,
    *,
    api: MemoryApi | None = None,
    namespace: str = "machines",
) -> AsyncIterator[Life]:
    """It knows what there is, and hears of what changes, from its beginning to its end."""
    settings = InstanceSettings(at_most=limit, machine_namespace=namespace)
    caring = Caring(settings, api=api or cluster)
    care = caring.care
    working = [asyncio.ensure_future(one) for one in (care.objects.run(), care.inputs.run())]
    try:
        await care.objects.until_known()
        await care.inputs.until_known()
        yield Life(caring, cluster)
    finally:
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
