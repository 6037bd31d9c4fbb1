"""Machines of several MachineSets are replaced in turn, however their controller goes about it."""

from __future__ import annotations

import asyncio
import base64
import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from tests.instances.memory_api import MemoryApi
from tests.instances.operator.caring import NAMESPACE, NOWHERE, PATH, AlwaysWanted, Caring
from tests.instances.operator.test_live_inputs import folder, leading, until
from tests.instances.scripted_windows import ScriptedWindows
from tests.instances.ssh_server import ssh_server
from winpod.cluster.instance_settings import InstanceSettings
from winpod.instances.cluster.inputs import KEY_ENTRY, KEY_SECRET
from winpod.instances.operator.looking import Seen, situation
from winpod.instances.operator.machines import GROUP
from winpod.instances.rules.desired import Desired, written
from winpod.instances.rules.next_deed import Deed, next_deed
from winpod.instances.rules.state import State
from winpod.instances.rules.steps import Do, Step
from winpod.windows.builds import Build

SETS = ("a", "b", "c")
KUBELET = written(r"C:\k\bin\kubelet.exe", b"kubelet", ("kubelet",))
PUT = Step(Do.PUT_FILE, KUBELET.path, "", "", "")


def owner(name: str) -> str:
    return name.partition("-")[0]


async def put_machine(caring: Caring, name: str, address: str, **metadata: Any) -> None:
    owners = [{"kind": "MachineSet", "name": owner(name)}]
    document = {
        "metadata": {"ownerReferences": owners, **metadata},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]},
    }
    await caring.api.put(f"{folder()}/{name}", document)


async def put_set(caring: Caring, name: str) -> None:
    await caring.api.put(
        f"{GROUP}/namespaces/machines/machinesets/{name}",
        {"spec": {"replicas": 1}, "status": {"readyReplicas": 1}},
    )


class MachineApi(MemoryApi):
    """One that has Machines: who is deleted stays until the controller has ended it."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted: asyncio.Queue[str] = asyncio.Queue()

    async def request(self, method: str, path: str, body: object = None, **more: Any) -> bytes:
        if method == "DELETE" and path.startswith(f"{folder()}/"):
            self.deleted.put_nowait(path.rpartition("/")[2])
            return b"{}"
        return await super().request(method, path, body, **more)


class Cloud:
    """A stand-in for the controller of Machines: it takes one out, and later makes another.

    The Machines answer over real SSH, at addresses of this machine alone, since their port is
    always the same. `most` is how many of them all were no ready nodes at a time.
    """

    def __init__(self, caring: Caring, folder: Path, stack: AsyncExitStack) -> None:
        self.caring = caring
        self.folder = folder
        self.stack = stack
        self.key = asyncssh.generate_private_key("ssh-ed25519")
        self.network = f"127.{random.randint(100, 254)}.{random.randint(0, 255)}"
        self.addresses: dict[str, str] = {}
        self.most = 0

    @property
    def names(self) -> list[str]:
        objects = self.caring.api.objects
        return [path.rpartition("/")[2] for path in objects if path.startswith(f"{folder()}/")]

    async def make(self, name: str) -> None:
        """New ones are as they should be, old ones are not; a Node has its Machine's name."""
        address = self.addresses[name] = f"{self.network}.{len(self.addresses) + 1}"
        place, hostname = self.folder / name, name.upper()
        machine = ScriptedWindows(place, hostname=hostname, next_hostname=hostname)
        opening = ssh_server(place, machine.reply, address=address, port=22)
        server = await self.stack.enter_async_context(opening)
        server.key = self.key
        if name.endswith("-new"):
            kubelet = server.local(KUBELET.path)
            kubelet.parent.mkdir(parents=True)
            kubelet.write_bytes(KUBELET.content or b"")
        await put_machine(self.caring, name, address)

    async def replace(self, name: str) -> None:
        """Its status says all the time that the set is whole, as one that is late does."""
        objects, new = self.caring.api.objects, f"{owner(name)}-new"
        for stage in ("leaving", "gone", "new", "node"):
            if stage == "leaving":
                going = {"deletionTimestamp": "2026-11-17T00:00:00Z"}
                await put_machine(self.caring, name, self.addresses[name], **going)
            elif stage == "gone":
                await self.caring.api.remove(f"{folder()}/{name}")
                objects.pop(f"/api/v1/nodes/{name}", None)
            elif stage == "new":
                await self.make(new)
            else:
                await self.caring.node(new, beat="1", address=self.addresses[new])
            for _ in range(20):
                await asyncio.sleep(0.01)
                self.look()
        path = f"{PATH}/machine-{new}"
        await until(lambda: objects.get(path, {}).get("status", {}).get("phase") == "Ready")

    def look(self) -> None:
        ready = {
            name
            for name in self.names
            if f"/api/v1/nodes/{name}" in self.caring.api.objects
            and "deletionTimestamp" not in self.caring.api.objects[f"{folder()}/{name}"]["metadata"]
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
    await put_machine(caring, "a-old", NOWHERE)
    await put_set(caring, "a")
    await caring.node("a-old", beat="1")
    one = await caring.instance(
        "machine-a-old", machine="a-old", node="a-old", nodeUid="/api/v1/nodes/a-old"
    )
    seen = Seen(State(Build(10, 0, 20348), "", "a-old", "1"), Desired("1.1.0"), (PUT,), "", 0.0)
    node = await caring.care.nodes.get("a-old")
    now = await situation(caring.care, one, seen, node, "")
    assert why in now.hold
    assert next_deed(now).deed is Deed.WAIT


async def give_key(caring: Caring, key: asyncssh.SSHKey) -> None:
    secret = base64.b64encode(key.export_private_key()).decode()
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets/{KEY_SECRET}"
    await caring.api.put(path, {"data": {KEY_ENTRY: secret}})


@pytest.mark.parametrize("limit", [1, 2])
async def test_so_many_machines_are_replaced_at_a_time_over_all_machine_sets(
    limit: int, tmp_path: Path
) -> None:
    settings = InstanceSettings(at_most=limit, machine_namespace="machines")
    wanted = Desired("1.1.0", directories=(r"C:\k", r"C:\k\bin"), files=(KUBELET,))
    api = MachineApi()
    caring = Caring(settings, api, wanted=AlwaysWanted(wanted), soon=0.02)
    async with AsyncExitStack() as stack:
        cloud = Cloud(caring, tmp_path, stack)
        await give_key(caring, cloud.key)
        for name in SETS:
            await put_set(caring, name)
            await cloud.make(f"{name}-old")
            address = cloud.addresses[f"{name}-old"]
            await caring.node(f"{name}-old", beat="1", address=address)
            await caring.instance(
                f"machine-{name}-old",
                machine=f"{name}-old",
                address=address,
                nodeUid=f"/api/v1/nodes/{name}-old",
            )
        replaced: dict[str, asyncio.Task[None]] = {}
        async with leading(caring):
            while len(replaced) < len(SETS):
                name = await asyncio.wait_for(api.deleted.get(), 30)
                if name not in replaced:
                    replaced[name] = asyncio.create_task(cloud.replace(name))
            await asyncio.gather(*replaced.values())
    assert sorted(cloud.names) == [f"{name}-new" for name in SETS]
    assert cloud.most == limit
