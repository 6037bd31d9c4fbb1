"""An operator that crashes after each of its writes, while an instance migrates from Docker."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from tests.support.desired_instances import DESIRED, LINE
from tests.support.dying_api import DyingApi
from tests.support.instance_inventory import running_controller, set_entries
from tests.support.instance_operator import NAMESPACE, PATH, FixedDesiredState, OperatorHarness
from tests.support.memory_api import MemoryApi
from tests.support.scripted_windows import ScriptedService, ScriptedWindows
from tests.support.ssh_server import ssh_server
from winpod.instances.cluster.inventory import KEY_ENTRY
from winpod.instances.cluster.nodes import LEASES, NODES
from winpod.labels import INSTANCES_KEY_SECRET

NAME = "127.0.0.1"
NAT = {"ID": "0e2c52cf-6a6b-4c5e-9d2a-1b1f0c4f5a02", "Name": "nat", "Type": "nat"}
OLD = {"ID": "0e2c52cf-6a6b-4c5e-9d2a-1b1f0c4f5a01", "Name": "winpod", "Type": "overlay"}


@asynccontextmanager
async def kubelet(api: MemoryApi, machine: ScriptedWindows) -> AsyncIterator[None]:
    """A stand-in that keeps a ready Node and its heartbeat while its service runs."""

    async def play() -> None:
        for moment in count():
            service = machine.services.get("kubelet")
            if service and service.state == "RUNNING":
                runtime = "docker" if "docker" in service.depends else "containerd"
                status = {
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "addresses": [{"type": "InternalIP", "address": NAME}],
                    "nodeInfo": {"containerRuntimeVersion": f"{runtime}://2.4.2"},
                }
                spec = api.objects.get(f"{NODES}/win-1", {}).get("spec", {})
                await api.put(f"{NODES}/win-1", {"spec": spec, "status": status})
                renewed = f"2026-11-17T00:{moment // 60 % 60:02}:{moment % 60:02}Z"
                await api.put(f"{LEASES}/win-1", {"spec": {"renewTime": renewed}})
            await asyncio.sleep(0.1)

    playing = asyncio.create_task(play())
    try:
        yield
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)


async def run_until_crash(store: MemoryApi, writes: int) -> bool:
    """Run an operator; return whether it crashed, as opposed to finishing."""
    api = DyingApi(store, writes)
    harness = OperatorHarness(api=api, desired_source=FixedDesiredState(DESIRED), short_delay=0.05)
    deadline = time.monotonic() + 60
    async with running_controller(harness):
        while not api.died.is_set() and not is_ready(store):
            assert time.monotonic() < deadline, store.objects[f"{PATH}/{NAME}"]["status"]
            await asyncio.sleep(0.02)
    return api.died.is_set()


def is_ready(store: MemoryApi) -> bool:
    status = store.objects.get(f"{PATH}/{NAME}", {}).get("status", {})
    return (status.get("phase"), status.get("version")) == ("Ready", "1.0.0")


async def test_migration_from_docker_survives_operator_crashes(
    tmp_path: Path,
) -> None:
    """Each operator crashes after one write, two writes, and so on."""
    docker = ScriptedService(r"C:\docker\dockerd.exe", state="RUNNING")
    line = r"C:\k\kubelet.exe --network-plugin=cni"
    old = {"docker": docker, "kubelet": ScriptedService(line, depends=["docker"], state="RUNNING")}
    machine = ScriptedWindows(
        tmp_path, services=old, networks=[OLD, NAT], features={"Containers": "Enabled"}
    )
    untouched, store, deaths = repr(docker), MemoryApi(), 0
    async with ssh_server(tmp_path, machine.reply) as server, kubelet(store, machine):
        secret = base64.b64encode(server.key.export_private_key()).decode()
        path = f"/api/v1/namespaces/{NAMESPACE}/secrets/{INSTANCES_KEY_SECRET}"
        await store.put(path, {"data": {KEY_ENTRY: secret}})
        await set_entries(
            OperatorHarness(api=store), **{NAME: f"username=Administrator,port={server.port}"}
        )
        while not is_ready(store):
            deaths += await run_until_crash(store, deaths + 1)
    assert deaths >= 5
    assert repr(machine.services["docker"]) == untouched
    assert machine.services["kubelet"].line == LINE
    assert machine.networks == [NAT]
    deleted = [command for command in machine.called if command[:2] == ["sc.exe", "delete"]]
    assert deleted == [["sc.exe", "delete", "kubelet"]]
    assert not store.objects[f"{NODES}/win-1"]["spec"].get("unschedulable")
    status = store.objects[f"{PATH}/{NAME}"]["status"]
    assert not {"changingSince", "isCordoned", "failure"} & status.keys()
