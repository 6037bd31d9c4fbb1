"""Machines of several MachineSets are replaced in turn, however their controller goes about it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.instances.operator.caring import PATH, Caring
from tests.instances.operator.test_live_inputs import folder, leading, until
from winpod.cluster.instance_settings import InstanceSettings
from winpod.instances.cluster.nodes import subnet_of
from winpod.instances.cluster.resource import Status, WindowsInstance
from winpod.instances.operator import deeds, looking_after
from winpod.instances.operator.care import Care
from winpod.instances.operator.looking import Seen, save, situation
from winpod.instances.operator.machines import GROUP
from winpod.instances.rules.desired import Desired
from winpod.instances.rules.next_deed import Deed, next_deed
from winpod.instances.rules.state import State
from winpod.instances.rules.steps import Do, Step
from winpod.windows.builds import Build

SETS = ("a", "b", "c")
PUT = Step(Do.PUT_FILE, r"C:\k\bin\kubelet.exe", "", "", "")


def owner(name: str) -> str:
    return name.partition("-")[0]


class Cloud:
    """A stand-in for the controller of Machines: it takes one out, and later makes another.

    `most` is how many of them all were no ready nodes at a time.
    """

    def __init__(self, caring: Caring) -> None:
        self.caring = caring
        self.most = 0
        self.made = 0

    def path(self, name: str) -> str:
        return f"{folder()}/{name}"

    @property
    def names(self) -> list[str]:
        objects = self.caring.api.objects
        return [path.rpartition("/")[2] for path in objects if path.startswith(f"{folder()}/")]

    async def make(self, name: str, **metadata: Any) -> None:
        self.made += 1
        addresses = [{"type": "InternalIP", "address": f"192.0.2.{self.made}"}]
        owners = [{"kind": "MachineSet", "name": owner(name)}]
        document = {
            "metadata": {"ownerReferences": owners, **metadata},
            "status": {"addresses": addresses},
        }
        await self.caring.api.put(self.path(name), document)

    async def replace(self, name: str) -> None:
        """Its status says all the time that the set is whole, as one that is late does."""
        objects = self.caring.api.objects
        for stage in ("leaving", "gone", "new", "node"):
            if stage == "leaving":
                await self.make(name, deletionTimestamp="2026-11-17T00:00:00Z")
            elif stage == "gone":
                await self.caring.api.remove(self.path(name))
                objects.pop(f"/api/v1/nodes/{name}", None)
            elif stage == "new":
                await self.make(f"{owner(name)}-new")
            else:
                await self.caring.node(f"{owner(name)}-new", beat="1")
            for _ in range(20):
                await asyncio.sleep(0.01)
                self.look()
        path = f"{PATH}/machine-{owner(name)}-new"
        await until(lambda: objects.get(path, {}).get("status", {}).get("phase") == "Ready")

    def look(self) -> None:
        ready = {
            name
            for name in self.names
            if f"/api/v1/nodes/{name}" in self.caring.api.objects
            and "deletionTimestamp" not in self.caring.api.objects[self.path(name)]["metadata"]
        }
        self.most = max(self.most, len(SETS) - len(ready))


@pytest.mark.parametrize(
    ("namespace", "why"),
    [("", "machineNamespace is empty"), ("machines", "the Machines cannot be listed")],
)
async def test_no_machine_is_replaced_while_nobody_knows_of_the_others(
    namespace: str, why: str
) -> None:
    """Also where that one and its set can be read."""
    caring = Caring(InstanceSettings(machine_namespace=namespace))
    await Cloud(caring).make("a-old")
    await caring.api.put(
        f"{GROUP}/namespaces/machines/machinesets/a",
        {"spec": {"replicas": 1}, "status": {"readyReplicas": 1}},
    )
    await caring.node("a-old", beat="1")
    uid = {"node": "a-old", "nodeUid": "/api/v1/nodes/a-old"}
    one = await caring.instance("machine-a-old", machine="a-old", **uid)
    seen = Seen(State(Build(10, 0, 20348), "", "a-old", "1"), Desired("1.1.0"), (PUT,), "", 0.0)
    node = await caring.care.nodes.get("a-old")
    now = await situation(caring.care, one, seen, node, "")
    assert why in now.hold
    assert next_deed(now).deed is Deed.WAIT


@pytest.mark.parametrize("limit", [1, 2])
async def test_so_many_machines_are_replaced_at_a_time_over_all_machine_sets(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    caring = Caring(InstanceSettings(at_most=limit, machine_namespace="machines"))
    cloud = Cloud(caring)
    replaced: list[asyncio.Task[None]] = []

    async def look(care: Care, instance: WindowsInstance) -> Seen:
        """New ones are as they should be, old ones are not; a Node has its Machine's name."""
        name = instance.spec.machine

        def change(status: Status) -> None:
            status.node, status.addresses = name, ["192.0.2.7"]

        await save(care, instance, change)
        steps = () if name.endswith("-new") else (PUT,)
        state = State(Build(10, 0, 20348), "", name, "1")
        subnet = subnet_of(await care.nodes.get(name))
        return Seen(state, Desired("1.1.0"), steps, subnet, time.monotonic())

    async def delete(namespace: str, name: str) -> None:
        assert namespace == "machines"
        if not any(task.get_name() == name for task in replaced):
            replaced.append(asyncio.create_task(cloud.replace(name), name=name))

    monkeypatch.setattr(looking_after, "look", look)
    monkeypatch.setattr(caring.care.machines, "delete", delete)
    monkeypatch.setattr(deeds, "_SOON", deeds.After(0.02))
    for name in SETS:
        await caring.api.put(
            f"{GROUP}/namespaces/machines/machinesets/{name}",
            {"spec": {"replicas": 1}, "status": {"readyReplicas": 1}},
        )
        await cloud.make(f"{name}-old")
        await caring.node(f"{name}-old", beat="1")
        uid = {"nodeUid": f"/api/v1/nodes/{name}-old"}
        await caring.instance(f"machine-{name}-old", machine=f"{name}-old", **uid)
    async with leading(caring):
        await until(lambda: len(replaced) == len(SETS))
        await asyncio.gather(*replaced)
    assert sorted(cloud.names) == [f"{name}-new" for name in SETS]
    assert cloud.most == limit
